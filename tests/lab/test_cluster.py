"""A user of a SLURM site: cluster up, a run, a sweep, cluster down, on three hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from lab.layout import ROOT

from raysuite.records import GateVerdict, Results, RunFinished, ScriptMeasured
from raysuite.records.system import system_files
from raysuite.report.sweep.study import study
from raysuite.report.sweep.sweep_summary import side_by_side
from tests.lab.place import LabPlace
from tests.marks import LAB_MARKS

pytestmark = [*LAB_MARKS, pytest.mark.thorough, pytest.mark.timeout(2700)]

OWN = """\
import pathlib, socket
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, in_channels, image_size):
        super().__init__(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
        pathlib.Path("seen-" + socket.gethostname()).touch()
"""
SPEC = """\
name: three-hosts
model: own:Net
strategy: ddp
data: digits
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 3, placement: spread}
"""
SWEEP = """\
name: three-hosts-searched
model: own:Net
data: digits
training: {epochs: 30, global_batch: 240}  # trials start seconds apart
resources: {device: cpu, workers: 2, placement: spread}
search:
  space:
    strategy: {grid: [ddp, horovod, deepspeed]}
    optimizer.lr: {grid: [0.01, 0.1]}
  searcher: grid
"""
SITE = """\
kind: slurm
description: three hosts of the lab
partition: lab
time: 00:30:00
nodes: 3
cpus_per_node: 2
start_timeout_seconds: 500
environment:  # three Rays start at once, on few CPUs
  RAY_raylet_start_wait_time_s: "400"
  RAY_agent_register_timeout_ms: "400000"
"""
SUBMIT = """
set -e
eval "$(raysuite cluster status --env)"
test -n "$RAY_ADDRESS" && test "$RAY_AUTH_MODE" = token
ray job submit -- raysuite {verb} {spec} --quiet
"""


SCALE = """
set -e
eval "$(raysuite cluster status --env)"
ray job submit -- {words} --device cpu -- {script} --batch '{{48 // workers}}'
"""
(TRAIN,) = re.findall(
    r"```python\n(# train.py\n.*?)```",
    (ROOT / "docs" / "how-to" / "own-script.md").read_text("utf-8"),
    re.DOTALL,
)
HANGS = """\
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
time.sleep(600)
"""


@pytest.fixture
def settled(lab: LabPlace) -> Iterator[LabPlace]:
    """The lab with a user's files; clusters are taken down whatever happens."""
    texts = {"own.py": OWN, "three.yaml": SPEC, "searched.yaml": SWEEP, "three-hosts.yaml": SITE}
    for name, text in texts.items():
        lab.run("tee", name, text_in=text)
    yield lab
    lab.run("raysuite", "cluster", "down", "--all", check=False, timeout_s=200)


def processes(lab: LabPlace, host: str) -> list[str]:
    """What runs as hpc1 on a host, but for the question itself."""
    said = lab.run("ps", "-u", "hpc1", "-o", "args=", host=host, user=None, check=False).stdout
    return said.splitlines()


def test_up_submit_down_on_three_hosts(settled: LabPlace) -> None:
    lab = settled
    lab.run("raysuite", "cluster", "up", "--site", "./three-hosts.yaml", timeout_s=600)
    status = json.loads(lab.out("raysuite", "cluster", "status", "--json"))
    assert {node["host"] for node in status["nodes"]} == set(lab.lab.hosts)
    assert all(processes(lab, host) for host in lab.lab.hosts)

    check_run(lab)
    check_sweep(lab)
    check_script(lab)

    lab.run("raysuite", "cluster", "down", timeout_s=200)
    assert lab.out("squeue", "-h", "-u", "hpc1") == ""
    for host in ("login", *lab.lab.hosts):
        assert processes(lab, host) == []
        assert lab.out("find", "/tmp", "/dev/shm", "-user", "hpc1", host=host) == ""


def check_run(lab: LabPlace) -> None:
    """A run holds a worker on each host, and passes the gate across them."""
    lab.run("bash", text_in=SUBMIT.format(verb="run", spec="three.yaml"), timeout_s=600)
    home = lab.lab.home("hpc1")
    assert {path.name for path in home.glob("seen-*")} >= {f"seen-{h}" for h in lab.lab.hosts}
    results = Results.open(home / "results" / "three-hosts")
    run = results.plans()[0]["run_id"]
    assert isinstance(results.end_of(run), RunFinished)
    assert passed(results, run)


def check_sweep(lab: LabPlace) -> None:
    """Trials run side by side, each of them on two hosts, and each of them once."""
    words = SUBMIT.format(verb="sweep", spec="searched.yaml")
    lab.run("bash", text_in=words, timeout_s=1200)
    results = Results.open(lab.lab.home("hpc1") / "results" / "three-hosts-searched")
    swept = study(results)
    assert swept is not None
    assert [trial.status for trial in swept.trials] == ["finished"] * 6
    assert len({(t.values["strategy"], t.values["optimizer.lr"]) for t in swept.trials}) == 6
    assert side_by_side(swept) > 1
    seen: set[str] = set()
    for trial in swept.trials:
        assert passed(results, trial.run_id)
        found = system_files(results.journal_file(trial.run_id).parent)
        assert len(found) == 2
        seen |= set(found)
    assert seen == set(lab.lab.hosts)
    assert (results.folder / "best.yaml").is_file()


def check_script(lab: LabPlace) -> None:
    """A user's own script has a rank on each host, is measured, and ends on all of them."""
    lab.run("tee", "train.py", text_in=TRAIN)
    words = "raysuite scale --workers 1,3 --repeats 1 --warmup-steps 2 --placement spread --check"
    lab.run("bash", text_in=SCALE.format(words=words, script="train.py"), timeout_s=600)
    results = Results.open(lab.lab.home("hpc1") / "results" / "train")
    rows = json.loads((results.folder / "rows.json").read_text("utf-8"))["rows"]
    assert [row["gate"] for row in rows] == ["not needed", "passed"]
    assert rows[1]["speed_up"]["value"] > 0
    run = results.plans()[1]["run_id"]
    (measured,) = [r for r in results.records(run) if isinstance(r, ScriptMeasured)]
    assert sorted(measured.hosts) == sorted(lab.lab.hosts)
    assert all(min(seconds) >= 0 for seconds in measured.start_seconds.values())
    assert set(system_files(results.journal_file(run).parent)) == set(lab.lab.hosts)
    nodes = (results.folder / "tables" / "script-start-nodes.csv").read_text("utf-8")
    assert all(host in nodes for host in lab.lab.hosts)

    lab.run("tee", "hangs.py", text_in=HANGS)
    words = "raysuite scale --workers 3 --repeats 1 --placement spread --stall 30"
    text = SCALE.format(words=words, script="hangs.py")
    done = lab.run("bash", text_in=text, check=False, timeout_s=400)
    assert "no rank took a step for 30 s" in done.stdout
    for host in lab.lab.hosts:
        left = processes(lab, host)
        assert not [each for each in left if "hangs.py" in each or each == "sleep 600"]


def passed(results: Results, run_id: str) -> bool:
    """Whether a run was gated, and never in vain."""
    verdicts = [r for r in results.records(run_id) if isinstance(r, GateVerdict)]
    return bool(verdicts) and all(verdict.passed for verdict in verdicts)


def test_four_starts_at_once_make_one_job(settled: LabPlace) -> None:
    up = "raysuite cluster up --site ./three-hosts.yaml --no-wait"
    lines = [f"{up}; echo $? >>codes" for _ in range(4)]
    settled.run("bash", text_in=" & ".join(f"({line})" for line in lines) + " & wait\n")
    assert sorted(settled.out("cat", "codes").split()) == ["0", "2", "2", "2"]
    assert len(settled.out("squeue", "-h", "-u", "hpc1").splitlines()) == 1
    settled.run("raysuite", "cluster", "down", timeout_s=200)


@pytest.mark.parametrize("host", ["node1", "node3"])
def test_a_node_that_does_not_see_the_clusters_folder_is_named(
    settled: LabPlace, host: str
) -> None:
    folder = str(settled.lab.home("hpc1") / ".raysuite")
    settled.run("mkdir", "-p", folder)
    settled.run("mount", "-t", "tmpfs", "none", folder, host=host, user=None)
    try:
        words = ("raysuite", "cluster", "up", "--site", "./three-hosts.yaml")
        done = settled.run(*words, check=False, timeout_s=400)
    finally:
        settled.run("umount", folder, host=host, user=None)
    assert done.returncode == 1, done.stderr
    assert host in done.stderr
    assert "RAYSUITE_HOME" in done.stderr
    state = json.loads(settled.out("raysuite", "cluster", "status", "three-hosts", "--json"))
    assert state["state"] in ("failed", "ended")
    assert settled.out("squeue", "-h", "-u", "hpc1") == ""
