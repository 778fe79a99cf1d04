"""Measure two sides in turn, A B B A ..., so that a drift of the machine affects both alike;
summarise the values, and write the results."""

from __future__ import annotations

import compileall
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from raysuite.records.statistics import summarize

HERE = Path(__file__).resolve().parent
# otherwise, with PYTHONDONTWRITEBYTECODE, each process would compile changed modules again
compileall.compile_dir(HERE.parent / "raysuite", quiet=1)
WORKERS = 2
LAUNCH = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}")
"""Python's arguments that start a script in WORKERS ranks."""

Measured = TypeVar("Measured")
Spread = dict[str, Any]


def in_turn(
    pairs: int,
    sides: Mapping[str, Callable[[], Measured]],
    words: Callable[[dict[str, Measured]], str],
) -> list[dict[str, Measured]]:
    """Run both sides `pairs` times; return the results by pair. `words` formats a pair."""
    measured: list[dict[str, Measured]] = []
    for pair in range(pairs):
        order = list(sides) if pair % 2 == 0 else list(sides)[::-1]
        measured.append({side: sides[side]() for side in order})
        print(f"pair {pair + 1} of {pairs}: {words(measured[-1])}", flush=True)
    return measured


def call(*arguments: object, folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Run Python in `folder`; exit with its output if it fails."""
    words = list(map(str, arguments))
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def spread(values: list[float]) -> Spread:
    """Mean with its 95 % interval (Student's t), median and range."""
    found = summarize(values)
    assert found is not None
    half = found.half_width
    return {
        "n": found.n,
        "median": statistics.median(values),
        "mean": found.mean,
        "ci95": [None, None] if half is None else [found.mean - half, found.mean + half],
        "min": min(values),
        "max": max(values),
    }


def table(rows: Iterable[tuple[str, Spread]], digits: int, with_n: bool = False) -> list[str]:
    """Lines of Markdown: a row for each spread."""
    titles = ["figure", *(["n"] * with_n), "median", "mean", "95 % CI of the mean", "min", "max"]
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name, each in rows:
        low, high = each["ci95"]
        interval = "none, n = 1" if low is None else f"{low:.{digits}f} to {high:.{digits}f}"
        median, mean, least, most = (
            f"{each[key]:.{digits}f}" for key in ("median", "mean", "min", "max")
        )
        cells = [name, *([str(each["n"])] * with_n), median, mean, interval, least, most]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def machine(facts: Mapping[str, Any], *packages: str) -> str:
    """A sentence on hardware and versions; `facts` are those of `raysuite.measure.environment`."""
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in packages)
    cpu = facts["cpu"]
    return f"Hardware: {cpu['model']}, {cpu['logical_cores']} logical cores. Versions: {versions}"


def write(name: str, result: Mapping[str, Any], text: str) -> None:
    """Write benchmarks/results/NAME.json and .md, and print the latter."""
    (HERE / "results" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (HERE / "results" / f"{name}.md").write_text(text)
    print(text)
