"""Measure the start of larger worlds: 8 and 32 workers on one machine.

    python benchmarks/worlds.py [WORKERS ...]

`python -m raysuite.train` runs ddp, horovod and deepspeed, with the gate and two epochs each. Its
processes share this machine's cores, and are forks of one process that has loaded the libraries.
The table has for each run the seconds to join the group, for the gate and to the first step; and,
as means over ranks, requests to the store or to Horovod's rendezvous, and TCP connections before
the first epoch. ddp is run once more with Gloo connecting all pairs of ranks at the start, as torch
does by default. Writes benchmarks/results/worlds.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.ranks import DEEPSPEED, ranks  # noqa: E402

SPEC = """
name: worlds
model: resnet20
data: {name: digits, image_size: 8}
training: {epochs: 2, global_batch: 256}
measure: {warmup_steps: 1}
resources: {device: cpu}
matrix: {strategy: [ddp, horovod, deepspeed]}
"""
meetings: dict[int, float] = {}
"""Number of ranks -> milliseconds of the reduction that `meeting` times."""
EAGER = "ddp, all connected"
HEAD = f"""\
# Start of larger worlds on one machine

`python benchmarks/worlds.py` on {os.cpu_count()} cores, n = 1 each; ResNet-20 on digits of 8 x 8
pixels, global batch 256, 2 epochs, the gate not cached. Requests and connections are means over
ranks. *{EAGER}*: `TORCH_GLOO_LAZY_INIT=0`, torch's default. The first step of a ddp holds the
making of the data set.

| Workers | Strategy | Join (s) | Gate (s) | First step (s) | Run (s) | Requests per rank | Connections per rank | Peak of a process (MiB) |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""  # noqa: E501


def main(sizes: list[int]) -> None:
    lines = [HEAD.rstrip()]
    for workers in sizes:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            lines += measured(workers, Path(folder), "1")
            lines += measured(workers, Path(folder) / "eager", "0", "strategy=ddp")
            print(f"{workers} workers: {time.monotonic() - began:.0f} s", flush=True)
    lines += ["", "A reduction of three numbers by Gloo, as the ranks of a run make one a second: "]
    lines[-1] += "; ".join(f"{each:.2f} ms with {n} ranks" for n, each in meetings.items())
    text = "\n".join(lines) + ".\n"
    (HERE / "results" / "worlds.md").write_text(text)
    print(text)


def measured(workers: int, folder: Path, lazy: str, *overrides: str) -> list[str]:
    """Rows of the table."""
    from raysuite.records import GateVerdict, Results, RunFinished

    folder.mkdir(exist_ok=True)
    spec = folder / "worlds.yaml"
    spec.write_text(SPEC if not overrides else SPEC.partition("matrix")[0])
    os.environ.update(TORCH_GLOO_LAZY_INIT=lazy, RAYSUITE_CACHE=str(folder / "cache"))
    asked = [spec, "--results", folder / "results", f"resources.workers={workers}", *overrides]
    ranks(workers, "benchmarks.worlds", "rank", folder, *asked, loaded=DEEPSPEED, timeout_s=1500)
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]
    found = [each["runs"] for each in told]
    meetings.setdefault(workers, 1000 * max(each["meeting"] for each in told))
    results, rows = Results.open(folder / "results"), []
    for run_id in sorted(found[0], key=lambda each: found[0][each]["order"]):
        end = results.end_of(run_id)
        assert isinstance(end, RunFinished), end
        verdict = next(r for r in results.records(run_id) if isinstance(r, GateVerdict))
        assert verdict.passed
        assert not verdict.cached
        name = EAGER if lazy == "0" else verdict.strategy
        parts, of = end.parts_seconds, [each[run_id] for each in found]
        mean = {key: sum(each[key] for each in of) / workers for key in ("requests", "connections")}
        cells = [parts["join"], parts["gate"], end.first_step_seconds, end.seconds]
        rows.append(
            f"| {workers} | {name} | {' | '.join(f'{each:.1f}' for each in cells)} | "
            f"{mean['requests']:.0f} | {mean['connections']:.0f} | "
            f"{max(end.peak_process_bytes) >> 20} |"
        )
        print(rows[-1], flush=True)
    return rows


def rank(folder: Path, asked: list[str]) -> int:
    """Train as one rank, and count its requests to the store and to the rendezvous in each run."""
    from horovod.runner.http.http_server import RendezvousHandler
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

    from raysuite.measure import transport
    from raysuite.parallel import comm
    from raysuite.train import __main__ as train

    number = int(os.environ["RANK"])
    inner = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    count = {"store": 0, "rendezvous": 0}
    found: dict[str, Any] = {}

    class Counting(Store):
        """The store of the ranks, which counts each call as a request."""

    def counted(name: str) -> None:
        def call(self: Any, *arguments: Any) -> Any:
            count["store"] += 1
            return getattr(inner, name)(*arguments)

        setattr(Counting, name, call)

    for name in ("set", "get", "add", "check", "wait", "compare_set", "delete_key", "num_keys"):
        counted(name)
    comm.use_store(Counting())
    for name in ("do_GET", "do_PUT"):
        real = getattr(RendezvousHandler, name)

        def handle(self: Any, real: Any = real) -> None:
            count["rendezvous"] += 1
            real(self)

        setattr(RendezvousHandler, name, handle)
    names = transport.Transport.names
    state: dict[str, int] = {}

    def counting_names(self: transport.Transport) -> list[str]:
        state.update(count, connections=len(transport.connections() - self._before))
        return names(self)

    transport.Transport.names = counting_names  # type: ignore[method-assign]
    real_run = train._run

    def run(plan: Any, *others: Any) -> Any:
        before = dict(count)
        end = real_run(plan, *others)
        # rank 0's process answers the rendezvous requests of all ranks
        requests = state["store"] - before["store"] + state["rendezvous"] - before["rendezvous"]
        found[plan.run_id] = {
            "order": len(found),
            "requests": requests,
            "connections": state["connections"],
        }
        return end

    train._run = run
    code = train.main(asked)
    (folder / f"{number}.json").write_text(json.dumps({"runs": found, "meeting": meeting()}))
    return code


def meeting() -> float:
    """Seconds of a reduction of three numbers over all ranks, as runs make one a second."""
    import torch

    from raysuite.parallel.comm import TorchComm, join_torch_group, leave_torch_group

    cpu = torch.device("cpu")
    join_torch_group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), cpu)
    comm = TorchComm(cpu)
    for count in (5, 50):  # the first 5 make the connections
        began = time.perf_counter()
        for _ in range(count):
            comm.begin_max(torch.zeros(3, dtype=torch.float64))()
    seconds = (time.perf_counter() - began) / count
    leave_torch_group()
    return seconds


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        sys.exit(rank(Path(sys.argv[2]), sys.argv[3:]))
    main([int(each) for each in sys.argv[1:]] or [8, 32])
