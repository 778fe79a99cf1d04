"""What Horovod's timeline costs where it is on from the start, as raysuite had it in every run.

    python benchmarks/horovod_timeline.py [ROUNDS]

ddp, horovod, and horovod with HOROVOD_TIMELINE=DYNAMIC, which starts its writer: the same training
by `python -m raysuite.train` on two ranks, in turn, each round in the reverse order of the last;
images per second as ratios to ddp's of the round. Then the processor time of two ranks that have
joined and do nothing. Written to benchmarks/results/horovod_timeline.md.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from scipy import stats

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from raysuite.records import Results, RunFigures, run_figures  # noqa: E402
from tests.ranks import ranks  # noqa: E402

WORKERS, IDLE_S = 2, 15.0
SPEC = f"""
name: timeline
model: resnet20
data: {{name: digits, image_size: 16}}
strategy: ddp
training: {{epochs: 4, global_batch: 64}}
resources: {{device: cpu, workers: {WORKERS}}}
"""
VARIANTS = {
    "ddp": ("ddp", {}),
    "horovod": ("horovod", {}),
    "horovod, timeline on": ("horovod", {"HOROVOD_TIMELINE": "DYNAMIC"}),
}


def main(rounds: int) -> None:
    speeds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAYSUITE_CACHE"] = f"{folder}/cache"
        for number in range(rounds):
            for name in list(VARIANTS)[:: 1 if number % 2 == 0 else -1]:
                run = trained(*VARIANTS[name], Path(folder) / f"{name}-{number}")
                assert run.throughput is not None
                speeds[name].append(run.throughput)
        idle = {name: idling(name, Path(folder)) for name in list(VARIANTS)[1:]}
    rows = [
        "# Horovod with and without its timeline",
        "",
        f"`python benchmarks/horovod_timeline.py {rounds}` on {os.cpu_count()} cores, {WORKERS} "
        f"ranks, ResNet-20 on digits of 16 x 16 pixels, global batch 64. Ratios are of one round; "
        f"their geometric mean has its 95 % interval (Student's t). Idle: processor time of a rank "
        f"that has joined and waits {IDLE_S:.0f} s, as a share of a core; the larger of two.",
        "",
        "| | Images/s, median | Over ddp's | Idle rank (cores) |",
        "| --- | --- | --- | --- |",
    ]
    for name, found in speeds.items():
        logs = [math.log(one / base) for one, base in zip(found, speeds["ddp"], strict=True)]
        mean, half = statistics.mean(logs), stats.t.ppf(0.975, rounds - 1) * stats.sem(logs)
        ends = (math.exp(each) for each in (mean, mean - half, mean + half))
        ratio = "1" if name == "ddp" else "{:.3f} [{:.3f}, {:.3f}]".format(*ends)
        cores = f"{idle[name]:.3f}" if name in idle else ""
        rows.append(
            f"| {name} | {statistics.median(found):,.0f} | {ratio} (n = {rounds}) | {cores} |"
        )
    text = "\n".join(rows) + "\n"
    (HERE / "results" / "horovod_timeline.md").write_text(text)
    print(text)


def trained(strategy: str, variables: dict[str, str], folder: Path) -> RunFigures:
    """One run's figures."""
    folder.mkdir()
    (folder / "timeline.yaml").write_text(SPEC)
    words = (folder / "timeline.yaml", "--results", folder / "results", f"strategy={strategy}")
    called("raysuite.train", *words, variables=variables)
    results = Results.open(folder / "results")
    (plan,) = results.plans()
    return run_figures(plan, results.records(plan["run_id"]))


def idling(name: str, folder: Path) -> float:
    """Cores that an idle rank takes."""
    called("benchmarks.horovod_timeline", "idle", folder, variables=VARIANTS[name][1])
    return max(float((folder / f"idle-{rank}").read_text()) for rank in range(WORKERS))


def called(module: str, *words: object, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    try:
        ranks(WORKERS, module, *words)
    finally:
        for variable in variables:
            del os.environ[variable]


def idle_rank(folder: Path) -> None:
    from raysuite.parallel import make_strategy
    from raysuite.spec.strategies import HorovodOptions
    from raysuite.train.world import world_from_environment

    world = world_from_environment("cpu")
    strategy = make_strategy(HorovodOptions())
    strategy.start(world)
    time.sleep(1.0)
    began = time.process_time()
    time.sleep(IDLE_S)
    (folder / f"idle-{world.rank}").write_text(str((time.process_time() - began) / IDLE_S))
    strategy.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["idle"]:
        idle_rank(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
