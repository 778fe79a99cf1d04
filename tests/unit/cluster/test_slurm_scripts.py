"""The batch script: golden files, and what it does when bash runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.in_image import launched
from raysuite.cluster.sites import find_site, site_files
from raysuite.cluster.slurm import SlurmBackend, render
from raysuite.cluster.state_files import Cluster, Stop
from raysuite.errors import UserError
from raysuite.spec.site import SlurmSite
from tests.require import require
from tests.sbatch import Bench, read_options
from tests.waiting import until

GOLDEN = Path(__file__).parents[2] / "golden" / "sbatch" / "4.sh"
FOLDER = "/home/ada/.raysuite/clusters/demo"
AGENT = ("-P", "-m", "raysuite.cluster.agent", FOLDER)
PYTHON = "/home/ada/raysuite/.venv/bin/python"
CASES = [(nodes, image) for nodes in (1, 2, 4, 1024) for image in (False, True)]
OF_ONE_NODE = {"#SBATCH --requeue": "#SBATCH --no-requeue", "requeue=1": "requeue=0"}
OF_AN_IMAGE = {
    "type module >/dev/null 2>&1 || source /etc/profile || true": None,
    "module load Stages/2024": None,
    "module load CUDA/12.4": None,
    f"command=({PYTHON} {' '.join(AGENT)})": (
        "command=(apptainer exec --nv --bind /shared/data:/data:ro --bind '/local scratch'"
        f" /shared/images/raysuite.sif python {' '.join(AGENT)})"
    ),
}
"""Lines of the golden script, and what stands for each elsewhere; None: nothing."""
DEADLINE_S = 60


def script_of(nodes: int, image: bool) -> str:
    site = SlurmSite(
        name="example",
        partition="gpu",
        account="physics-1",
        qos="normal",
        constraint="a100&hdr",
        time="1-00:00:00",
        cpus_per_node=48,
        gpus_per_node=4,
        gpu_type="a100",
        memory_per_node="480G",
        exclusive=True,
        interface="ib0",
        modules=("Stages/2024", "CUDA/12.4") if not image else (),
        environment={"OMP_NUM_THREADS": "12", "GREETING": "it's $HOME"},
        image="/shared/images/raysuite.sif" if image else None,
        binds=("/shared/data:/data:ro",) if image else (),
        scratch="/local scratch",
        requeue=nodes > 1,
        sbatch_lines=("#SBATCH --mail-type=END",),
    )
    command: tuple[str, ...] = (PYTHON, *AGENT)
    if site.image:
        binds = ("--bind", site.binds[0], "--bind", site.scratch)
        command = ("apptainer", "exec", "--nv", *binds, site.image, "python", *AGENT)
    return render(site, nodes, Path(FOLDER), "/home/ada/my experiments", command)


@pytest.mark.parametrize(("nodes", "image"), CASES)
def test_golden(nodes: int, image: bool) -> None:
    script = script_of(nodes, image)
    if (nodes, image) == (4, False) and os.environ.get("RAYSUITE_WRITE_GOLDEN"):
        GOLDEN.write_text(script)
    changed: dict[str, str | None] = {"#SBATCH --nodes=4": f"#SBATCH --nodes={nodes}"}
    changed |= (OF_ONE_NODE if nodes == 1 else {}) | (OF_AN_IMAGE if image else {})
    golden = GOLDEN.read_text("utf-8").split("\n")
    assert {*changed} <= {*golden}
    wanted = [new for line in golden if (new := changed.get(line, line)) is not None]
    assert script.split("\n") == wanted, "RAYSUITE_WRITE_GOLDEN=1 writes it anew"


def read_by_shells(script: str) -> None:
    require("shellcheck")  # SC1091: /etc/profile is not here; SC2016: a $ in quotes is meant
    for check in (["shellcheck", "--exclude=SC1091,SC2016", "--shell=bash", "-"], ["bash", "-n"]):
        found = subprocess.run(check, input=script, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("image", [False, True])
def test_shellcheck_finds_nothing(image: bool) -> None:
    read_by_shells(script_of(4, image))


def test_the_header_says_what_the_site_says() -> None:
    options = read_options(script_of(4, False))
    assert options == [
        "--job-name=raysuite-demo",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--cpus-per-task=48",
        "--gres=gpu:a100:4",
        "--mem=480G",
        "--time=1-00:00:00",
        "--partition=gpu",
        "--account=physics-1",
        "--qos=normal",
        "--constraint=a100&hdr",
        "--chdir=/home/ada/my experiments",
        f"--output={FOLDER}/logs/slurm.log",
        "--open-mode=append",
        "--signal=B:USR1@120",
        "--export=NONE",
        "--exclusive",
        "--no-kill",
        "--requeue",
        "--mail-type=END",
    ]


@pytest.mark.parametrize(
    "name", [name for name in site_files() if isinstance(find_site(name), SlurmSite)]
)
def test_every_shipped_site_renders(name: str) -> None:
    site = find_site(name)
    assert isinstance(site, SlurmSite)
    command = launched(site, ("python", *AGENT), [FOLDER])
    script = render(site, site.nodes, Path(FOLDER), "/w", command)
    assert f"--nodes={site.nodes}" in read_options(script)
    read_by_shells(script)


def test_a_range_of_nodes_is_asked_for_and_what_is_given_is_used(bench: Bench) -> None:
    text = render(SlurmSite(nodes="2-4"), "2-4", bench.cluster, str(bench.path), ("agent",))
    assert "--nodes=2-4" in read_options(text)
    bench.run(text, {"SLURM_JOB_NUM_NODES": "3"})
    assert bench.calls("srun")[0][0] == "--nodes=3"


def test_a_nodes_own_scratch_is_bound_and_no_text_in_it_is_run(bench: Bench) -> None:
    scratch = "/s/${USER}/$JOB/`touch canary`/x"
    site = {"scratch": scratch, "image": "/i.sif", "environment": {"APPTAINER_BIND": "/data"}}
    bench.command("srun", 'while [[ $1 == -* ]]; do shift; done; "$@"')
    bench.command("agent", f'printf %s "$APPTAINER_BIND" >"{bench.path}/seen"')
    (bench.cluster / "environment").write_text("APPTAINER_BIND=/data\n")
    status, output = bench.run(script(bench, **site), {"USER": "ada", "JOB": "17 $(touch canary)"})
    assert status == 0, output
    bound = (bench.path / "seen").read_text("utf-8")
    assert bound == "/data,/s/ada/17 $(touch canary)/`touch canary`/x"
    assert list((bench.path / "work").iterdir()) == []


def on_node(bench: Bench, agent: str, environment: str | None) -> tuple[str, str]:
    """What the script prints where the agent runs on node n2, and what the agent wrote."""
    step = "SLURMD_NODENAME=n2.site.org SLURM_NODEID=1"
    bench.command("srun", f'while [[ $1 == -* ]]; do shift; done; {step} "$@"')
    bench.command("scontrol", "echo n1")
    if environment is None:
        (bench.cluster / "environment").unlink()
    else:
        (bench.cluster / "environment").write_text(environment)
    if agent:
        bench.command("agent", agent)
    _, output = bench.run(script(bench, head_restarts=0), {"LD_LIBRARY_PATH": "/opt/lib"})
    seen = bench.path / "seen"
    return output, seen.read_text("utf-8") if seen.exists() else ""


def test_a_node_that_does_not_see_the_folder_is_named(bench: Bench) -> None:
    output, _ = on_node(bench, f'touch "{bench.path}/seen"', None)
    assert f"\nraysuite: n2: does not see {bench.cluster};" in output
    assert not bench.calls("agent")


def test_a_node_without_the_agents_program_is_named(bench: Bench) -> None:
    output, _ = on_node(bench, "", "A=1\n")
    assert "\nraysuite: n2: cannot run agent" in output


def test_a_sites_search_paths_come_before_the_nodes_own(bench: Bench) -> None:
    agent = f'echo "$PATH $LD_LIBRARY_PATH $A" >"{bench.path}/seen"'
    _, seen = on_node(bench, agent, "PATH=/site/bin\nLD_LIBRARY_PATH=/site/lib\nA=1\n")
    assert seen.split() == [f"/site/bin:{bench.path}/bin", "/site/lib:/opt/lib", "1"]


def test_lines_of_the_prologue_come_before_the_modules(bench: Bench) -> None:
    lines = ("module purge", "export SEEN=1", "module use '/my modules'")
    bench.command("srun", f'printf %s "$SEEN" >"{bench.path}/seen"')
    status, output = bench.run(script(bench, prologue=lines, modules=("CUDA/12.4",)))
    assert status == 0, output
    assert bench.calls("module") == [["purge"], ["use", "/my modules"], ["load", "CUDA/12.4"]]
    assert (bench.path / "seen").read_text("utf-8") == "1"


def test_a_percent_sign_is_no_pattern_of_sbatch() -> None:
    script = render(SlurmSite(), 1, Path("/home/100%j"), "/w", ("x",))
    assert "--output=/home/100%%j/logs/slurm.log" in read_options(script)


def test_bash_reads_paths_and_words_as_they_are() -> None:
    folder, word = "/home/ada/my $(id) clusters", "it's *"
    script = render(SlurmSite(), 1, Path(folder), "/w", ("x", word))
    lines = [each for each in script.splitlines() if each.startswith(("folder=", "command="))]
    program = "\n".join([*lines, r'printf "%s\0" "$folder" "${command[@]}"'])
    said = subprocess.check_output(["bash", "-euc", program], text=True)
    assert said.split("\0")[:-1] == [folder, "x", word]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folder": Path("/a\n#SBATCH --wrap=x")}, "the cluster's folder"),
        ({"folder": Path("/a\\b")}, "without backslashes"),
        ({"working_folder": "/a\0b"}, "control characters"),
        ({"command": ("x", "a\nb")}, "word 1 of"),
    ],
)
def test_what_cannot_stand_in_a_script_is_refused(change: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {
        "site": SlurmSite(),
        "nodes": 1,
        "folder": Path("/f"),
        "working_folder": "/w",
        "command": ("x",),
    }
    with pytest.raises(UserError, match=words):
        render(**{**values, **change})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def script(bench: Bench, **site: Any) -> str:
    command = ("agent", str(bench.cluster))
    return render(SlurmSite(**site), 2, bench.cluster, str(bench.path), command)


def signalled(bench: Bench, text: str, number: signal.Signals, status: int) -> tuple[int, str]:
    """Start it, send the batch shell alone a signal, and let srun end with `status`."""
    go = bench.path / "go"
    bench.command("srun", f'while [[ ! -e "{go}" ]]; do sleep 0.05; done; exit {status}')
    process = bench.start(text)
    try:
        until(lambda: bench.calls("srun"))
        process.send_signal(number)
        if number == signal.SIGUSR1:
            until((bench.cluster / "stop.json").exists)
        go.touch()
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output


def test_a_good_end_is_one_start(bench: Bench) -> None:
    (bench.cluster / "stop.json").write_text("{}")
    (bench.cluster / "head.json").write_text("{}")
    status, output = bench.run(script(bench))
    assert status == 0, output
    ((*_, agent, folder),) = bench.calls("srun")
    assert (agent, folder) == ("agent", str(bench.cluster))
    assert not (bench.cluster / "stop.json").exists(), "an earlier attempt's"
    assert not (bench.cluster / "head.json").exists(), "an earlier attempt's"
    assert not bench.calls("scontrol")


@pytest.mark.parametrize(
    ("restarts", "status", "said"), [(2, 0, "start 2 of 2"), (1, 9, "no start is")]
)
def test_a_head_that_dies_twice_is_started_again_as_often_as_the_site_has_it(
    bench: Bench, restarts: int, status: int, said: str
) -> None:
    bench.command("srun", "exit $((n < 2 ? 9 : 0))")
    found, output = bench.run(script(bench, head_restarts=restarts))
    assert found == status, output
    assert len(bench.calls("srun")) == 1 + restarts
    assert said in output


@pytest.mark.parametrize("requeue", [True, False])
def test_after_a_lost_node_no_second_step_is_asked_for(bench: Bench, requeue: bool) -> None:
    bench.command("srun", "exit 9")
    bench.command("squeue", "echo 3")
    status, output = bench.run(script(bench, requeue=requeue))
    assert status == 9, output
    assert len(bench.calls("srun")) == 1
    assert bench.calls("squeue") == [["--noheader", "--noconvert", "--jobs=17", "--format=%D"]]
    assert bench.calls("scontrol") == ([["requeue", "17"]] if requeue else [])


@pytest.mark.parametrize("requeue", [True, False])
def test_a_step_that_srun_waits_for_in_vain_is_ended(bench: Bench, requeue: bool) -> None:
    gone = bench.path / "gone"
    ends = f'touch "{bench.cluster}/over"; while [[ ! -e "{gone}" ]]; do sleep 0.05; done; exit 143'
    bench.command("srun", ends)
    bench.command("squeue", "case $* in *--steps*) echo 17.batch; echo 17.0;; *) echo 4;; esac")
    bench.command("scancel", f'touch "{gone}"')
    patient = script(bench, requeue=requeue)
    text = patient.replace("over == 30", "over == 1")
    assert text != patient
    status, output = bench.run(text)
    assert status == 143, output
    assert bench.calls("scancel") == [["17.0"]]
    assert len(bench.calls("srun")) == 1, "slurmd counts the lost step as running, for ever"
    assert bench.calls("scontrol") == ([["requeue", "17"]] if requeue else [])


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("head_lost", [True, False])
def test_nodes_that_are_left_without_the_first_end_the_job(
    bench: Bench, requeue: bool, head_lost: bool
) -> None:
    left = "n2" if head_lost else "n1 n2"
    # srun runs what follows its own options, with the job's nodes as SLURM's step has them
    bench.command("srun", 'while [[ $1 == -* ]]; do shift; done; SLURM_JOB_NODELIST="n1 n2" "$@"')
    bench.command("agent", "exit 9")
    bench.command("squeue", f"case $* in *%N*) echo {left};; *) echo 4;; esac")
    bench.command("scontrol", 'if [[ $1 == show ]]; then printf "%s\\n" $3; fi')
    bench.command("scancel")
    status, output = bench.run(script(bench, requeue=requeue, head_restarts=0))
    assert status == 9, output
    ended = [call for call in bench.calls("scontrol") if call[0] != "show"]
    assert ended == ([["requeue", "17"]] if head_lost and requeue else [])
    cancelled = bench.calls("scancel")
    assert cancelled == ([["17"]] if head_lost and not requeue else [])


@pytest.mark.parametrize("node", [0, 1])
def test_the_end_of_the_heads_agent_is_told_though_it_was_killed(bench: Bench, node: int) -> None:
    bench.command("srun", f'while [[ $1 == -* ]]; do shift; done; SLURM_NODEID={node} "$@"; exit 9')
    bench.command("agent", "kill -9 $$")
    bench.command("squeue", "case $* in *%N*) echo n1 n2;; *) echo 4;; esac")
    bench.command("scontrol", 'if [[ $1 == show ]]; then printf "%s\\n" n1 n2; fi')
    status, output = bench.run(script(bench, requeue=False, head_restarts=0))
    assert status == 9, output
    assert (bench.cluster / "over").exists() == (node == 0)


def test_the_warning_tells_the_agents_when_it_ends(bench: Bench) -> None:
    before = time.time()
    status, output = signalled(bench, script(bench, warn_seconds=300), signal.SIGUSR1, 1)
    file = bench.cluster / "stop.json"
    stop = Stop.model_validate_json(file.read_bytes())
    assert stop.reason == "time_limit"
    assert before + 299 <= stop.deadline <= time.time() + 300
    assert file.stat().st_mode & 0o777 == 0o600
    assert status == 0, output
    assert len(bench.calls("srun")) == 1, "what was asked to stop is not started again"
    assert not bench.calls("scontrol")


@pytest.mark.parametrize("suites", [True, False])
def test_suites_that_are_left_bring_the_cluster_back(bench: Bench, suites: bool) -> None:
    if suites:
        (bench.cluster / "suites" / "1.json").write_text("{}")
    status, output = signalled(bench, script(bench, requeue=True), signal.SIGUSR1, 0)
    assert status == 0, output
    assert bench.calls("scontrol") == ([["requeue", "17"]] if suites else [])


def test_a_cluster_that_goes_on_is_queued_again_before_its_limit(bench: Bench) -> None:
    (bench.cluster / "suites" / "1.json").write_text("{}")
    gone = bench.path / "gone"
    bench.command("srun", f'while [[ ! -e "{gone}" ]]; do sleep 0.05; done; exit 143')
    bench.command("scontrol", f'touch "{gone}"')
    process = bench.start(script(bench, requeue=True, warn_seconds=2))
    try:
        until(lambda: bench.calls("srun"))
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    assert bench.calls("scontrol") == [["requeue", "17"]], "once"
    assert len(bench.calls("srun")) == 1


def test_a_cluster_that_was_taken_down_stays_down(bench: Bench) -> None:
    (bench.cluster / "suites" / "1.json").write_text("{}")
    bench.command("srun", f'echo "{{}}" >"{bench.cluster}/stop.json"; exit 1')
    status, output = bench.run(script(bench, requeue=True))
    assert status == 0, output
    assert len(bench.calls("srun")) == 1
    assert not bench.calls("scontrol")


def test_a_cancelled_job_is_not_started_again(bench: Bench) -> None:
    status, output = signalled(bench, script(bench), signal.SIGTERM, 143)
    assert status == 0, output
    assert len(bench.calls("srun")) == 1


def test_modules_come_before_the_step_and_end_it_where_they_are_missing(bench: Bench) -> None:
    bench.command("module", "exit 1")
    status, _ = bench.run(script(bench, modules=("GCC/12", "CUDA/12.4")))
    assert status == 1
    assert bench.calls("module") == [["load", "GCC/12"]]
    assert not bench.calls("srun")


def test_a_second_user_sees_no_value_of_the_sites_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("root")
    values = {"DB_PASS": "hush it's $HOME", "HTTPS_PROXY": "http://me:hush@proxy:3128"}
    monkeypatch.setenv("PATH", f"{bench.path}/bin:{os.environ['PATH']}")
    bench.command("sbatch", "echo 17")
    bench.command("srun", 'while [[ $1 == -* ]]; do shift; done; "$@"')
    bench.command("agent", f'env >"{bench.path}/seen"; while [[ ! -e "{bench.path}/go" ]]; do '
                  "sleep 0.05; done")  # fmt: skip
    cluster = Cluster(
        name="a",
        site=SlurmSite(environment=values),
        nodes=1,
        created=0.0,
        working_folder=str(bench.path),
    )
    folder = ClusterFolder(bench.cluster)
    assert SlurmBackend().start(folder, cluster, ("agent", "an argument")).job == "17"
    process = bench.start(folder.script.read_text("utf-8"))
    try:
        until(lambda: bench.calls("agent"))
        session = ["/bin/ps", "-ww", "-o", "args=", "-s", str(process.pid)]
        seen = subprocess.check_output(session, user="nobody", text=True)
        (bench.path / "go").touch()
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    assert "an argument" in seen
    assert "hush" not in seen
    assert {f"{name}={value}" for name, value in values.items()} <= set(
        (bench.path / "seen").read_text("utf-8").splitlines()
    )
    written = {path.name: path.stat().st_mode & 0o777 for path in bench.cluster.glob("*")}
    assert {written[name] for name in ("environment", "job.sh")} == {0o600}
    assert "hush" not in folder.script.read_text("utf-8")
