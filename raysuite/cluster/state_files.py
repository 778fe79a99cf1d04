"""The files of a cluster's folder. Readers skip keys that they do not know."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from raysuite.spec.site import Site

NodeState = Literal["starting", "joined", "ended", "failed"]
NONCE = "nonce"
"""A file in a node's temporary folder, by which the next agent on the host knows it."""
StopReason = Literal["time_limit", "preempted", "down"]


class File(BaseModel):
    """A file of the folder, which is never changed in place."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Cluster(File):
    """cluster.json: the arguments of `cluster up`."""

    name: str
    site: Annotated[Site, Field(discriminator="kind")]
    nodes: int
    """The smallest number of nodes with which the cluster is up."""
    most_nodes: int = 0
    """The largest number that SLURM may allocate; 0: the same as `nodes`."""
    created: float
    """Seconds since 1970."""
    working_folder: str
    """Where `cluster up` was called; jobs start there."""
    hosts: tuple[str, ...] = ()
    """Of a site of kind hosts, the head first."""
    host_indices: tuple[int, ...] = ()
    """Where each is in the scheduler's list, from 0, which may name a host several times."""
    job: str = ""
    """SLURM's job id, or the process id of a local agent; empty until it is known."""
    slurm_cluster: str = ""
    """The SLURM cluster that `sbatch` named, where `--clusters` or a variable chose one."""
    started: float = 0.0
    """When a local agent's process began, seconds since 1970: its pid may be another's later."""
    birth: str = ""
    """Distinguishes that process from a later one of its pid, even if the clock is set."""
    host: str = ""
    """Where a local agent runs: another host that shares the folder cannot see its process."""

    @property
    def backend(self) -> Literal["local", "slurm", "hosts"]:
        return self.site.kind

    @property
    def is_process(self) -> bool:
        """Whether a process of one host is its job: another host cannot see whether it lives."""
        return self.backend != "slurm"


class Head(File):
    """head.json: the cluster's addresses; written at each start, once its servers answer.

    URLs are those for clients, which may be on another network than the nodes.
    """

    host: str
    gcs: str
    """HOST:PORT for `ray.init` and `raysuite run --address`."""
    dashboard: str
    """URL for `ray job submit`."""
    client: str = ""
    """URL for Ray Client: `ray.init` from outside of the cluster; older versions wrote none."""
    mlflow: str
    """URL; empty where MLflow's server could not be started."""
    mlflow_answers: bool = False
    """Whether it answers: the cluster is up before it does."""
    mlflow_error: str = ""
    """Why MLflow's server does not run."""
    attempt: int = 0
    """How often the allocation was queued again before this."""
    incarnation: str = ""
    """Differs with every start of the cluster's step."""
    when: float = Field(default_factory=time.time)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mlflow_inside(self) -> str:
        """MLflow's URL for the nodes, which may know its host by another address than clients."""
        port = self.mlflow.rpartition(":")[2]
        return self.mlflow and f"http://{self.gcs.rpartition(':')[0]}:{port}"


class Node(File):
    """nodes/HOST.json: the state of a node."""

    host: str
    state: NodeState
    index: int = 0
    """0 is the head."""
    address: str = ""
    pid: int = 0
    """The agent's, on that host."""
    message: str = ""
    incarnation: str = ""
    temp: str = ""
    """The node's temporary folder."""
    nonce: str = ""
    """The content of the file NONCE in that folder; another user's folder of that name lacks it."""
    began: float = 0.0
    """When the agent's process began."""
    birth: str = ""
    """Distinguishes that process from a later one of its id, even if the clock is set."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Durations of the phases of its start."""
    when: float = Field(default_factory=time.time)


class Alive(File):
    """nodes.json: the nodes that Ray itself counts as alive, by the head's agent."""

    addresses: tuple[str, ...] = ()
    cpus: float = 0.0
    gpus: float = 0.0
    incarnation: str = ""
    when: float = Field(default_factory=time.time)


class Stop(File):
    """stop.json: the allocation is about to end."""

    reason: StopReason
    deadline: float
    """Seconds since 1970."""


class Mlflow(File):
    """mlflow.json: who may use the cluster's MLflow server."""

    username: str
    password: str


class Timings(File):
    """timings.json: durations of the phases of `cluster up`."""

    seconds: dict[str, float] = Field(default_factory=dict)
