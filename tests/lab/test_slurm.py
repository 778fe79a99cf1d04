"""The lab is a SLURM site: jobs over hosts, a second lab, and what a cancelled run leaves."""

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
