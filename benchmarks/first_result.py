"""Measure the time to the first results on a new machine: `make demo` with empty caches.

    python benchmarks/first_result.py [COMMIT ...]

Each commit (default: HEAD) is cloned, and built and run with an empty home folder, one after the
other. Each build downloads some 3 GB. Writes benchmarks/results/first_result.json and .md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pairs import machine, write

from raysuite.measure.environment import environment

ROOT = Path(__file__).resolve().parent.parent
_END = re.compile(rb'"kind": ?"run_finished"')


def _finished_run(results: Path) -> bool:
    journals = results.glob("*/runs/*/journal.jsonl")
    return any(_END.search(each.read_bytes()) for each in journals)


FIGURES: dict[str, Callable[[Path], bool]] = {
    "first finished run": _finished_run,
    "first report": lambda results: any(results.glob("*/report.html")),
    "end": lambda results: False,
}


def demo(commit: str, folder: Path) -> dict[str, float]:
    """Seconds from the start of `make demo` to each of FIGURES, in a clone of `commit`."""
    tree, home = folder / "tree", folder / "home"
    home.mkdir(parents=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, tree], check=True)
    subprocess.run(["git", "-C", tree, "checkout", "--quiet", "--detach", commit], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAYSUITE_")}
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "VIRTUAL_ENV": ""}
    began, found = time.monotonic(), dict[str, float]()
    process = subprocess.Popen(["make", "demo"], cwd=tree, env=kept | own, stdout=sys.stderr)
    while process.poll() is None:
        time.sleep(0.2)
        for name, reached in FIGURES.items():
            if name not in found and reached(tree / "results" / "quickstart"):
                found[name] = time.monotonic() - began
    if process.returncode:
        sys.exit(f"make demo of {commit} ended with {process.returncode}")
    return found | {"end": time.monotonic() - began}


def main(commits: list[str]) -> None:
    found: dict[str, dict[str, float]] = {}
    for each in commits:
        words = ["git", "-C", ROOT, "rev-parse", "--short", each]
        commit = subprocess.check_output(words, text=True).strip()
        with tempfile.TemporaryDirectory() as folder:
            found[commit] = demo(commit, Path(folder))
        print(commit, found[commit], flush=True)
    lines = ["# How long a new machine takes to its first results", ""]
    lines += ["Seconds from `make demo` with empty caches, n = 1 each, one after the other.", ""]
    lines += [f"| commit | {' | '.join(FIGURES)} |", f"|{' --- |' * (1 + len(FIGURES))}"]
    for commit, seconds in found.items():
        lines.append(f"| {commit} | {' | '.join(f'{seconds[each]:.0f}' for each in FIGURES)} |")
    kept = {"seconds": found, "machine": machine(environment(), "raysuite", "torch", "ray")}
    write("first_result", kept, "\n".join([*lines, "", kept["machine"], ""]))


if __name__ == "__main__":
    main(sys.argv[1:] or ["HEAD"])
