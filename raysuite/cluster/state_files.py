"""The files of a cluster's folder. Readers ignore unknown keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from raysuite.spec.site import Site

NodeState = Literal["starting", "joined", "ended", "failed"]
NONCE = "nonce"
"""A file in a node's temporary folder; its content is also in `Node.nonce`. The next agent on
the host removes the folder only if the content of the file equals `Node.nonce`."""
StopReason = Literal["time_limit", "preempted", "down"]


class File(BaseModel):
    """A file of the folder; it is replaced as a whole, and never changed in place."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Cluster(File):
    """cluster.json: the arguments of `cluster up`, and the cluster's job."""

    name: str
    site: Annotated[Site, Field(discriminator="kind")]
    nodes: int
    """The smallest number of nodes with which the cluster is up."""
    most_nodes: int = 0
    """The largest number of nodes that SLURM may allocate; 0: exactly `nodes`."""
    created: float
    """Time in seconds since 1970."""
    working_folder: str
    """The folder in which `cluster up` was called; jobs start there."""
    hosts: tuple[str, ...] = ()
    """The hosts of the cluster, the head first; empty unless the site's kind is `hosts`."""
    host_indices: tuple[int, ...] = ()
    """Index of each host in the scheduler's list, which may name a host several times."""
    job: str = ""
    """SLURM's job id; for other kinds of sites, the id of the cluster's process, which is the agent
    or, for kind `hosts`, the process that starts the agents. Empty until known."""
    slurm_cluster: str = ""
    """Name of the SLURM cluster, as `sbatch` prints it, if `--clusters` or an environment variable
    selected the cluster; else empty."""
    birth: str = ""
    """If the job is a process: an id that no later process with the same process id has."""
    host: str = ""
    """If the job is a process: its host. Other hosts that share the folder cannot see it."""

    @property
    def backend(self) -> Literal["local", "slurm", "hosts"]:
        return self.site.kind

    @property
    def is_process(self) -> bool:
        """Whether the cluster's job is a process, which other hosts cannot see."""
        return self.backend != "slurm"


class Head(File):
    """head.json: the cluster's addresses, written before its servers answer, and again afterwards.

    The URLs are for clients, which may be on a different network from the nodes.
    """

    host: str
    gcs: str
    """HOST:PORT for `ray.init` and `raysuite run --address`."""
    dashboard: str
    """URL for `ray job submit`."""
    client: str = ""
    """URL for Ray Client: `ray.init` from outside the cluster."""
    mlflow: str
    """URL of MLflow's server; empty if the server could not be started."""
    mlflow_answers: bool = False
    """Whether MLflow's server answers; the cluster can be up before it does."""
    mlflow_error: str = ""
    incarnation: str = ""
    """An id that is new whenever the cluster's agents are started, and equal on all nodes."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mlflow_inside(self) -> str:
        """MLflow's URL for the nodes: they may need another address of the head than clients do."""
        port = self.mlflow.rpartition(":")[2]
        return self.mlflow and f"http://{self.gcs.rpartition(':')[0]}:{port}"


class Node(File):
    """nodes/HOST.json: the state of a node."""

    host: str
    state: NodeState
    index: int = 0
    """0 for the head."""
    address: str = ""
    pid: int = 0
    """Process id of the agent on that host."""
    message: str = ""
    incarnation: str = ""
    temp: str = ""
    nonce: str = ""
    """The content of the file NONCE in the node's temporary folder."""
    began: float = 0.0
    """Start time of the agent's process, in seconds since 1970."""
    birth: str = ""
    """An id that no later process with the agent's pid has."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Durations of the phases of the node's start, in seconds."""


class Alive(File):
    """nodes.json: the nodes that Ray counts as alive, written by the head's agent."""

    addresses: tuple[str, ...] = ()
    cpus: float = 0.0
    gpus: float = 0.0
    incarnation: str = ""


class Stop(File):
    """stop.json: why and when the cluster ends."""

    reason: StopReason
    deadline: float
    """Time by which jobs have to stop, in seconds since 1970."""


class Mlflow(File):
    """mlflow.json: the user of the cluster's MLflow server."""

    username: str
    password: str


class Timings(File):
    """timings.json: durations of the phases of `cluster up`, in seconds."""

    seconds: dict[str, float] = Field(default_factory=dict)
