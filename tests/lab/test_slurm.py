"""The lab is a SLURM site: jobs over hosts, lost hosts, time limits, users apart."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
import torch
from lab.layout import ROOT

from tests.lab.place import LabPlace, lab_command
from tests.marks import LAB_MARKS

pytestmark = [*LAB_MARKS, pytest.mark.timeout(1200)]

WHERE = (
    "import json, os, socket; open('/dev/shm/mine', 'x').close(); open('/tmp/mine', 'x').close();"
    "print(json.dumps([socket.gethostname(), socket.gethostbyname(socket.gethostname()),"
    " os.getuid(), os.environ['SLURM_PROCID']]))"
)


def test_a_job_runs_on_hosts_with_names_addresses_and_temp_folders_of_their_own(
    lab: LabPlace,
) -> None:
    done = lab.out("srun", "-N3", "--ntasks-per-node=1", "python", "-c", WHERE)
    rows = [json.loads(line) for line in done.splitlines()]
    assert {row[0]: row[1] for row in rows} == {h: lab.lab.address(h) for h in lab.lab.hosts}
    assert {row[2] for row in rows} == {lab.lab.uid("hpc1")}
    assert {row[3] for row in rows} == {"0", "1", "2"}
    assert not Path("/tmp/mine").exists()
    lab.out("srun", "-N3", "rm", "/tmp/mine", "/dev/shm/mine")


def test_homes_are_shared_by_hosts_and_closed_to_other_users(lab: LabPlace) -> None:
    home = str(lab.lab.home("hpc1"))
    lab.run("tee", "secret", text_in="mine")
    assert lab.out("srun", "-w", "node3", "cat", f"{home}/secret") == "mine"
    for host in ("login", "node2"):
        other = lab.run("cat", f"{home}/secret", user="hpc2", host=host, check=False)
        assert other.returncode != 0
        assert "Permission denied" in other.stderr


def test_no_user_ends_a_job_of_another(lab: LabPlace) -> None:
    job = lab.batch("sleep 600")
    lab.wait(lambda: lab.job_state(job) == "RUNNING", 240)
    refused = lab.run("scancel", job, user="hpc2", check=False)
    assert "denied" in refused.stderr
    assert lab.job_state(job) == "RUNNING"
    lab.out("scancel", job)
    lab.wait(lambda: lab.job_state(job) == "CANCELLED", 240)


def test_users_reach_the_project_and_nothing_else_of_a_closed_home(lab: LabPlace) -> None:
    assert "Usage" in lab.out("raysuite", "--help")
    script = "import raysuite, pathlib; print(pathlib.Path(raysuite.__file__).parent)"
    where = lab.out("python", "-c", script, host="node1")
    refused = lab.run("touch", f"{where}/new", host="node1", check=False)
    assert refused.returncode != 0
    shadow = lab.run("cat", "/etc/shadow", host="node1", check=False)
    assert shadow.returncode != 0


STEP = """\
import signal, sys
def warned(*_):
    print("warned", flush=True)
    sys.exit(7)
signal.signal(signal.SIGUSR1, warned)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.thorough
def test_the_warning_before_the_time_limit_reaches_the_steps(lab: LabPlace) -> None:
    lab.run("tee", "step.py", text_in=STEP)
    job = lab.batch("srun python step.py", "--time=10", "--signal=USR1@10")
    lab.wait(lambda: "ready" in lab.run("cat", f"{job}.out", check=False).stdout, 300)
    lab.end_soon(job)  # SLURM may warn half a minute early
    lab.wait(lambda: lab.job_state(job) in ("FAILED", "COMPLETED", "TIMEOUT"), 300)
    assert lab.job_state(job) == "FAILED"
    assert "warned" in lab.out("cat", f"{job}.out")


@pytest.mark.thorough
def test_a_host_without_its_cable_goes_down_and_its_job_starts_on_another(lab: LabPlace) -> None:
    script = "echo start $SLURM_RESTART_COUNT on $(hostname); sleep 600"
    job = lab.batch(script, "--requeue", "--open-mode=append")
    lab.wait(lambda: lab.job_state(job) == "RUNNING", 240)
    host = lab.out("squeue", "-h", "-j", job, "-o", "%B")
    lab.link(host, up=False)
    lab.wait(lambda: lab.node_state(host).startswith("down"), 300)
    lab.wait(lambda: "start 1 on node" in lab.out("cat", f"{job}.out"), 300)
    assert lab.out("squeue", "-h", "-j", job, "-o", "%B") != host
    lab.link(host, up=True)
    lab.wait(lambda: lab.node_state(host) == "idle", 300)


RECEIVER = """\
import socket
listener = socket.create_server(("0.0.0.0", 7777))
print("listening", flush=True)
connection, _ = listener.accept()
while connection.recv(65536):
    pass
connection.sendall(b"!")
"""
SENDER = """\
import socket
connection = socket.create_connection(("node2", 7777), timeout=240)
connection.sendall(bytes(1_000_000))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b"!"
"""


def test_a_cable_is_slowed(lab: LabPlace) -> None:
    lab.shape("node2", "rate", "4mbit")
    job = lab.batch(f"python - <<'END'\n{RECEIVER}END", "-w", "node2")
    lab.wait(lambda: "listening" in lab.run("cat", f"{job}.out", check=False).stdout, 240)
    began = time.monotonic()
    lab.out("python", "-c", SENDER, host="node1")
    # 8 Mbit, less the buckets' bursts, at 4 Mbit/s: no machine is quicker.
    assert time.monotonic() - began > 1.5


def test_a_second_lab_stands_beside_the_first_and_leaves_nothing(
    lab: LabPlace, tmp_path: Path
) -> None:
    folder = Path(f"{lab.lab.folder}-second")
    up = ("up", "--nodes", "1", "--no-apptainer")
    try:
        for _ in range(2):
            done = lab_command(folder, *up)
            assert done.returncode == 0, done.stderr
        status = json.loads(lab_command(folder, "status", "--json").stdout)
        assert [row["on"] for row in status["hosts"]] == [True, True]
        assert lab_command(folder, "as", "hpc2", "srun", "hostname").stdout == "node1\n"
        assert lab_command(folder, "up", "--nodes", "2", "--no-apptainer").returncode == 2
        pid = json.loads((folder / "lab.json").read_text())["outer"]["node1"][0]
        bridge = json.loads((folder / "lab.json").read_text())["bridge"]
    finally:
        done = lab_command(folder, "down")
    assert done.returncode == 0, done.stderr
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(f"/sys/class/net/{bridge}").exists()
    assert lab_command(folder, "as", "hpc1", "id").returncode == 2


STOPPED = """\
name: stopped
model: own:Slow
data: digits
strategy: ddp
training: {epochs: 3, global_batch: 240}
resources: {device: cpu, workers: 2}
"""
RUN = """\
cat > step.sh <<'END'
trap : TERM  # a handler is not inherited, and what it waits for ends first
{command}
echo $? > {name}.code
END
srun --ntasks=1 --cpus-per-task=2 bash step.sh
"""


@pytest.mark.thorough
def test_what_is_cancelled_leaves_a_checkpoint_and_nothing_else(lab: LabPlace) -> None:
    """SIGTERM to each process, of a step by `scancel --signal=TERM`, of a job by `scancel`: 75, and
    resumed to the weights of a run that nobody stopped."""
    home = lab.lab.home("hpc1")
    lab.run("tee", "own.py", text_in=(ROOT / "tests/integration/own.py").read_text("utf-8"))
    lab.run("tee", "stopped.yaml", text_in=STOPPED)

    def begin(name: str, *words: str) -> str:
        command = shlex.join(["raysuite", "run", *words, "--no-mlflow"])
        return lab.batch(RUN.format(command=command, name=name), "-c", "2")

    def code(name: str) -> str:
        file = home / f"{name}.code"
        lab.wait(lambda: file.exists() and file.read_text() != "", 400)
        return file.read_text().strip()

    def weights(name: str) -> dict[str, torch.Tensor]:
        file = next(home.glob(f"{name}/stopped/*/runs/*/model.pt"))
        loaded: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
        return loaded

    begin("whole", "stopped.yaml", "--results", "whole")
    assert code("whole") == "0", lab.out("bash", "-c", "cat *.out")
    whole = weights("whole")
    for name, words in (("step", ("--signal=TERM", "{job}.0")), ("job", ("{job}",))):
        lab.run("touch", "dawdle")  # a second a step behind the first epoch, to be found there
        job = begin(name, "stopped.yaml", "--results", name)
        lab.wait(lambda n=name: any(home.glob(f"{n}/stopped/*/checkpoints/*/loop.json")), 400)  # type: ignore[misc]
        host = lab.out("squeue", "-h", "-j", job, "-o", "%B")
        began = time.time()
        lab.out("scancel", *(word.format(job=job) for word in words))
        assert code(name) == "75", lab.out("bash", "-c", "cat *.out")
        print(f"{name}: {(home / f'{name}.code').stat().st_mtime - began:.1f} s", flush=True)
        lab.wait(lambda j=job: lab.job_state(j) not in ("RUNNING", "COMPLETING"), 240)  # type: ignore[misc]
        left = lab.run(
            "bash", "-c", "pgrep -u hpc1 -fa '[r]ay'; ls -d /tmp/rs-* /dev/shm/*",
            host=host, check=False,
        )  # fmt: skip
        assert left.stdout == ""
        (folder,) = home.glob(f"{name}/stopped/*")
        lab.run("rm", "dawdle")
        begin(f"{name}-resumed", "--resume-from", str(folder))
        assert code(f"{name}-resumed") == "0", lab.out("bash", "-c", "cat *.out")
        resumed = weights(name)
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
