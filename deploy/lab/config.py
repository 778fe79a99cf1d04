"""The text of a lab's configuration files."""

from __future__ import annotations

from pathlib import Path

from lab import apptainer
from lab.layout import LOGIN, USERS, Lab, needed

MAX_MINUTES = 60


def slurm_conf(lab: Lab) -> str:
    """slurm.conf: lost hosts are detected within half a minute, requeued jobs start in seconds."""
    state = lab.folder / "state"
    log = lab.folder / "log"
    nodes = "\n".join(
        f"NodeName={host} NodeAddr={lab.address(host)} CPUs={lab.cpus} RealMemory={lab.memory_mb}"
        for host in lab.hosts
    )
    return f"""\
ClusterName=lab
SlurmctldHost={LOGIN}({lab.address(LOGIN)})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={lab.munge_socket},cred_expire=20
# Listen on the bridge's addresses alone.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort=17817
SlurmdPort=17818
StateSaveLocation={state}/slurmctld
SlurmdSpoolDir={state}/%n
SlurmctldPidFile={lab.folder}/run/slurmctld.pid
SlurmdPidFile={lab.folder}/run/slurmd-%n.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
# The hosts share this machine's CPUs: SLURM believes what is written below.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={lab.memory_mb // lab.cpus}
SchedulerParameters=batch_sched_delay=1,sched_interval=3,bf_interval=3
ReturnToService=2
MessageTimeout=30
SlurmdTimeout=15
SlurmctldTimeout=20
KillWait=10
InactiveLimit=0
KillOnBadExit=0
MinJobAge=3600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PropagateResourceLimits=NONE
{nodes}
PartitionName=lab Nodes=ALL Default=YES DefaultTime=10 MaxTime={MAX_MINUTES} PriorityTier=1 \
GraceTime=20 State=UP
PartitionName=urgent Nodes=ALL DefaultTime=10 MaxTime={MAX_MINUTES} PriorityTier=10 \
PreemptMode=OFF State=UP
"""


def account_files(lab: Lab) -> dict[str, str]:
    """/etc/passwd, group, subuid, subgid and hosts of the lab's hosts."""
    passwd = _kept("/etc/passwd")
    group = _kept("/etc/group")
    subids = ""
    for index, user in enumerate(USERS):
        uid = lab.uid(user)
        passwd += f"{user}:x:{uid}:{uid}:ordinary user:{lab.home(user)}:/bin/bash\n"
        group += f"{user}:x:{uid}:\n"
        subids += f"{user}:{1_000_000_000 + index * 65536}:65536\n"
    names = "".join(f"{lab.address(host)} {host}\n" for host in (LOGIN, *lab.hosts))
    return {
        "passwd": passwd,
        "group": group,
        "subuid": subids,
        "subgid": subids,
        "hosts": f"127.0.0.1 localhost\n::1 localhost\n{names}",
    }


def _kept(path: str) -> str:
    """The lines of the machine's file, without users who have the names of the lab's users."""
    lines = Path(path).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.split(":")[0] not in USERS)


def profile(lab: Lab, user: str) -> dict[str, str]:
    """The environment of a user's login shell."""
    environment = needed()[1]
    path = f"{environment}/bin:{apptainer.HOME}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    return {
        "HOME": str(lab.home(user)),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": path,
        "SLURM_CONF": str(lab.slurm_conf),
    }
