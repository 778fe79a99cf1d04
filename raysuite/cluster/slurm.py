"""SLURM: a cluster's batch script, SLURM's commands, a cluster's job, and the check of a site.

Rendering the script has no side effects. Only the backend's methods submit, signal or cancel jobs.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysuite.cluster import binding, private
from raysuite.cluster.backend import Finding, JobState, unsure, works, wrong
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.in_image import step_options
from raysuite.cluster.state_files import Cluster
from raysuite.compiled import LibraryError, build
from raysuite.errors import RaysuiteError, UserError
from raysuite.files import write_whole
from raysuite.spec.base import suggest
from raysuite.spec.site import SlurmSite
from raysuite.spec.site_values import node_range, one_line, slurm_seconds

# the batch script

HEAD = r"""set -eo pipefail
# The submitting shell's variables stay there, and SLURM may fail to find those of a login.
if [[ -z ${HOME:-} ]]; then
  unset HOME
  HOME=~
fi
: "${USER:=$(id -un)}"
PATH=${PATH%:.}  # bash itself adds the working folder where SLURM gives it no PATH
export HOME USER PATH

"""

MODULES = r"""type module >/dev/null 2>&1 || source /etc/profile || true
"""

BODY = r"""
set -u

# SLURM sends its warning to this shell only: in the step, the signal would end Ray's processes.
warn() {
  local fresh=$folder/.stop.json.$SLURM_JOB_ID
  if [[ ! -e $folder/stop.json ]]; then
    deadline=$(($(date +%s) + warn_seconds))
    (umask 077 && printf '{"reason": "time_limit", "deadline": %d}\n' "$deadline" >"$fresh")
    mv -f -- "$fresh" "$folder/stop.json"
    warned=1
  fi
}

suites_are_left() {
  local file
  for file in "$folder"/suites/*.json; do
    if [[ -e $file ]]; then return 0; fi
  done
  return 1
}

# If slurmd's own process of the step has died on a node, srun waits for that node for ever.
end_step() {
  local each
  broken=1
  echo "raysuite: the cluster has ended and its step has not; ending the step" >&2
  for each in $(squeue --steps --noheader --jobs="$SLURM_JOB_ID" --format=%i); do
    case $each in
      *.batch | *.extern | *.interactive) ;;
      *) scancel "$each" || true ;;
    esac
  done
}

# SLURM itself queues a job again for a lost node or preemption, not for its time limit.
queue_again() {
  if ((requeue && warned && !queued)) && suites_are_left; then
    queued=1
    echo "raysuite: the time limit came before the end of all suites; queueing the job again"
    scontrol requeue "$SLURM_JOB_ID" || echo "raysuite: SLURM does not queue it again" >&2
  fi
}

# This runs on each node, around its agent. If the head's agent was killed, it records the end of
# the cluster. The site's variables come from a file: all users of a node see argument lists. If the
# first host is lost, the batch script is lost too, and the job keeps the other nodes without using
# them.
# shellcheck disable=SC2016
on_node='
requeue=$1 over=$2 environment=$3 scratch=$4
shift 4
trap : TERM INT HUP
if [[ ! -r $environment ]]; then
  echo "raysuite: ${SLURMD_NODENAME%%.*}: does not see ${over%/*}; set RAYSUITE_HOME to a folder" \
    "that all nodes share" >&2
  exit 1
fi
(
  while IFS= read -r pair; do
    case $pair in
      PATH=* | LD_LIBRARY_PATH=*)
        name=${pair%%=*}
        pair+=${!name:+:${!name}}
        ;;
    esac
    export "$pair"
  done <"$environment"
  bind=
  while [[ $scratch =~ ^([^$]*)[$]([{]?)([A-Za-z_][A-Za-z0-9_]*)[}]?(.*)$ ]]; do
    bind+=${BASH_REMATCH[1]}${!BASH_REMATCH[3]-} scratch=${BASH_REMATCH[4]}
  done
  if [[ -n $bind ]]; then
    export APPTAINER_BIND="${APPTAINER_BIND:+$APPTAINER_BIND,}$bind$scratch"
  fi
  exec "$@"
)
status=$?
if ((status == 126 || status == 127)); then
  echo "raysuite: ${SLURMD_NODENAME%%.*}: cannot run $1 (status $status)" >&2
fi
if [[ ${SLURM_NODEID:-} == 0 ]]; then (umask 077 && : >"$over"); fi
if ((status == 0)); then exit 0; fi
read -r first <<<"$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
left=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N) &&
  left=$(scontrol show hostnames "$left") || exit "$status"
while read -r host; do
  if [[ $host == "$first" ]]; then exit "$status"; fi
done <<<"$left"
echo "raysuite: the first host is lost, and its batch script; ending what is left" >&2
if ((requeue)); then scontrol requeue "$SLURM_JOB_ID"; else scancel "$SLURM_JOB_ID"; fi
exit "$status"
'

warned=0 queued=0 cancelled=0 restarts=0 deadline=0 broken=0
last_seconds=$((warn_seconds < 20 ? warn_seconds / 2 : 10))
trap warn USR1
trap 'cancelled=1' TERM
rm -f -- "$folder/stop.json"
echo "raysuite: job $SLURM_JOB_ID, attempt ${SLURM_RESTART_COUNT:-0}, nodes $SLURM_JOB_NODELIST"

while :; do
  rm -f -- "$folder/head.json" "$folder/over"
  srun --nodes="$SLURM_JOB_NUM_NODES" "${step[@]}" bash -c "$on_node" raysuite \
    "$requeue" "$folder/over" "$folder/environment" "$scratch" "${command[@]}" &
  srun=$! status=0 over=0
  while kill -0 "$srun" 2>/dev/null; do
    sleep 1
    if ((warned)) && (($(date +%s) >= deadline - last_seconds)); then queue_again; fi
    if [[ -e $folder/over ]]; then over=$((over + 1)); fi
    if ((over == 30)); then end_step; fi
  done
  wait "$srun" || status=$?
  if ((status == 0 || cancelled)) || [[ -e $folder/stop.json ]]; then
    queue_again
    exit 0
  fi
  # slurmctld 22.05 gives a job that has lost a node no further step, and may crash over one
  nodes=$(squeue --noheader --noconvert --jobs="$SLURM_JOB_ID" --format=%D) ||
    nodes=$SLURM_JOB_NUM_NODES
  if ((broken || nodes < SLURM_JOB_NUM_NODES)); then
    echo "raysuite: the cluster ended with status $status, after a node was lost" >&2
    if ((requeue)); then
      scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$status"
  fi
  if ((restarts >= head_restarts)); then
    echo "raysuite: the cluster ended with status $status; no start is left of $restarts" >&2
    exit "$status"
  fi
  restarts=$((restarts + 1))
  echo "raysuite: the cluster ended with status $status; start $restarts of $head_restarts" >&2
done
"""

_PLAIN = re.compile(r"[A-Za-z0-9_.,/+:@%=-]+")


def render(
    site: SlurmSite, nodes: int | str, folder: Path, working_folder: str, command: Sequence[str]
) -> str:
    """The batch script for `sbatch`.

    `nodes`: the number of nodes, or its minimum and maximum as in `2-4`. `folder`: the cluster's
    folder, on a file system that all nodes share; its last part is the name of the cluster.
    `working_folder`: the folder in which the cluster's jobs start. `command` runs once on each
    node: the agent with its arguments, in an image if needed.

    Each value is quoted: in the header for sbatch, below it for bash. Raises UserError for a value
    that cannot be quoted.
    """
    _check(str(folder), working_folder, command)
    header = [f"#SBATCH {option}" for option in _header(site, nodes, folder, working_folder)]
    title = f"# The Ray cluster {folder.name} of raysuite, site {site.name or '-'}."
    top = ["#!/bin/bash", *header, *site.sbatch_lines, "", title]
    modules = [f"module load {shlex.quote(module)}" for module in site.modules]
    set_up = [*site.prologue, *modules]
    settings = _settings(site, str(folder), working_folder, command)
    parts = [_lines(top), HEAD, MODULES if set_up else "", _lines(set_up), settings, BODY]
    return "".join(parts)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def quote_option(value: str) -> str:
    """Quote a value for an #SBATCH line.

    `sbatch` has its own rules: quotes group words, a backslash makes the next character literal,
    even inside quotes, and an unquoted # begins a comment (slurm, src/sbatch/opt.c, _get_argument).
    """
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _check(folder: str, working_folder: str, command: Sequence[str]) -> None:
    values = {
        "the cluster's folder": folder,
        "the working folder": working_folder,
        **{f"word {number} of the command": word for number, word in enumerate(command)},
    }
    for what, value in values.items():
        try:
            one_line(value)
        except ValueError as error:
            raise UserError(f"{what} cannot be written into a batch script: {error}") from error
    for what, path in (("cluster's", folder), ("working", working_folder)):
        if "\\" in path:
            raise UserError(
                f"the {what} folder is {path!r}; SLURM needs a path without backslashes; choose "
                "the cluster's folder by RAYSUITE_HOME, or the working folder by `cd`"
            )


def _header(site: SlurmSite, nodes: int | str, folder: Path, working_folder: str) -> Iterator[str]:
    gpus = ":".join(["gpu", *([site.gpu_type] if site.gpu_type else []), str(site.gpus_per_node)])
    log = f"{folder}/logs/slurm.log".replace("%", "%%")  # sbatch replaces %j and similar
    options = {
        "job-name": f"raysuite-{folder.name}",
        "nodes": nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": site.cpus_per_node,
        "gres": gpus if site.gpus_per_node else None,
        "mem": site.memory_per_node,
        "time": site.time,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "reservation": site.reservation,
        "chdir": working_folder,
        "output": log,
        "open-mode": "append",
        "signal": f"B:USR1@{site.warn_seconds}",
        "export": "NONE",
    }
    for name, value in options.items():
        if value is not None:
            yield f"--{name}={quote_option(str(value))}"
    if site.exclusive:
        yield "--exclusive"
    yield "--no-kill"
    yield "--requeue" if site.requeue else "--no-requeue"


def _settings(site: SlurmSite, folder: str, working_folder: str, command: Sequence[str]) -> str:
    step = [
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={site.cpus_per_node}"] if site.cpus_per_node else []),
        "--export=ALL",  # this script's variables, without those of the submitting shell
        "--cpu-bind=none",
        "--mpi=none",
        "--input=none",
        "--label",
        "--no-kill",  # a lost node, or a failed agent, does not end the other agents
        "--wait=0",
        "--kill-on-bad-exit=0",
        *step_options(site, (folder, working_folder, site.scratch)),
        *site.srun_lines,
    ]
    return _lines(
        [
            f"folder={shlex.quote(folder)}",
            f"scratch={shlex.quote(site.scratch if site.image and '$' in site.scratch else '')}",
            f"command=({shlex.join(command)})",
            f"step=({shlex.join(step)})",
            f"warn_seconds={site.warn_seconds}",
            f"head_restarts={site.head_restarts}",
            f"requeue={int(site.requeue)}",
        ]
    )


# SLURM's programs

_PATIENCE_S = 60.0
"""Seconds to wait for slurmctld. A busy slurmctld takes some seconds to answer."""


@dataclass(frozen=True)
class NodeGroup:
    """Identical nodes of a partition: one row of `sinfo`."""

    partition: str
    default: bool
    """Whether jobs that name no partition run in this partition."""
    up: bool
    limit_s: float
    """The longest time limit that a job may have, in seconds."""
    nodes: int
    cpus: int
    """CPUs of each node; the fields below are also per node."""
    memory_mb: int
    gpus: int


class SlurmError(RaysuiteError):
    """A SLURM command failed; the message is the last line of its output."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said or message
        """The whole output."""


def ask(words: Sequence[str], text: str | None = None) -> str:
    """Run a command with the input `text`; return its standard output and, if `text` is given, also
    its standard error. Raises SlurmError if the command is missing, fails or hangs."""
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except OSError as error:
        raise SlurmError(f"{words[0]} is not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{words[0]} did not answer within {_PATIENCE_S:.0f} s") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        last = said.splitlines()[-1] if said else f"{words[0]} ended with status {done.returncode}"
        raise SlurmError(last, said)
    return done.stdout + done.stderr if text is not None else done.stdout


_ROWS = ("--noheader", "--all", "--exact", "--noconvert", "--format=%P|%a|%l|%D|%c|%m|%G")
"""Without --exact, one row can combine different nodes, and shows their minima (`48+`). Without
--noconvert, 1,024 is printed as `1K`."""


def node_groups(where: str = "") -> list[NodeGroup]:
    """The groups of nodes of all partitions. Raises SlurmError if sinfo does not answer."""
    rows = ask(["sinfo", *_of(where), *_ROWS]).splitlines()
    return [_group(row.split("|")) for row in rows if row.count("|") == 6]


def accounts() -> tuple[set[str], set[str]]:
    """The user's accounts and QOS in SLURM's accounting; the sets are empty if it lists none.

    Raises SlurmError if slurmdbd does not answer.
    """
    columns = "format=Account%80,QOS%400"
    user = f"user={getpass.getuser()}"
    rows = ask(["sacctmgr", "--noheader", "--parsable2", "show", "associations", user, columns])
    pairs = [row.split("|") for row in rows.splitlines() if row.count("|") == 1]
    qos = {name for _, names in pairs for name in names.split(",") if name}
    return {account for account, _ in pairs if account}, qos


def megabytes(memory: str) -> int:
    """Memory in SLURM's notation, in megabytes; a number without a letter is in megabytes."""
    number, letter = re.fullmatch(r"([0-9]+)([KMGT]?)", memory.upper()).groups()  # type: ignore[union-attr]
    return int(int(number) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[letter])


def _group(row: Sequence[str]) -> NodeGroup:
    name, available, limit, nodes, cpus, memory, gres = row
    return NodeGroup(
        partition=name.rstrip("*"),
        default=name.endswith("*"),
        up=available.startswith("up"),
        limit_s=_limit(limit),
        nodes=int(nodes),
        cpus=int(cpus),
        memory_mb=int(memory),
        gpus=_gpus(gres),
    )


def _limit(text: str) -> float:
    try:
        return slurm_seconds(text)
    except ValueError:
        return float("inf")  # "infinite", "n/a"


def _gpus(gres: str) -> int:
    """The number of GPUs in a gres: `gpu:a100:4(S:0-1),nvme:1` -> 4."""
    parts = re.sub(r"\([^)]*\)", "", gres).split(",")
    return sum(
        int(part.rpartition(":")[2]) for part in parts if re.fullmatch(r"gpu(:.+)*:\d+", part)
    )


# a cluster as a job

_ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "TIMEOUT"),
)
"""States of ended jobs. A job in any other state, even an unknown state, is alive until SLURM no
longer lists it."""


class SlurmBackend:
    """Runs each cluster as one job; the methods are those of LocalBackend."""

    ask_s = (10.0, 30.0)

    def start(self, folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> Cluster:
        write_whole(folder.script, script(folder, cluster, command).encode(), private.MODE)
        pairs = (f"{name}={value}\n" for name, value in cluster.site.environment.items())
        write_whole(folder.path / "environment", "".join(pairs).encode(), private.MODE)
        with contextlib.suppress(LibraryError):  # if this fails, each node builds the library
            build(binding.SOURCE, folder.path)
        job, _, where = _ask(["sbatch", "--parsable", str(folder.script)]).strip().partition(";")
        return cluster.model_copy(update={"job": job, "slurm_cluster": where})

    def states(self, clusters: Sequence[Cluster]) -> list[JobState]:
        found: dict[str, dict[str, JobState]] = {}
        for where in dict.fromkeys(each.slurm_cluster for each in clusters if each.job):
            # squeue lists a job for some minutes after its end, so a job that is not listed is gone
            mine = [each.job for each in clusters if each.job and each.slurm_cluster == where]
            jobs = dict.fromkeys(mine, JobState("gone"))
            words = ["squeue", *_of(where), "--noheader", "--noconvert", "--states=all"]
            words += [f"--jobs={','.join(jobs)}", "--format=%A|%T|%r|%D|%N"]
            try:
                jobs |= parse_states(_ask(words))
            except SlurmError as error:
                if "Invalid job id" not in str(error):  # squeue's answer if the only job is gone
                    jobs = dict.fromkeys(jobs, JobState("unknown", reason=str(error)))
            found[where] = jobs
        return [
            found.get(each.slurm_cluster, {}).get(each.job, JobState("gone")) for each in clusters
        ]

    def end(self, cluster: Cluster) -> None:
        waits = self.states([cluster])[0].phase == "waiting"
        self._cancel(cluster, *([] if waits else ["--signal=TERM"]))

    def kill(self, cluster: Cluster) -> None:
        self._cancel(cluster)

    def _cancel(self, cluster: Cluster, *options: str) -> None:
        try:
            _ask(["scancel", *_of(cluster.slurm_cluster), *options, cluster.job])
        except SlurmError:
            # slurmctld rejects a signal to a job that has ended or is ending
            (state,) = self.states([cluster])
            if state.phase != "gone" and state.state != "COMPLETING":
                raise


def _of(where: str) -> list[str]:
    """The option that selects one of several SLURM clusters; empty for the login node's cluster."""
    return [f"--clusters={where}"] if where else []


def script(folder: ClusterFolder, cluster: Cluster, command: tuple[str, ...]) -> str:
    """The batch script of a cluster."""
    assert isinstance(cluster.site, SlurmSite)
    nodes = f"{cluster.nodes}-{cluster.most_nodes}" if cluster.most_nodes else cluster.nodes
    return render(cluster.site, nodes, folder.path, cluster.working_folder, command)


def parse_states(said: str) -> dict[str, JobState]:
    """Parse the answer of `squeue --noconvert --format=%A|%T|%r|%D|%N`: job id -> state."""
    return {line.partition("|")[0]: _parsed(line) for line in said.strip().splitlines()}


def _parsed(line: str) -> JobState:
    _, state, reason, nodes, names = line.split("|", 4)
    hosts = (names,) if names else ()
    if state in _ENDED:
        return JobState("gone", state, reason, hosts)
    if not hosts or state == "CONFIGURING":  # no nodes are allocated, or they are booting
        return JobState("waiting", state, reason)
    return JobState("running", state, "" if reason == "None" else reason, hosts, int(nodes))


def host_names(names: str) -> list[str]:
    """The hosts to which SLURM expands `names`, as in `node[1-3]`; [names] if scontrol fails."""
    if not {"[", ","} & {*names}:
        return [names]
    try:
        return _ask(["scontrol", "show", "hostnames", names]).split()
    except (SlurmError, UserError):
        return [names]


def _ask(words: Sequence[str]) -> str:
    """Run a command. Raises UserError if the program is missing, SlurmError if it fails."""
    if shutil.which(words[0]) is None:
        raise UserError(
            f"{words[0]} is not found: use a site of kind slurm on its login node; for a cluster "
            "on this machine, leave --site out"
        )
    try:
        return ask(words)
    except SlurmError as error:
        raise SlurmError(f"{words[0]}: {error.said}") from error


# the check of a site

COMMANDS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")


def check_slurm(site: SlurmSite, folder: Path) -> Iterator[Finding]:
    """Check a site: SLURM's commands, the partition, the account, and whether SLURM accepts the
    script. A check that depends on a failed check is left out.

    `folder` is the folder of all clusters. Nothing is queued.
    """
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        yield wrong(
            "SLURM's commands",
            f"not on PATH: {', '.join(missing)}",
            "call raysuite on a login node of the site, or load the module with these commands",
        )
        return
    try:
        version = ask(["sinfo", "--version"]).strip()
        groups = node_groups(site.clusters)
    except SlurmError as error:
        yield wrong(
            "controller",
            str(error),
            "call `scontrol ping`; if it reports SLURM as down, ask the site's support",
        )
        return
    yield works("SLURM", version)
    yield from _partitions(site, groups)
    yield from _books(site)
    yield _trial(site, folder)


def _partitions(site: SlurmSite, groups: Sequence[NodeGroup]) -> Iterator[Finding]:
    wanted = site.partition.split(",") if site.partition else []
    known = list(dict.fromkeys(group.partition for group in groups))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        note = f"no partition is called {unknown[0]!r}"
        yield wrong("partition", note, suggest(unknown[0], known))
        return
    mine = [group for group in groups if (group.partition in wanted if wanted else group.default)]
    names = ", ".join(dict.fromkeys(group.partition for group in mine))
    if not mine:
        yield wrong(
            "partition", "the cluster has no default", f"give `partition`: {', '.join(known)}"
        )
        return
    if not any(group.up for group in mine):
        note = f"{names} takes no jobs now"
        fix = "jobs wait in the queue until the site opens the partition again"
        yield unsure("partition", note, fix)
    else:
        yield works("partition", names)
    yield _time(site, mine)
    yield _nodes(site, mine)


def _time(site: SlurmSite, groups: Sequence[NodeGroup]) -> Finding:
    longest = max(group.limit_s for group in groups)
    limit = "no limit" if longest == float("inf") else f"at most {longest / 3600:g} h"
    if site.time is None:
        return works("time", f"the partition's default; {limit}")
    if slurm_seconds(site.time) > longest:
        return wrong("time", f"{site.time} is too long; the partition allows {limit}", "shorten it")
    return works("time", f"{site.time}; {limit}")


def _nodes(site: SlurmSite, groups: Sequence[NodeGroup]) -> Finding:
    memory = megabytes(site.memory_per_node) if site.memory_per_node else 0
    least, _ = node_range(site.nodes)
    fitting = sum(
        group.nodes
        for group in groups
        if group.cpus >= (site.cpus_per_node or 1)
        and group.gpus >= site.gpus_per_node
        and group.memory_mb >= memory
    )
    most = max(groups, key=lambda group: (group.gpus, group.cpus))
    there = (
        f"{sum(group.nodes for group in groups)} nodes of up to {most.cpus} CPUs, "
        f"{most.gpus} GPUs and {most.memory_mb} MB"
    )
    if fitting < least:
        per_node = {"CPUs": site.cpus_per_node, "GPUs": site.gpus_per_node, "MB": memory}
        asked = ", ".join(f"{value} {unit}" for unit, value in per_node.items() if value)
        note = (
            f"asked for {least} nodes{asked and f' with {asked} each'}; {fitting} nodes are "
            "suitable"
        )
        return wrong("nodes", note, f"the partition has {there}")
    return works("nodes", f"{fitting} nodes are suitable; the partition has {there}")


def _books(site: SlurmSite) -> Iterator[Finding]:
    try:
        mine, qos = accounts()
    except SlurmError as error:
        mine, qos, why = set[str](), set[str](), str(error)
    else:
        why = "SLURM's accounting has no such entries for you"
    wishes = [("account", site.account, mine), ("qos", site.qos, qos)]
    for what, wish, known in wishes:
        if not known:
            if wish is not None:
                yield unsure(what, f"{wish} cannot be checked: {why}")
        elif wish is None:
            yield works(what, f"your default of {', '.join(sorted(known))}")
        elif wish in known:
            yield works(what, wish)
        else:
            yield wrong(what, f"{wish!r} is not yours", suggest(wish, sorted(known)))


def _trial(site: SlurmSite, folder: Path) -> Finding:
    """Let slurmctld check the script without queueing a job."""
    text = render(site, site.nodes, folder / "doctor", str(Path.cwd()), ("true",))
    try:
        said = ask(["sbatch", "--test-only"], text=text).strip().splitlines()
    except SlurmError as error:
        return wrong(
            "the script",
            str(error),
            "SLURM rejects the script: change the option that SLURM's message names",
        )
    return works("the script", said[-1].removeprefix("sbatch: ") if said else "SLURM accepts it")
