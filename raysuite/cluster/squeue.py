"""A cluster as a SLURM job: submitted, asked about and cancelled by SLURM's own programs."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.cluster import private
from raysuite.cluster.backend import JobState
from raysuite.cluster.files import Cluster
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.slurm import Job, render
from raysuite.cluster.slurm_ask import NoSlurmError, SlurmError, ask
from raysuite.errors import UserError
from raysuite.spec.site import SlurmSite

_PATIENCE_S = 60.0
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}


class SlurmBackend:
    """One job a cluster."""

    def start(self, folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> Cluster:
        private.replace(folder.script, script(folder, cluster, command))
        said = _ask(["sbatch", "--parsable", str(folder.script)])
        return cluster.model_copy(update={"job": said.strip().partition(";")[0]})

    def state(self, cluster: Cluster) -> JobState:
        if not cluster.job:
            return JobState("gone")
        try:
            said = _ask(["squeue", "--noheader", f"--jobs={cluster.job}", "--format=%T|%r|%N"])
        except SlurmError as error:
            # a job is forgotten a few minutes after its end
            gone = "Invalid job id" in str(error)
            return JobState("gone" if gone else "unknown", reason="" if gone else str(error))
        return parse_state(said)

    def end(self, cluster: Cluster) -> None:
        waits = self.state(cluster).phase == "waiting"
        self._cancel(cluster, *([] if waits else ["--signal=TERM"]))

    def kill(self, cluster: Cluster) -> None:
        self._cancel(cluster)

    def _cancel(self, cluster: Cluster, *options: str) -> None:
        try:
            _ask(["scancel", *options, cluster.job])
        except SlurmError:
            state = self.state(cluster)  # slurmctld signals no job that has ended, or just ends
            if state.phase != "gone" and state.state != "COMPLETING":
                raise


def script(folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> str:
    """The batch script of a cluster."""
    assert isinstance(cluster.site, SlurmSite)
    return render(
        Job(
            cluster.name,
            cluster.site,
            cluster.nodes,
            str(folder.path),
            cluster.working_folder,
            command,
        )
    )


def parse_state(said: str) -> JobState:
    """What `squeue --format=%T|%r|%N` said of one job; nothing at all means that it is gone."""
    line = said.strip().splitlines()[0] if said.strip() else ""
    state, _, rest = line.partition("|")
    reason, _, names = rest.partition("|")
    if state in _WAITING:
        return JobState("waiting", state, reason)
    if state in _RUNNING:
        return JobState("running", state, "" if reason == "None" else reason, (names,))
    return JobState("gone", state, reason)


def host_names(names: str) -> list[str]:
    """`node[1-3]` as SLURM spells it out; the names as they are where it does not answer."""
    try:
        return _ask(["scontrol", "show", "hostnames", names]).split()
    except (SlurmError, UserError):
        return [names]


def _ask(words: Sequence[str]) -> str:
    """Raises UserError where the program is not there, SlurmError where it fails."""
    try:
        return ask(words, timeout_s=_PATIENCE_S)
    except NoSlurmError as error:
        raise UserError(
            f"{words[0]} is not found: a site of kind slurm is used on a login node of it; on "
            "this machine alone, leave SITE out"
        ) from error
    except SlurmError as error:
        raise SlurmError(f"{words[0]}: {error.said}") from error
