"""From which share of a machine's cores on other programs show in images per second.

    python benchmarks/busy_machine.py [ROUNDS]

The same training by two ranks beside a program that computes for a part of the time, in turn; what
the run records of other programs, and its images per second as a ratio to those of the round's run
that had the machine to itself. Written to benchmarks/results/busy_machine.md.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from horovod_timeline import HERE, trained
from scipy import stats

CORES = (0.0, 0.1, 0.25, 0.5, 1.0)
"""That the other program takes, where it gets what it asks for."""
_PERIOD_S = 0.02


def main(rounds: int) -> None:
    speeds: dict[float, list[float]] = {cores: [] for cores in CORES}
    taken: dict[float, list[float]] = {cores: [] for cores in CORES}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAYSUITE_CACHE"] = f"{folder}/cache"
        trained("ddp", {}, Path(folder) / "first")  # the gate, and the data set
        for number in range(rounds):
            for cores in CORES[:: 1 if number % 2 == 0 else -1]:
                other = multiprocessing.Process(target=compute, args=(cores,), daemon=True)
                other.start()
                run = trained("ddp", {}, Path(folder) / f"{cores}-{number}")
                other.kill()
                assert run.throughput is not None
                assert run.other_cores is not None
                speeds[cores].append(run.throughput)
                taken[cores].append(run.other_cores / (os.cpu_count() or 1))
    rows = [
        "# Other programs on the machine of a run",
        "",
        f"`python benchmarks/busy_machine.py {rounds}` on {os.cpu_count()} cores: ddp, 2 ranks, "
        "ResNet-20 on digits of 16 x 16 pixels. Ratios are to the run of the same round without "
        "the other program; their mean has its 95 % interval (Student's t).",
        "",
        "| The other program asks for (cores) | Others, as the run records (of all cores) "
        "| Images/s, over those alone |",
        "| --- | --- | --- |",
    ]
    for cores in CORES:
        ratios = [one / base for one, base in zip(speeds[cores], speeds[0.0], strict=True)]
        half = stats.t.ppf(0.975, rounds - 1) * stats.sem(ratios)
        mean = statistics.mean(ratios)
        ratio = f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]" if cores else "1"
        shares = f"{min(taken[cores]):.0%} to {max(taken[cores]):.0%}"
        rows.append(f"| {cores:g} | {shares} | {ratio} (n = {rounds}) |")
    text = "\n".join(rows) + "\n"
    (HERE / "results" / "busy_machine.md").write_text(text)
    print(text)


def compute(cores: float) -> None:
    """Compute for that part of the time."""
    while True:
        began = time.perf_counter()
        while time.perf_counter() - began < cores * _PERIOD_S:
            pass
        time.sleep(max(0.0, (1 - cores) * _PERIOD_S))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
