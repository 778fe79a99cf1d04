"""A user's cluster in the lab with a suite under way on it, and what can be asked of both."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from raysuite.cluster.dashboard import RUNNING, Dashboard, NoAnswerError
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Head, Node
from raysuite.errors import UserError
from raysuite.orchestrate.groups import checkpoint_folder
from raysuite.records import Record, Results, RunFailed
from raysuite.train.checkpoint import LoopState, latest_checkpoint
from tests.lab.place import LabPlace

WAIT_S = 600.0
"""For whatever has to happen next: these machines have few cores, and share them."""
SPEC = """\
name: {name}
model: holding:Net
strategy: ddp
data: digits
training: {{epochs: 4, global_batch: 240}}
measure: {{warmup_steps: 2}}
resources: {{device: cpu, workers: 3, placement: spread}}
matrix: {{"seed, resources.fresh_workers": {rows}}}
"""
SITE = """\
kind: slurm
description: three hosts of the lab, whose cluster comes back
partition: lab
time: 00:{minutes}:00
nodes: 3
cpus_per_node: 2
requeue: true
head_restarts: {restarts}
warn_seconds: 60
start_timeout_seconds: 500
"""
SUBMIT = """
set -e
eval "$(raysuite cluster status faults --env)"
ray job submit --no-wait -- raysuite run {name}.yaml --quiet
"""


@dataclass(frozen=True)
class Held:
    """A worker that waits in mid-run."""

    host: str
    pid: int
    """On that host."""


class FaultCluster:
    """Three hosts of two CPUs, one worker on each: what is left holds all when one is lost."""

    def __init__(self, lab: LabPlace) -> None:
        self.lab = lab
        self.home = lab.lab.home("hpc1")
        self.folder = ClusterFolder(self.home / ".raysuite" / "clusters" / "faults")
        self._name = ""

    # the cluster

    def up(self, minutes: int = 45, restarts: int = 5, at_once: int = 1) -> None:
        """Bring it up, for so many minutes and starts of its head, by so many commands at once,
        which start one job."""
        model = Path(__file__).with_name("holding.py").read_text("utf-8")
        site = SITE.format(minutes=minutes, restarts=restarts)
        for name, text in (("holding.py", model), ("faults.yaml", site)):
            self.lab.run("tee", name, text_in=text)
        words = ("raysuite", "cluster", "up", "--site", "./faults.yaml")

        def command(_: int) -> subprocess.CompletedProcess[str]:
            return self.lab.run(*words, check=at_once == 1, timeout_s=900)

        with ThreadPoolExecutor(at_once) as pool:
            ended = list(pool.map(command, range(at_once)))
        assert 0 in [each.returncode for each in ended], [each.stderr for each in ended]
        jobs = self.lab.out("squeue", "-h", "-u", "hpc1", "-o", "%i").split()
        assert jobs == [self.job], [each.stderr for each in ended]

    def down(self) -> None:
        """Take it down, whatever became of it."""
        self.lab.run("raysuite", "cluster", "down", "--all", check=False, timeout_s=300)

    @property
    def job(self) -> str:
        """SLURM's number."""
        return self.folder.cluster().job

    def head(self) -> Head:
        """Where it answers."""
        head = self.folder.head()
        assert head is not None
        return head

    def node(self, host: str) -> Node:
        """What the agent of a host said last."""
        return next(node for node in self.folder.nodes() if node.host == host)

    def incarnation(self) -> str:
        """Of the start of the step that the head tells of; empty between two."""
        head = self.folder.head()
        return head.incarnation if head else ""

    def driver(self) -> int:
        """The process, on the head's host, that drives the suite; 0 between two."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            lock = json.loads((self.results().folder / "driver.lock").read_text("utf-8"))
            return int(lock["pid"])
        return 0

    def processes(self, host: str) -> dict[int, str]:
        """What runs as hpc1 on a host: pid there -> command line."""
        words = ("ps", "-u", "hpc1", "-o", "pid=,args=")
        said = self.lab.run(*words, host=host, user=None, check=False).stdout
        rows = (line.split(None, 1) for line in said.splitlines())
        return {int(pid): args for pid, args in rows}

    def find(self, host: str, word: str) -> int:
        """The process on a host whose program's path ends so."""
        found = [
            pid for pid, args in self.processes(host).items() if args.split()[0].endswith(word)
        ]
        assert found, f"no {word} on {host}"
        return found[0]

    def kill(self, host: str, *pids: int, signal: str = "KILL") -> None:
        """Send a signal to processes; a negative number is a group of them."""
        words = [str(pid) for pid in pids]
        self.lab.run("kill", f"-{signal}", "--", *words, host=host, user=None)

    # the suite

    def submit(self, name: str, alone: list[bool]) -> None:
        """Hand in a suite of a run for each, with seeds from 0, and one that nothing happens to.

        All but that one, the last, wait in mid-run. Those that are `alone` share their workers
        with no other, so that MLflow is told of each as it ends; such runs come after the others.
        """
        self._name = name
        for seed in range(len(alone)):
            self.hold_file(seed).touch()
            (self.home / f"held-{seed}").unlink(missing_ok=True)
        rows = json.dumps([[seed, each] for seed, each in enumerate([*alone, True])])
        self.lab.run("tee", f"{name}.yaml", text_in=SPEC.format(name=name, rows=rows))
        self.lab.run("bash", text_in=SUBMIT.format(name=name), timeout_s=300)

    def hold_file(self, seed: int) -> Path:
        return self.home / f"hold-{seed}"

    def release(self, seed: int) -> None:
        """Let a run go on."""
        self.hold_file(seed).unlink(missing_ok=True)

    def results(self) -> Results:
        return Results.open(self.home / "results" / self._name)

    def run_id(self, seed: int) -> str:
        """The run of a seed."""
        return next(str(p["run_id"]) for p in self.results().plans() if p["seed"] == seed)

    def records(self, seed: int, kind: type[Record]) -> list[Record]:
        """What the journal of a run holds of one kind."""
        found = self.results().records(self.run_id(seed))
        return [record for record in found if isinstance(record, kind)]

    def held(self, seed: int) -> Held:
        """Wait until a run is in its midst, with two epochs in a checkpoint that Ray knows of."""
        file = self.home / f"held-{seed}"
        self.wait(file.exists, f"run {seed} in its midst")
        self.wait(lambda: self._has_checkpoint(seed), f"a checkpoint of run {seed}")
        return Held(**json.loads(file.read_text("utf-8")))

    def _has_checkpoint(self, seed: int) -> bool:
        run_id, results = self.run_id(seed), self.results()
        found, _ = latest_checkpoint(checkpoint_folder(results, run_id), run_id, epochs=2)
        with contextlib.suppress(OSError, ValueError):  # removed or written just now
            return found is not None and LoopState.read(found).epoch == 2
        return False

    def failed(self) -> str:
        """What runs that failed say; one whose journal is damaged is trained again."""
        with contextlib.suppress(UserError):  # no results yet
            results = self.results()
            ends = [results.end_of(plan["run_id"]) for plan in results.plans()]
            failed = [each for each in ends if isinstance(each, RunFailed)]
            return "\n".join(str(each) for each in failed if each.reason != "damaged")
        return ""

    def has_ended(self) -> bool:
        """Whether every run has an end, the cluster has no suite left, and its job is over."""
        with contextlib.suppress(NoAnswerError, OSError):
            results = self.results()
            if any(results.end_of(plan["run_id"]) is None for plan in results.plans()):
                return False
            if list(self.folder.suites.glob("*.json")):
                return False
            jobs = Dashboard(self.head().dashboard, self.folder.token()).jobs()
            return all(job.status not in RUNNING for job in jobs)
        return False

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until it is so; a run that failed is waited for no longer.

        A failure tells what the cluster's logs say.
        """
        try:
            self.lab.wait(lambda: condition() or bool(self.failed()), WAIT_S)
            assert not self.failed(), self.failed()
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}\n{self.tails()}") from error

    def tails(self) -> str:
        """The ends of the cluster's logs."""
        logs = sorted(self.folder.logs.glob("*.log"))
        parts = (f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)
        return "\n".join(parts)
