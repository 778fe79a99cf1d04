"""`python -m tests.lab.campaign --faults 30 --seed 1`: faults of all kinds against one suite.

A seeded random schedule over the lab's three hosts; invariants are checked after each fault:

- the run that was struck has finished once, with every epoch and step once;
- what MLflow holds of finished runs equals the journals, and no run is there twice;
- the user's own MLflow runs are there, but for those that the last copy of the database before a
  loss of it did not hold (the server's keeper copies it every three minutes);
- no process of an earlier start of the cluster is left, and no port is open to other hosts but
  at the nodes' addresses.

After the last, the suite is complete, MLflow equals the journals whole, and nothing is left after
`cluster down`. Each fault is one line of Markdown on standard output; exit code 1 at the first
invariant that does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

for _folder in ("deploy", "."):
    sys.path.insert(0, _folder)

from lab import hosts  # noqa: E402
from lab.layout import LOGIN, load  # noqa: E402

from raysuite.records import RunFinished  # noqa: E402
from tests.lab import faults  # noqa: E402
from tests.lab.fault_checks import (  # noqa: E402
    MlflowRest,
    check_hosts,
    check_journal,
    check_journals,
    check_metrics,
    check_mlflow,
    check_nothing_is_left,
    runs_by_id,
)
from tests.lab.fault_cluster import FaultCluster  # noqa: E402
from tests.lab.place import LabPlace, lab_command  # noqa: E402

FOLDER = Path("/var/lib/raysuite-lab-campaign")
NODES = 3
LOSING = ("step", "node", "host")
"""They take a node from the allocation: the next fault starts the cluster on all hosts again."""
RESTARTING = ("head_host", "preempt")
"""`time_limit` is none of them: without accounting, SLURM takes no new time limit for a job that
lost a node until the job is queued again."""
LOSING_DATABASE = ("head_host", "database")
OTHERS = (
    *("worker", "raylet", "head", "agent", "whole_step", "driver", "mlflow", "mlflow_killed"),
    *("results_full", "results_read_only", "scratch_full", "database", "mlflow_six"),
    *("checkpoint_damaged", "journal_damaged", "time_limit"),
)
KINDS = (*LOSING, *RESTARTING, *OTHERS)


def schedule(count: int, seed: int) -> list[str]:
    """Kinds of faults: each as often as any other, as far as a lost node lets them be."""
    draw = random.Random(seed)
    left: list[str] = []
    made: list[str] = []
    while len(made) < count:
        after_loss = bool(made) and made[-1] in LOSING
        fitting = [kind for kind in left if kind in RESTARTING or not after_loss]
        if not fitting:
            left += draw.sample(KINDS, len(KINDS))
            continue
        made.append(fitting[0])
        left.remove(fitting[0])
    return made


@contextmanager
def lab_with_full_disks() -> Iterator[LabPlace]:
    """A lab whose users' homes are a file system of their own, which can be made full."""
    home = FOLDER / "home"
    try:
        _lab("up", "--nodes", str(NODES), "--no-apptainer")
        place = load(FOLDER)
        assert place is not None
        hosts.stop(place, [*place.hosts, LOGIN])  # they see what was mounted before they started
        users = {path.name: path.stat() for path in home.iterdir()}
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g,mode=755", "lab", home], check=True)
        for name, found in users.items():
            (home / name).mkdir(mode=0o700)
            subprocess.run(["chown", f"{found.st_uid}:{found.st_gid}", home / name], check=True)
        _lab("up", "--nodes", str(NODES), "--no-apptainer")
        again = load(FOLDER)
        assert again is not None
        yield LabPlace(again)
    finally:
        last = load(FOLDER)
        if last is not None:
            hosts.stop(last, [*last.hosts, LOGIN])
        subprocess.run(["umount", home], check=False)
        _lab("down")


def _lab(*words: str) -> None:
    done = lab_command(FOLDER, *words)
    assert done.returncode == 0, done.stderr


class Campaign:
    """One suite, its faults, and what must be true after each."""

    def __init__(self, cluster: FaultCluster, kinds: list[str]) -> None:
        self.cluster, self.kinds = cluster, kinds
        self.own: dict[str, tuple[float, float]] = {}
        """The user's own MLflow runs: id -> value and time."""
        self.lost_own = 0
        self._equal: set[str] = set()
        """Runs of which MLflow's metrics were compared."""

    def strike(self, seed: int) -> str:
        """One fault, and the checks after it; a line of the table."""
        kinds, cluster = self.kinds, self.cluster
        alive = cluster.folder.alive()
        nodes = len(alive.addresses) if alive else 0
        if nodes < NODES and kinds[seed] in LOSING:
            # SLURM killed a node's step as the job began anew; two lost nodes leave too few workers
            later = next((n for n in range(seed, len(kinds)) if kinds[n] in RESTARTING), seed)
            kinds[seed], kinds[later] = kinds[later], kinds[seed]
        kind = kinds[seed]
        cluster.held(seed)
        self._log_own(float(seed))
        copied = self._copied()
        began = time.monotonic()
        getattr(faults, kind)(cluster, seed)
        resumed = time.monotonic() - began
        if kind in LOSING_DATABASE:
            self._forget_own_after(copied)
        self._check(seed)
        return (
            f"| {seed + 1} | `{kind}` | {nodes} | {resumed:.0f} | {time.monotonic() - began:.0f} "
            f"| {len(self._equal)} |"
        )

    def finish(self) -> None:
        """Wait for the end of the suite, and check all of it."""
        cluster = self.cluster
        cluster.wait(cluster.has_ended, "the end of the suite")
        check_journals(cluster.results())
        check_mlflow(cluster, cluster.results(), "faults")
        self._check_own()
        cluster.down()
        check_nothing_is_left(cluster)

    def _check(self, seed: int) -> None:
        cluster = self.cluster
        results, run_id = cluster.results(), cluster.run_id(seed)
        cluster.wait(
            lambda: isinstance(results.end_of(run_id), RunFinished), f"the end of run {seed}"
        )
        plans = {plan["run_id"]: plan for plan in results.plans()}
        check_journal(results, plans[run_id])
        cluster.wait(self._mlflow_answers, "MLflow")
        rest = MlflowRest(cluster.folder)
        for each, run in runs_by_id(rest, "faults").items():
            done = run["info"]["status"] == "FINISHED"
            if each and done and each not in self._equal:
                check_metrics(rest, run, results, plans[each])
                self._equal.add(each)
        self._check_own()
        check_hosts(cluster)

    def _mlflow_answers(self) -> bool:
        with contextlib.suppress(AssertionError, OSError):
            MlflowRest(self.cluster.folder).runs("faults")
            return True
        return False

    def _log_own(self, value: float) -> None:
        def log() -> bool:
            with contextlib.suppress(AssertionError, OSError):
                run_id = MlflowRest(self.cluster.folder).log("own", value)
                self.own[run_id] = (value, time.time())
                return True
            return False

        self.cluster.wait(log, "MLflow, for a run of the user's own")

    def _copied(self) -> float:
        with contextlib.suppress(OSError):
            return (self.cluster.folder.mlflow / "mlflow.db").stat().st_mtime
        return 0.0

    def _forget_own_after(self, copied: float) -> None:
        lost = [run_id for run_id, (_, when) in self.own.items() if when > copied - 1.0]
        self.lost_own += len(lost)
        for run_id in lost:
            del self.own[run_id]

    def _check_own(self) -> None:
        if not self.own:
            return
        rest = MlflowRest(self.cluster.folder)
        found = {run["info"]["run_id"] for run in rest.runs("own")}
        assert set(self.own) <= found, set(self.own) - found
        for run_id, (value, _) in self.own.items():
            assert rest.history(run_id, "own") == [(0, value, 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", help="these, in this order, instead of a drawn schedule")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no fault after these")
    given = parser.parse_args()
    kinds = given.kinds.split(",") if given.kinds else schedule(given.faults, given.seed)
    end = time.monotonic() + 60 * given.minutes
    print(f"seed {given.seed}: {', '.join(kinds)}", flush=True)
    print("| # | Fault | Nodes before | Resumed after s | Checked after s | Runs equal in MLflow |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with lab_with_full_disks() as lab:
        cluster = FaultCluster(lab)
        try:
            cluster.up(minutes=59, restarts=1000, at_once=4)
            cluster.submit("faults", [True] * len(kinds))  # MLflow is told of each as it ends
            campaign = Campaign(cluster, kinds)
            for seed in range(len(kinds)):
                if time.monotonic() > end:
                    print(f"time is up after {seed} faults; the rest run untouched")
                    for rest in range(seed, len(kinds)):
                        cluster.release(rest)
                    break
                print(campaign.strike(seed), flush=True)
            campaign.finish()
            print(f"complete; own MLflow runs: {len(campaign.own)} kept, {campaign.lost_own} newer "
                  "than the last copy of a database that was lost")  # fmt: skip
        except AssertionError as error:
            print(f"FAILED: {error}", flush=True)
            traceback.print_exc(file=sys.stdout)
            return 1
        finally:
            cluster.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
