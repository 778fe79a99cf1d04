"""Site: a machine, a SLURM cluster or a list of hosts, on which raysuite starts a Ray cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from raysuite.errors import SpecError
from raysuite.spec.base import Options, suggest
from raysuite.spec.engines import COMMAND, ENGINES, EngineName
from raysuite.spec.site_values import (
    AbsolutePath,
    Bind,
    HostName,
    Image,
    Interface,
    Line,
    Memory,
    Module,
    NodeCount,
    SbatchLine,
    Scratch,
    SlurmTime,
    SrunLine,
    Text,
    environment_mistakes,
    slurm_seconds,
)

if TYPE_CHECKING:
    from raysuite.spec.document import Document

SITE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class MlflowOptions(Options):
    """Where the cluster's MLflow server stores its data."""

    backend: Literal["sqlite", "postgresql"] = "sqlite"
    """`sqlite`: a file on the head's local disk, copied to the cluster's folder at intervals and at
    the end; `postgresql`: a server at the site."""
    url_file: AbsolutePath | None = None
    """For `postgresql`: a file with the URL and password, readable only by its owner."""

    @model_validator(mode="after")
    def _belongs_together(self) -> MlflowOptions:
        if (self.backend == "postgresql") != (self.url_file is not None):
            raise ValueError(
                f"backend is {self.backend} and url_file is {self.url_file}; for backend "
                "postgresql, url_file should be the path of a file with the server's URL; for "
                "backend sqlite, leave url_file out"
            )
        return self


def _checked(environment: dict[str, str]) -> dict[str, str]:
    wrong = environment_mistakes(environment)
    if wrong:
        raise ValueError("; ".join(wrong))
    return environment


Environment = Annotated[dict[str, Text], AfterValidator(_checked)]


class _Site(Options):
    name: str = Field(default="", pattern=SITE_NAME, max_length=60)
    """Name of the site; default: the file name without .yaml."""
    description: str = ""
    """One sentence for `raysuite cluster site show`."""
    engine: EngineName = "apptainer"
    """The container engine. `srun_environment` (environment definition files, as at CSCS) and
    `pyxis` are options of srun."""
    launch: tuple[Line, ...] = ()
    """Instead of an engine: the command line that runs a command on a node. It contains {command},
    and also {image} if `image` is given. Arguments with {binds} are repeated for each bind;
    {mounts} becomes all binds, separated by commas."""
    image: Image | None = None
    """The image in which the cluster runs, in the engine's notation (for apptainer, the path of a
    SIF); default: the machine's own software."""
    binds: tuple[Bind, ...] = ()
    """Folders to mount into the image: SRC, SRC:DST or SRC:DST:ro, with absolute paths."""
    python: AbsolutePath | None = None
    """Without an image: the interpreter that has raysuite; default: the interpreter that runs
    `cluster up`."""
    environment: Environment = Field(default_factory=dict)
    """Environment variables of every process of the cluster. A variable whose name suggests a
    secret is refused."""
    scratch: Scratch = "/tmp"
    """A folder on each node's local disk, in which the cluster makes a temporary folder with a
    short path. Each node replaces `$NAME` by the value of its own variable, as in $TMPDIR or
    /scratch/$USER/$SLURM_JOB_ID."""
    rocm: bool = False
    """Whether the GPUs are AMD's; apptainer then gets --rocm instead of --nv."""
    interface: Interface | None = None
    """The network interface between the nodes (ib0, hsn0, ...); default: loopback on a local site,
    else the interface with the route to the head."""
    client_interface: Interface | None = None
    """The head's network interface over which the login node reaches the dashboard, Ray Client and
    MLflow; default: the interface between the nodes."""
    mlflow: MlflowOptions = MlflowOptions()
    """Where the cluster's MLflow server stores its data."""
    start_timeout_seconds: int = Field(default=600, ge=10)
    """Time limit for the nodes to join, in seconds from the start of the allocation."""

    @property
    def is_sif(self) -> bool:
        """Whether an image is the path of a SIF, which raysuite's apptainer command runs."""
        return self.engine == "apptainer" and not self.launch

    @field_validator("image")
    @classmethod
    def _is_a_path_for_apptainer(cls, image: str | None, info: ValidationInfo) -> str | None:
        plain = info.data.get("engine") == "apptainer" and not info.data.get("launch")
        if image and plain and not image.startswith("/"):
            raise ValueError(
                f"got {image!r}; for apptainer it should be the absolute path of a SIF file, "
                "or begin with ~/; for another engine, set `engine`"
            )
        return image

    @model_validator(mode="after")
    def _keys_belong_together(self) -> Self:
        wrong = []
        engine, text = ENGINES[self.engine], " ".join(self.launch)
        if self.launch and COMMAND not in self.launch:
            wrong.append(f"launch is {list(self.launch)}; one of its words must be {COMMAND}")
        if self.launch and (self.image is None) == ("{image}" in text):
            wrong.append(
                f"launch is {list(self.launch)} and image is {self.image}; "
                "give an image if {image} occurs in launch, and only then"
            )
        if self.image and not self.is_sif and "$" in self.scratch:
            wrong.append(
                f"scratch is {self.scratch}; with an image, variables in scratch need the engine "
                "apptainer, and no `launch`; give a folder without $"
            )
        if self.binds and not engine.binds and not self.launch:
            wrong.append(
                f"binds are given, but {self.engine} does not use them; set `mounts` in its "
                "environment file"
            )
        if engine.step and not self.launch and not isinstance(self, SlurmSite):
            wrong.append(
                f"engine is {self.engine}, which is an option of srun: only a site of "
                "kind slurm can use it"
            )
        time, warn_seconds = getattr(self, "time", None), getattr(self, "warn_seconds", 0)
        if time is not None and slurm_seconds(time) <= warn_seconds:
            wrong.append(
                f"time is {time} and warn_seconds is {warn_seconds}; the warning must come after "
                "the start: make time longer or warn_seconds smaller"
            )
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class LocalSite(_Site):
    """Only this machine."""

    kind: Literal["local"] = "local"
    cpus: int | None = Field(default=None, ge=1)
    """CPUs that Ray schedules; default: those of this machine."""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs that Ray schedules; default: those of this machine."""

    @property
    def has_gpus(self) -> bool:
        return bool(self.gpus)


class SlurmSite(_Site):
    """A SLURM cluster."""

    kind: Literal["slurm"] = "slurm"
    partition: Line | None = None
    """Partition. Here and below, the default is SLURM's unless stated otherwise."""
    account: Line | None = None
    """The account, or project, to charge."""
    qos: Line | None = None
    """Quality of service."""
    constraint: Line | None = None
    """Features that the nodes must have, in the notation of `sbatch --constraint`."""
    reservation: Line | None = None
    """A reservation to run in."""
    time: SlurmTime | None = None
    """Time limit: MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
    nodes: NodeCount = 1
    """Number of nodes, unless `cluster up --nodes` gives it; `2-4`: from 2 to 4, as many as are
    free."""
    cpus_per_node: int | None = Field(default=None, ge=1)
    """CPUs requested on each node; default: all if the nodes are exclusive, else one."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs requested on each node."""
    gpu_type: Line | None = None
    """The GPUs' type in SLURM (a100, ...), if the cluster has several types."""
    memory_per_node: Memory | None = None
    """Memory requested on each node: 0 for all of it, or a size such as 480G; without a letter,
    megabytes."""
    exclusive: bool = False
    """Whether the nodes are reserved only for this job."""
    prologue: tuple[Line, ...] = ()
    """Lines of bash that run on the first node before the modules are loaded: `module purge`,
    `module use FOLDER`, `source FILE`. Variables that these lines export reach all nodes."""
    modules: tuple[Module, ...] = ()
    """Modules to load on the first node by `module load`, in order, before the cluster starts."""
    warn_seconds: int = Field(default=120, ge=1, le=65535)
    """Runs are asked to write a checkpoint and stop this many seconds before the time limit."""
    requeue: bool = False
    """Requeue the cluster's job if a node that it depends on fails, or if the job is preempted."""
    head_restarts: int = Field(default=2, ge=0)
    """Largest number of restarts of the cluster within the allocation after its head died."""
    sbatch_lines: tuple[SbatchLine, ...] = ()
    """Further lines of the batch script, copied unchanged, such as `#SBATCH --mail-type=END`."""
    srun_lines: tuple[SrunLine, ...] = ()
    """Further options of the one `srun` that starts the cluster, such as `--mpi=cray_shasta`."""

    @field_validator("sbatch_lines", "srun_lines")
    @classmethod
    def _leaves_ours_alone(cls, lines: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        known = _OURS if info.field_name == "sbatch_lines" else _OURS_OF_SRUN
        for line in lines:
            for option in re.findall(r"(?:^|\s)(--[a-z-]+|-[A-Za-z])", line):
                if any(ours.startswith(option) for ours in known):  # sbatch reads --wra as --wrap
                    raise ValueError(
                        f"{line!r} sets {option}, which raysuite sets itself; leave it out"
                    )
        return lines

    @property
    def clusters(self) -> str:
        """The SLURM clusters that one of `sbatch_lines` chooses; empty for the login node's
        cluster."""
        option = re.compile(r"\s(?:--clusters?[= ]|-M[= ]?)(\S+)")
        found = [match[1] for line in self.sbatch_lines if (match := option.search(line))]
        return found[-1] if found else ""

    @property
    def has_gpus(self) -> bool:
        """Whether GPUs are requested, by a key or by one of `sbatch_lines`."""
        asked = re.compile(r"\s(--gres[= ]\S*gpu|--gpu|-G|--tres-per-\S*gpu)")
        return bool(self.gpus_per_node) or any(asked.search(line) for line in self.sbatch_lines)

    @model_validator(mode="after")
    def _belongs_together(self) -> SlurmSite:
        wrong = []
        for line in self.sbatch_lines:
            for option in re.findall(r"\s(--[a-z-]+|-[A-Za-z])", line):
                wrong += [
                    f"sbatch_lines: {line!r} sets {option}, and {key} is "
                    f"{getattr(self, key)}; give one of them"
                    for key, names in _KEYS.items()
                    if getattr(self, key) and any(name.startswith(option) for name in names)
                ]
        if self.gpu_type is not None and not self.gpus_per_node:
            wrong.append("gpu_type needs gpus_per_node; give both, or leave gpu_type out")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


LAUNCHERS: dict[str, tuple[str, ...]] = {
    # ssh runs its argument in a remote shell: {line} is the command, quoted
    "ssh": ("ssh", "-n", "-o", "BatchMode=yes", "{host}", "exec {line}"),
    # help.altair.com/2024.1.0/PBS Professional/PBSReferenceGuide, pbsdsh: {index} counts lines of
    # the host file
    "pbsdsh": ("pbsdsh", "-n", "{index}", "--", COMMAND),
    # www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-blaunch
    "blaunch": ("blaunch", "{host}", COMMAND),
    # flux-framework.readthedocs.io, flux-run(1)
    "flux": ("flux", "run", "--nodes=1", "--ntasks=1", "--requires=host:{host}", COMMAND),
    # docs.open-mpi.org, mpirun(1)
    "mpirun": ("mpirun", "--host", "{host}", "-n", "1", COMMAND),
    # mpiexec of HPE's PALS; docs.alcf.anl.gov/polaris/running-jobs has -n and -ppn, not --hosts
    "mpiexec": ("mpiexec", "-n", "1", "--ppn", "1", "--hosts", "{host}", COMMAND),
}
"""Launcher -> the command line that starts a command on one host of an allocation."""


class HostsSite(_Site):
    """Hosts that the user already has, such as those of an allocation by any scheduler."""

    kind: Literal["hosts"] = "hosts"
    hosts: tuple[HostName, ...] = ()
    """The hosts; the first is the head. Default: those in `hosts_file`, else the scheduler's list
    in the environment of `cluster up` ($PBS_NODEFILE, $LSB_DJOB_HOSTFILE, $LSB_HOSTS)."""
    hosts_file: AbsolutePath | None = None
    """A file with one host per line; text after the name is ignored."""
    launcher: str | tuple[Line, ...] = "ssh"
    """The program that starts a command on a host: ssh, pbsdsh, blaunch, flux, mpirun, mpiexec, or
    your own command line. Your own command line contains {host} or {index} (the host's position in
    the list, counted from 0), and also {command}, or {line} if the program passes the command to a
    shell."""
    cpus_per_node: int | None = Field(default=None, ge=1)
    """CPUs that Ray schedules on each host; default: those of the host."""
    gpus_per_node: int | None = Field(default=None, ge=0)
    """GPUs that Ray schedules on each host; default: those of the host."""
    time: SlurmTime | None = None
    """Time limit of the allocation, counted from `cluster up`; default: none."""
    warn_seconds: int = Field(default=120, ge=1, le=65535)
    """Runs are asked to write a checkpoint and stop this many seconds before the time limit."""
    head_restarts: int = Field(default=2, ge=0)
    """Largest number of restarts of the cluster after its head died."""

    @property
    def has_gpus(self) -> bool:
        return bool(self.gpus_per_node)

    @field_validator("launcher")
    @classmethod
    def _starts_a_command(cls, launcher: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(launcher, str):
            if launcher not in LAUNCHERS:
                raise ValueError(f"got {launcher!r}; {suggest(launcher, LAUNCHERS)}")
            return launcher
        text = " ".join(launcher)
        if (COMMAND in launcher) == ("{line}" in text) or not re.search(r"{host}|{index}", text):
            raise ValueError(
                f"got {list(launcher)}; one word must be {COMMAND}, or contain {{line}} if the "
                "program passes the command to a shell; and a word must contain {host} or {index}"
            )
        return launcher

    @property
    def launcher_words(self) -> tuple[str, ...]:
        return LAUNCHERS[self.launcher] if isinstance(self.launcher, str) else self.launcher


_OURS = frozenset(
    """--job-name -J --nodes -N --ntasks -n --ntasks-per-node --cpus-per-task -c --output -o
    --error -e --open-mode --signal --requeue --no-requeue --no-kill -k --export --chdir -D
    --array -a --wrap --parsable --wait -W --get-user-env --export-file --hold -H
    """.split()  # noqa: SIM905 - a list literal would fill a screen
)
"""Options of sbatch that raysuite sets, because the cluster's start and end depend on them."""
_OURS_OF_SRUN = frozenset(
    """--nodes --ntasks --ntasks-per-node --cpus-per-task --export --input --label --no-kill --wait
    --kill-on-bad-exit --environment --container-image --container-mounts
    """.split()  # noqa: SIM905
)

_KEYS = {
    "partition": ("--partition", "-p"),
    "account": ("--account", "-A"),
    "qos": ("--qos", "-q"),
    "constraint": ("--constraint", "-C"),
    "reservation": ("--reservation",),
    "time": ("--time", "-t"),
    "memory_per_node": ("--mem", "--mem-per-cpu", "--mem-per-gpu"),
    "gpus_per_node": ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "-G"),
    "exclusive": ("--exclusive",),
}
"""Key of a site -> options of sbatch with the same meaning. A site with a key and
one of its options is refused, because sbatch would use only the last of them."""

Site = LocalSite | SlurmSite | HostsSite
SITES: dict[str, type[Site]] = {"local": LocalSite, "slurm": SlurmSite, "hosts": HostsSite}
"""Kind -> class of the site."""


# A site's YAML file -> Site; reports all mistakes. Modules for checking are imported on use, so
# that a cluster's agents start without loading the options of experiments.


def read_site(file: Path) -> Site:
    """The site in a file; a site without a name is named after the file.

    Raises SpecError with file, line and key of every mistake.
    """
    from raysuite.spec.document import read_document

    return site_of(read_document(file), file.stem)


def site_of(document: Document, name: str) -> Site:
    """The site in a document; `name` is its default name. Raises SpecError with every mistake."""
    from raysuite.spec.checking import validate_as

    kind = document.data.get("kind")
    if not isinstance(kind, str) or kind not in SITES:
        given = "is missing" if kind is None else f"got {kind!r}"
        message = f"{given}; {suggest(str(kind), SITES)}"
        raise SpecError([document.mistake(message, "kind")])
    return validate_as(SITES[kind], {"name": name, **document.data}, document.place)
