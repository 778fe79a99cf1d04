"""Seeds one defect at a time into a copy of this checkout, and runs the tests that should catch it.

Each copy has a `.venv` of symbolic links to the packages of the one that runs this program, in
which `raysuite` is the copy's: subprocesses import it too, whatever their environment.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import copy2
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEFT_OUT = ("tests/mutants/", "tests/unit/test_mutants.py")
"""Not copied: that a patch does not apply where it is applied already would catch every mutant."""
ALL = "-m|not thorough|tests/unit|tests/test_layers.py|tests/contract|tests/integration|tests/lab"
State = Literal["caught", "SURVIVED", "skipped", "passed", "BROKEN"]
"""skipped: no test ran, as where a part is not installed. passed: without a defect. BROKEN: tests
fail without a defect, or gave no answer."""


@dataclass(frozen=True)
class Outcome:
    """What the tests found in one copy."""

    name: str
    state: State
    caught_by: str
    seconds: float
    output: str

    @property
    def ok(self) -> bool:
        return self.state in ("caught", "skipped", "passed")


def mutants(patterns: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Entries of mutants.toml whose name fits one of the patterns; all of them without any."""
    entries: list[dict[str, Any]] = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
    wanted = [f"*{pattern}*" for pattern in patterns] or ["*"]
    return [e for e in entries if any(fnmatch.fnmatch(e["name"], each) for each in wanted)]


@contextmanager
def copied() -> Iterator[Path]:
    """A fresh copy of the working tree, uncommitted changes included, with a `.venv` of its own."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    files = subprocess.check_output(listed, text=True).split("\0")[:-1]
    with tempfile.TemporaryDirectory(prefix="raysuite-mutant-", dir="/tmp") as folder:
        tree = Path(folder).resolve()
        for name in files:
            if not name.startswith(LEFT_OUT) and os.path.lexists(ROOT / name):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                copy2(ROOT / name, tree / name, follow_symlinks=False)
        _lend_venv(tree, Path(sys.prefix))
        found = _python(tree, "-c", "import raysuite; print(raysuite.__file__)", cwd=Path("/"))
        assert Path(found.stdout.strip()).is_relative_to(tree), found
        yield tree


def _lend_venv(tree: Path, ours: Path) -> None:
    packages = Path(f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
    venv = tree / ".venv"
    (venv / packages).mkdir(parents=True)
    (venv / "bin").mkdir()
    for path in [*ours.glob("pyvenv.cfg"), *(ours / packages).iterdir()]:
        if path.suffix != ".pth" or path.read_text().strip() != str(ROOT):
            (venv / path.relative_to(ours)).symlink_to(path)
    (venv / packages / "raysuite-copy.pth").write_text(f"{tree}\n")
    for path in (ours / "bin").iterdir():
        target, text = venv / "bin" / path.name, b"" if path.is_symlink() else path.read_bytes()
        if text.startswith(b"#!") and os.fsencode(ours) in text:
            target.write_bytes(text.replace(os.fsencode(ours), os.fsencode(venv)))
            target.chmod(0o755)
        else:
            target.symlink_to(os.readlink(path) if path.is_symlink() else path)


def _python(tree: Path, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    left_out = ("PYTHONPATH", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    program = tree / ".venv" / "bin"
    variables["PATH"] = f"{program}{os.pathsep}{variables.get('PATH', os.defpath)}"
    variables["RAYSUITE_CACHE"] = str(tree / ".cache")  # what a defect writes there stays there
    words = (str(program / "python"), *words)
    return subprocess.run(
        words, cwd=cwd or tree, env=variables, capture_output=True, text=True, check=False
    )


def tried(name: str, patch: Path | None, tests: Sequence[str]) -> Outcome:
    """Run the tests in a copy, with the patch if one is given; the first failure ends them then."""
    with copied() as tree:
        if patch is not None:
            subprocess.run(["git", "apply", str(patch)], cwd=tree, check=True)
        began = time.monotonic()
        options = ["-q", "-p", "no:cacheprovider", *(["-x"] if patch else [])]
        done = _python(tree, "-m", "pytest", *options, *tests)
        seconds = round(time.monotonic() - began, 1)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    state: State = "BROKEN"
    if done.returncode == 1 and patch:
        state = "caught"
    elif done.returncode == 0:
        ran = re.search(r"\d+ passed", done.stdout)
        state = "skipped" if not ran else "SURVIVED" if patch else "passed"
    return Outcome(name, state, ", ".join(failed), seconds, done.stdout[-4000:] + done.stderr)


def main() -> int:
    """The exit code: 1 where a mutant survived, or where a listed test fails without any."""
    parser = argparse.ArgumentParser(
        description="Seed defects, one at a time, and show that the tests catch them.",
        epilog="example: .venv/bin/python tests/mutants/run.py warmup journal --jobs 2",
    )
    parser.add_argument("names", nargs="*", help="a part of a mutant's name; default: all of them")
    parser.add_argument("--tests", choices=("listed", "all"), default="listed")
    parser.add_argument("--check-clean", action="store_true", help="run them without a defect")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--jobs", type=int, default=1, help="copies at work at the same time")
    given = parser.parse_args()
    chosen = mutants(given.names)
    asked: list[tuple[str, Path | None, Sequence[str]]] = []
    for each in chosen:
        tests = ALL.split("|") if given.tests == "all" else each["tests"]
        asked.append((each["name"], HERE / f"{each['name']}.patch", tests))
    if given.check_clean:
        listed = sorted({test for each in chosen for test in each["tests"]})
        asked = [("no defect", None, ALL.split("|") if given.tests == "all" else listed)]
    outcomes = []
    with ThreadPoolExecutor(max(1, given.jobs)) as threads:
        for outcome in threads.map(lambda each: tried(*each), asked):
            outcomes.append(outcome)
            if not given.json:
                line = f"{outcome.name:44} {outcome.state:8} {outcome.seconds:7.1f} s  "
                print(line + outcome.caught_by, flush=True)
            if not outcome.ok:
                print(outcome.output, file=sys.stderr)
    if given.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    elif not given.check_clean:
        count = {state: sum(o.state == state for o in outcomes) for state in ("caught", "skipped")}
        skipped = f", {count['skipped']} not run here" if count["skipped"] else ""
        print(f"caught {count['caught']} of {len(outcomes)}{skipped}")
    return 0 if outcomes and all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
