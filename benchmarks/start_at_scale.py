"""Estimate the cost of a run's start on up to 1,024 nodes: messages counted per rank, multiplied
by the cost measured per message.

    python benchmarks/start_at_scale.py

Counted: the requests of a rank until its first epoch, by strategy, in benchmarks/results/worlds.md
(8 and 32 real ranks); and the file calls of an agent and of a rank during their imports (strace).
Measured: the server's processor time for a connection and for a request. The server is torch's
TCPStore, or Horovod's rendezvous, a Python process. Not measured, and therefore in no figure:
networks, a site's shared file system, and the start of NCCL and of Ray. Writes
benchmarks/results/start_at_scale.md.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

HERE = Path(__file__).parent
NODES = (1, 8, 64, 256, 1024)
PER_NODE = 4
REPEATS = 5
TRIED = 2_000
"""Number of requests in a repeat."""
CLIENTS = 200
RATE = 100_000
"""Calls per second of a file system: an example, because no site's file system was measured."""
IMPORTS = {
    "the agent of a node": "import raysuite.cluster.agent.__main__",
    "a rank, with torchvision": "import ray, raysuite.orchestrate.worker, raysuite.train.run, "
    "torchvision",
}
TCP_STORE = """
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("key", "v" * 64)
print(store.port, flush=True)
input()
"""
RENDEZVOUS = """
from horovod.runner.http.http_server import RendezvousServer
server = RendezvousServer(0)
print(server.start(), flush=True)
server.init([])
input()
"""
_ROW = re.compile(r"\| (\d+) \| ([\w, ]+?) \|(?: [\d.]+ \|){4} (\d+) \|")
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((?:.*?<(/[^>]*)>)?.*= (-?\d+)")
_PATH = re.compile(r'"(/[^"]*)"')
_BY_DESCRIPTOR = ("read", "pread64", "getdents64")
_OUTSIDE = ("/proc", "/sys", "/dev")


class Line(NamedTuple):
    """Requests of one rank among N ranks: constant + slope * N."""

    constant: float
    slope: float

    def of_all(self, ranks: int) -> float:
        return ranks * (self.constant + self.slope * ranks)


def counted(page: str) -> dict[str, Line]:
    """Strategy -> line through its two worlds in worlds.md; flat if they differ by at most 1."""
    found: dict[str, dict[int, int]] = {}
    for ranks, strategy, requests in _ROW.findall(page):
        found.setdefault(strategy, {})[int(ranks)] = int(requests)
    lines = {}
    for strategy, worlds in found.items():
        (few, less), (many, more) = sorted(worlds.items())
        slope = (more - less) / (many - few) if more - less > 1 else 0.0
        lines[strategy] = Line(more - slope * many, slope)
    return lines


# A request


def connect_store(port: int) -> Callable[[], object]:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port)
    return lambda: store.get("key")


def connect_rendezvous(port: int) -> Callable[[], object]:
    """Return a call that makes one request; like Horovod, it opens a new connection."""

    def get() -> None:
        client = http.client.HTTPConnection("127.0.0.1", port)
        client.request("GET", "/scope/key")
        client.getresponse().read()
        client.close()

    return get


def server_costs(code: str, connect: Callable[[int], Callable[[], object]]) -> tuple[float, float]:
    """Processor seconds of a server for a connection and for a request: medians of repeats.
    Measure on an idle machine: with other programs a request took 1.5 times as long."""
    words = [sys.executable, "-c", code]
    joined, answered = [], []
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for _ in range(REPEATS):
            began = busy_s(server.pid)
            clients = [connect(port) for _ in range(CLIENTS)]
            connected = busy_s(server.pid)
            for number in range(TRIED):
                clients[number % CLIENTS]()
            joined.append((connected - began) / CLIENTS)
            answered.append((busy_s(server.pid) - connected) / TRIED)
        server.communicate("\n")
    return median(joined), median(answered)


def busy_s(pid: int) -> float:
    """Processor seconds of a process, including its threads that have ended."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


# Files


def file_calls(code: str) -> tuple[Counter[str], int]:
    """Count the calls that name a file, and those that read one, while `code` runs; and the bytes.

    The second of two runs counts, because the first may write byte code. The bytes do not include
    pages of memory-mapped libraries, which are read without a call.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        words = ["strace", "-f", "-y", "-qq", "-s", "256", "-o", str(log)]
        words += ["-e", "trace=%file,read,pread64,getdents64", sys.executable, "-c", code]
        for _ in range(2):
            subprocess.run(words, check=True, capture_output=True)
        lines = log.read_text(errors="replace").splitlines()
    calls: Counter[str] = Counter()
    content = 0
    for line in lines:
        if not (match := _CALL.match(line)):
            continue
        name, descriptor, result = match[1], match[2], int(match[3])
        path = _PATH.search(line)
        target = descriptor if name in _BY_DESCRIPTOR else path and path[1]
        if not target or target.startswith(_OUTSIDE):
            continue
        reads = name in _BY_DESCRIPTOR[:2]
        calls["reads" if reads else "names"] += 1
        content += max(result, 0) if reads else 0
    return calls, content


# The page


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (header, ["---"] * len(header), *lines)] + [""]


def seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def page(
    lines: dict[str, Line],
    store: tuple[float, float],
    rendezvous: tuple[float, float],
    files: dict[str, tuple[Counter[str], int]],
) -> list[str]:
    """The lines of the page."""
    agent, a_rank = files.values()
    sizes = [(nodes, nodes * PER_NODE) for nodes in NODES]
    _, per_request = rendezvous

    def served(strategy: str, size: int) -> float:
        requests = lines[strategy].of_all(size)
        if strategy == "horovod":
            return requests * per_request
        return size * store[0] + requests * store[1]

    def files_of(nodes: int, size: int) -> list[str]:
        calls = nodes * agent[0].total() + size * a_rank[0].total()
        content = nodes * agent[1] + size * a_rank[1]
        return [f"{calls:,}", seconds(calls / RATE), f"{content / 1e9:,.3g}"]

    def words_of(line: Line) -> str:
        return f"{line.constant:.3g}" + (f" + {line.slope:.3g} N" if line.slope else "")

    return [
        "# What the start costs on up to 1,024 nodes: an estimate",
        "",
        f"`python benchmarks/start_at_scale.py`, {PER_NODE} ranks a node. Counts per rank, times "
        "what one message costs the one server that answers all ranks: the least time of the "
        "start. Networks, NCCL's own start and Ray's are not in it.",
        "",
        "## Seconds of the server, by strategy",
        "",
        *table(
            ["Nodes", "Ranks", *lines],
            [
                [f"{nodes:,}", f"{size:,}", *(seconds(served(name, size)) for name in lines)]
                for nodes, size in sizes
            ],
        ),
        "*ddp, all connected* is torch's default, `TORCH_GLOO_LAZY_INIT=0`; raysuite sets 1, with "
        "which two ranks connect when they first exchange something. Where the seconds of "
        "horovod exceed its limit of max(60, N/2) s, a larger `HOROVOD_GLOO_TIMEOUT_SECONDS` is "
        "needed.",
        "",
        *table(
            ["Strategy", "Requests of one of N ranks until its first epoch"],
            [[name, words_of(line)] for name, line in lines.items()],
        ),
        "Counted with 8 and 32 ranks ([worlds.md](worlds.md)); the line through both.",
        "",
        *table(
            ["Server", "µs for a connection", "µs for a request"],
            [
                ["torch's TCPStore", *(f"{1e6 * each:.3g}" for each in store)],
                ["Horovod's rendezvous", "with each request", f"{1e6 * per_request:.3g}"],
            ],
        ),
        f"Processor time, medians of {REPEATS} times {TRIED:,} requests of {CLIENTS} clients.",
        "",
        "## Software on a file system that all nodes share",
        "",
        *table(
            ["Nodes", "Ranks", "Calls", f"Seconds at {RATE:,} calls a second", "GB read"],
            [[f"{nodes:,}", f"{size:,}", *files_of(nodes, size)] for nodes, size in sizes],
        ),
        "The rate is an example; no site's was measured. With an image on each node's own disk "
        "the shared file system has none of these calls.",
        "",
        *table(
            ["Until its imports are over", "Calls that name a file", "that read one", "MB read"],
            [
                [what, f"{calls['names']:,}", f"{calls['reads']:,}", f"{content / 1e6:.3g}"]
                for what, (calls, content) in files.items()
            ],
        ),
        f"Hardware: {os.cpu_count()} logical cores. Versions: torch {version('torch')}, horovod "
        f"{version('horovod')}, ray {version('ray')}, Python {sys.version.split()[0]}.",
    ]


def main() -> None:
    lines = counted((HERE / "results" / "worlds.md").read_text())
    store = server_costs(TCP_STORE, connect_store)
    rendezvous = server_costs(RENDEZVOUS, connect_rendezvous)
    print(store, rendezvous, flush=True)
    files = {what: file_calls(code) for what, code in IMPORTS.items()}
    text = "\n".join(page(lines, store, rendezvous, files)) + "\n"
    (HERE / "results" / "start_at_scale.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
