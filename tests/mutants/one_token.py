"""Makes defects of one token each in single modules by mutmut, and runs the tests beside them.

mutmut makes the mutants: a module with all of them, of which the environment variable
MUTANT_UNDER_TEST chooses one. `mutmut run` begins pytest anew for each, and would take hours. Here
a module's tests are collected once, in a copy of this checkout below build/mutants, and a fork of
that process runs those that reach the changed function, the fastest first, up to one that fails.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import gc
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutants"
COPIED = (
    "raysuite",
    "tests",
    "benchmarks",
    "deploy",
    "docs",
    "experiments",
    "CONTRIBUTING.md",
    "README.md",
)
TESTS: dict[str, Sequence[str]] = {
    "data/order": ["data/test_order.py"],
    "data/pixels": ["data/test_pixels.py", "data/test_header.py"],
    "data/views": ["data/test_views.py"],
    "gate/gradients": ["gate/test_gradients.py", "gate/test_strategy_check.py"],
    "gate/library": ["gate/test_library.py"],
    "gate/own_network": ["gate/test_own_network.py"],
    "gate/rebuilt_network": ["gate/test_rebuilt_network.py"],
    "gate/small_network": ["gate/test_small_network.py"],
    "gate/strategy_check": ["gate/test_strategy_check.py"],
    "optim/__init__": ["optim/test_optimizers.py", "optim/test_muon.py"],
    "optim/average": ["optim/test_average.py"],
    "optim/layerwise": ["optim/test_optimizers.py"],
    "optim/schedule": ["optim/test_schedule.py"],
    "parallel/precision": ["parallel/test_precision.py", "gate/test_strategy_check.py"],
    "perf/calibration": ["perf/test_calibration.py"],
    "perf/costs": ["perf/test_costs.py", "perf/test_calibration.py"],
    "perf/explanation": ["perf/test_explanation.py"],
    "perf/prediction": ["perf/test_calibration.py"],
    "perf/recommendation": ["perf/test_recommendation.py"],
    "perf/simulator": ["perf/test_simulator.py"],
    "plan/batch_candidates": ["plan/test_batch_candidates.py", "orchestrate/test_found_batches.py"],
    "plan/dataset": ["plan/test_dataset.py", "plan/test_feasible.py"],
    "plan/dry_batch": ["plan/test_dry_batch.py"],
    "plan/feasible": ["plan/test_feasible.py"],
    "plan/loading": ["plan/test_loading.py"],
    "plan/matrix": ["plan/test_matrix.py", "plan/test_trials.py"],
    "plan/population": ["plan/test_population.py"],
    "plan/resolve": ["plan/test_resolve.py", "plan/test_elastic.py", "plan/test_matrix.py"],
    "plan/simulation": ["plan/test_simulation.py"],
    "plan/space": ["plan/test_space.py", "plan/test_population.py"],
    "plan/trials": ["plan/test_trials.py"],
    "records/derive": [
        "records/test_derive.py",
        "records/test_shares.py",
        "records/test_attempts.py",
        "records/test_run_costs.py",
        "records/test_rows.py",
    ],
    "records/metrics": [
        "records/test_metrics.py",
        "records/test_rows.py",
        "report/test_costs.py",
        "report/test_golden_results.py",
    ],
    "records/rows": ["records/test_rows.py", "report/test_oracle.py"],
    "records/statistics": ["records/test_statistics.py"],
    "report/against": [
        "report/test_against.py",
        "report/test_against_published.py",
        "report/test_sweep.py",
    ],
    "spec/search": ["spec/test_search.py", "plan/test_space.py"],
    "track/entries": [
        "track/test_entries.py",
        "records/test_confusion.py",
        "report/test_golden_results.py",
    ],
}
"""Modules of raysuite whose mistakes become figures -> the tests in tests/unit that should fail."""
FASTER = "not (slow or thorough or integration)"
CHOSEN = "MUTANT_UNDER_TEST"
REACHED = "stats"
"""The value of CHOSEN with which mutmut notes the functions that are called."""
_ASSERTED = re.compile(r"(,\s*strict=\w+)?,?\s*(?=\))")
"""That what `zip` takes has one length: left out as `assert` is, by pyproject.toml."""
_SLOWER, _LEAST_S = 10.0, 30.0
"""A mutant's tests are ended after so many times as long as without it, and seconds at least."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="such as records/statistics or 'perf/*'")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most, for each module")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--sample", type=int, help="mutants of each module, chosen by chance")
    parser.add_argument("--seed", default="", help="of another sample")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.inside:
        return _run(asked.modules[0], asked.minutes, asked.jobs, asked.sample, asked.seed)
    patterns = asked.modules or ["*"]
    if unknown := [each for each in patterns if not fnmatch.filter(TESTS, each)]:
        parser.error(f"no module is called {', '.join(unknown)}; valid: {', '.join(TESTS)}")
    code = 0
    for name in TESTS:
        if any(fnmatch.fnmatch(name, each) for each in patterns):
            limits = ["--minutes", str(asked.minutes), "--jobs", str(asked.jobs)]
            if asked.sample is not None:
                limits += ["--sample", str(asked.sample), "--seed", asked.seed]
            inside = [sys.executable, __file__, name, "--inside", *limits]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            code |= subprocess.run(inside, cwd=_copy(name), env=environment, check=False).returncode
    return code


def _copy(name: str) -> Path:
    """A copy of what tests need, in which a module has all of its mutants."""
    folder = FOLDER / name.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for each in (*COPIED, "pyproject.toml"):
        copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy2
        copy(ROOT / each, folder / each)
    return folder


@dataclass(frozen=True)
class Mutant:
    function: str
    """Its name, without the mutant's number."""
    name: str
    changed: list[str]
    """Lines before and after."""


def _run(name: str, minutes: float, jobs: int, sample: int | None, seed: str) -> int:
    """Make the mutants of a module of this folder, and run its tests with each of them, or of the
    first `sample` of an order that is the same each time with the same `seed`."""
    from mutmut.state import state

    sys.path[:0] = [str(Path.cwd())]
    mutants = _mutants(name)
    if sample is not None:
        random.Random(name + seed).shuffle(mutants)
    loop = Loop(mutants[:sample], state()._stats, jobs, time.monotonic() + 60 * minutes)
    tests = [f"tests/unit/{each}" for each in TESTS[name]]
    options = ["-q", "-s", "-p", "no:cacheprovider", "-m", FASTER, "--tb=no"]
    pytest.main([*options, "--no-header", "--no-summary", *tests], plugins=[loop])
    done = len(loop.found) + len(loop.left)
    if not done:
        print(
            f"{name}: nothing was run: all tests fail without a mutant or they take all of "
            "--minutes, or there is no mutant"
        )
        return 1
    share = len(loop.found) / done
    print(f"{name}: {len(loop.found)} of {done} found, {share:.1%}; {len(mutants)} in all")
    for mutant in loop.left:
        why = ": no test reaches it" if mutant in loop.unreached else ""
        print("\n".join([f"  {mutant.name}{why}", *(f"    {line}" for line in mutant.changed)]))
    sys.stdout.flush()
    return 1 if loop.left else 0


def _mutants(name: str) -> list[Mutant]:
    """Replace a module of this folder by one with mutants, which are returned."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    file = Path("raysuite", f"{name}.py")
    made = mutate_file_contents(str(file), file.read_text("utf-8"))
    file.write_text(made.code, "utf-8")
    lines = made.code.splitlines()

    def source(function: str) -> list[str]:
        span = made.line_span_by_function_name[function]
        return [line.replace(function, "") for line in lines[span.start - 1 : span.end]]

    module = f"raysuite.{name.replace('/', '.')}".removesuffix(".__init__")
    found = []
    for mutant in made.mutant_names:
        function = mutant.rpartition("_")[0]
        original, mutated = source(f"{function}_orig"), source(mutant)
        if len({_ASSERTED.sub("", "\n".join(lines)) for lines in (original, mutated)}) == 1:
            continue
        changed = [line for line in difflib.ndiff(original, mutated) if line[0] in "+-"]
        found.append(Mutant(function.partition("__mutmut")[0], f"{module}.{mutant}", changed))
    return found


class Loop:
    """Runs the tests of a session of pytest with each mutant, in forks of its process: no test is
    run in that itself, as torch's threads would not survive a fork."""

    def __init__(
        self, mutants: Sequence[Mutant], called: set[str], jobs: int, until: float
    ) -> None:
        """`called`: to which mutmut adds the functions that are called while it notes them."""
        self.mutants, self.found = mutants, list[Mutant]()
        self.left, self.unreached = list[Mutant](), list[Mutant]()
        self._called, self._jobs, self._until = called, jobs, until
        self._file, self._set_up = Path(), set[str]()
        """A file of tests, and the functions that its fixtures reach."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        seconds, reached = _forked(lambda: self._reached(session))
        if not seconds:
            return True
        gc.collect()
        gc.freeze()  # so that forks share its pages
        items = {item.nodeid: item for item in session.items}
        running: dict[int, tuple[Mutant, float]] = {}
        for mutant in self.mutants:
            nodes = sorted(reached.get(mutant.function, ()), key=seconds.__getitem__)
            if not nodes:
                self.left.append(mutant)
                self.unreached.append(mutant)
                continue
            while len(running) == self._jobs:
                self._wait(running)
            if time.monotonic() > self._until:
                break
            if (pid := os.fork()) == 0:
                _quiet()
                os.environ[CHOSEN] = mutant.name
                os._exit(_failing(session, [items[node] for node in nodes]))
            limit = _LEAST_S + _SLOWER * sum(seconds[node] for node in nodes)
            running[pid] = mutant, time.monotonic() + limit
        while running:
            self._wait(running)
        return True

    def _reached(self, session: pytest.Session) -> tuple[dict[str, float], dict[str, set[str]]]:
        """Seconds of each test, and function -> tests that reach it; without those that fail, such
        as one of a process in which mutmut cannot be imported."""
        os.environ[CHOSEN] = REACHED
        seconds: dict[str, float] = {}
        reached: dict[str, set[str]] = {}
        for place, item in enumerate(session.items):
            if item.path != self._file:
                self._file, self._set_up = item.path, set()
            self._called.clear()
            began = time.monotonic()
            if _failing(session, session.items[place : place + 2], 1):
                print(f"{item.nodeid} fails without a mutant, and is left out", file=sys.stderr)
                session.testsfailed = 0
                continue
            seconds[item.nodeid] = time.monotonic() - began
            for function in self._called | self._set_up:
                reached.setdefault(function.rpartition(".")[2], set()).add(item.nodeid)
        return seconds, reached

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._set_up |= self._called

    def _wait(self, running: dict[int, tuple[Mutant, float]]) -> None:
        """For one that ends, or has to be ended."""
        while True:
            for pid, (mutant, deadline) in list(running.items()):
                now = time.monotonic()
                late = now > deadline
                if ending := late or now > self._until:
                    os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0 if ending else os.WNOHANG)
                if ended:
                    del running[pid]
                    shutil.rmtree(_temporary(pid), ignore_errors=True)
                    if status == 0:
                        self.left.append(mutant)
                    elif late or status not in (signal.SIGKILL, signal.SIGTERM):
                        self.found.append(mutant)  # else ended by --minutes, or from outside
                    return
            time.sleep(0.002)


def _failing(session: pytest.Session, items: Sequence[Any], count: int | None = None) -> int:
    """1 where one of the first `count` items fails, after which no other is run."""
    for item, following in zip(items[:count], [*items[1:], None], strict=False):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def _forked(work: Callable[[], Any]) -> Any:
    """What `work` returns in a fork of this process."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        _quiet()
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(work(), stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        found = stream.read()
    os.waitpid(pid, 0)
    shutil.rmtree(_temporary(pid), ignore_errors=True)
    return pickle.loads(found)


def _quiet() -> None:
    """In a fork: print nothing, and use a folder of its own for temporary files."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    folder = _temporary(os.getpid())
    folder.mkdir(parents=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)


def _temporary(pid: int) -> Path:
    return Path.cwd() / "temporary" / str(pid)


if __name__ == "__main__":
    sys.exit(main())
