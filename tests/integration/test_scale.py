"""Training scripts of the usual kinds, unchanged, under torch's launcher: what is measured of them
is what their own timers print."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from raysuite.cli import app
from raysuite.orchestrate.script_launch import run_script
from raysuite.plan import make_plans
from raysuite.records import (
    EpochFinished,
    GateVerdict,
    Record,
    Results,
    RunFailed,
    ScriptMeasured,
)
from raysuite.spec.document import Document
from tests import stepping
from tests.require import require

SCRIPTS = Path(__file__).parents[1] / "scripts"

pytestmark = [pytest.mark.integration]


def ran(
    folder: Path,
    command: Sequence[Any],
    workers: int = 1,
    warmup: int = 10,
    ending: Callable[[], bool] = lambda: False,
    **options: Any,
) -> tuple[dict[type, Any], str]:
    """Records of one run by their kind, and what rank 0 wrote."""
    data = {
        "name": "own",
        "script": {"command": [str(word) for word in command], **options},
        "resources": {"workers": workers, "device": "cpu"},
        "measure": {"warmup_steps": warmup},
    }
    (plan,) = make_plans(Document(data, "spec.yaml"), 0)
    results = Results(folder)
    run_script(plan, results, ending)
    found: list[Record] = results.records(plan.run_id)
    output = results.journal_file(plan.run_id).parent / "rank-0.log"
    written = output.read_text("utf-8") if output.exists() else ""  # a stopped run has none
    return {type(record): record for record in found}, written


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
KINDS: dict[str, tuple[list[Any], int, str | None]] = {
    "plain_ddp": (
        ["--batch", 8, "--samples", 320, "--epochs", 2, "--save", "FOLDER/last"],
        8,
        None,
    ),
    "fsdp2": ([8], 8, None),
    "deepspeed_json": (["--config", json.dumps(DEEPSPEED)], 16, "deepspeed"),
    "horovod_sgd": ([8], 8, "horovod"),
    "accelerate_accumulation": ([8], 32, "accelerate"),
    "fabric_ddp": ([8], 8, "fabric"),
    "lightning_trainer": ([8, "FOLDER"], 16, "lightning"),
}
"""Arguments, samples of a step and worker, and the part that is needed."""
EVALUATED = {("plain_ddp", 1): {40}, ("plain_ddp", 2): {20}} | {
    ("lightning_trainer", workers): {20} for workers in (1, 2)
}
"""Places of the steps that an evaluation and a checkpoint come before."""
WARMUP = 10


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_samples_and_times_are_those_of_the_scripts_own_timer(
    kind: str, workers: int, tmp_path: Path
) -> None:
    arguments, samples, part = KINDS[kind]
    if part is not None:
        require(part)
    filled = [str(word).replace("FOLDER", str(tmp_path)) for word in arguments]
    found, _ = ran(tmp_path, [SCRIPTS / f"{kind}.py", *filled], workers, WARMUP)
    assert RunFailed not in found, found[RunFailed]
    measured, epoch = found[ScriptMeasured], found[EpochFinished]
    ends = [
        json.loads(line.removeprefix("TIMER"))
        for log in sorted(tmp_path.glob("**/rank-*.log"))
        for line in log.read_text("utf-8").splitlines()
        if line.startswith("TIMER")
    ]
    assert [len(each) for each in ends] == [measured.steps] * workers
    assert measured.samples_per_step == samples * workers
    evaluated = EVALUATED.get((kind, workers), set())
    # each step at the pace of its slowest rank
    own = [
        max(each[place] - each[place - 1] for each in ends)
        for place in range(WARMUP, measured.steps)
        if place not in evaluated
    ]
    pauses = measured.left_out - len(evaluated)  # such as of another program: the longest ones
    own = sorted(own)[: len(own) - pauses]
    assert len(epoch.step_seconds) == len(own)
    assert math.fsum(epoch.step_seconds) == pytest.approx(math.fsum(own), rel=0.01)


# The verb, the gate and the profile.

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "own-script.md"


def scaled(folder: Path, *words: Any) -> dict[str, Any]:
    """rows.json of `raysuite scale WORDS`, or what was printed where it has failed runs."""
    options = ["--results", folder, "--no-mlflow", "--device", "cpu", "--quiet"]
    with pytest.raises(SystemExit) as ended:
        app([str(word) for word in ["scale", *options, *words]], standalone_mode=True)
    assert ended.value.code in (0, 1)
    (file,) = folder.glob("*/*/rows.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found | {"code": ended.value.code, "folder": file.parent}


def test_the_guides_script_scales_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    (code,) = re.findall(r"```python\n(# train.py\n.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    script.write_text(code)
    words = ["--workers", "1,2", "--repeats", 1, "--check", "--warmup-steps", 2, "--profile"]
    found = scaled(tmp_path / "results", *words, "--", script, "--batch", "{16 // workers}")
    assert found["code"] == 0
    one, two = found["rows"]
    assert [one["gate"], two["gate"]] == ["not needed", "passed"]
    assert [one["global_batch"], two["global_batch"]] == [16, 16]
    assert two["baseline"] == one["name"]
    rate = [row["throughput_samples_per_s"]["mean"] for row in (one, two)]
    assert two["speed_up"]["value"] == pytest.approx(rate[1] / rate[0])
    assert two["scaling"] == "strong"
    assert min(row["share_communication"]["mean"] for row in (one, two)) > 0
    verdicts = [run["verdict"] for run in found["runs"] if run["verdict"]]
    assert verdicts[0]["error"] < 1e-5
    for name in ("script-work.csv", "script-start.tex"):
        assert "train.py" in (found["folder"] / "tables" / name).read_text("utf-8")
    # a second time there is nothing left to run
    app(["run", "--resume-from", str(found["folder"]), "--no-mlflow"], standalone_mode=False)


DEFECTS = {
    "none": ("DDP(model)", "DistributedSampler(data)", None),
    "not wrapped": ("model", "DistributedSampler(data)", "parameters differ: rank 1"),
    "same samples": ("DDP(model)", "None", "same samples"),
    "a parameter apart": (
        "apart(model)",
        "DistributedSampler(data)",
        "parameters differ: rank 1 from rank 0 after step 1, in 2.bias",
    ),
}
CHECKED = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def apart(model):
    DDP._set_params_and_buffers_to_ignore_for_model(model, ["2.bias"])
    return DDP(model)
dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(320, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
model = MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 8, sampler=SAMPLER):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("defect", DEFECTS)
def test_seeded_defects_have_no_throughput(defect: str, tmp_path: Path) -> None:
    model, sampler, words = DEFECTS[defect]
    script = tmp_path / "train.py"
    script.write_text(CHECKED.replace("MODEL", model).replace("SAMPLER", sampler))
    found, _ = ran(tmp_path / "results", [script], workers=2, warmup=2, check=5)
    verdict = found[GateVerdict]
    assert verdict.passed == (words is None)
    assert "same random numbers" in verdict.message
    if words is not None:
        assert words in verdict.message
        assert found[RunFailed].reason == "gate"


AMDAHL = """
import os, sys, time, torch
serial, work, uneven = float(sys.argv[1]), 0.3, float(sys.argv[2])
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(30 * 8, 4))
for (x,) in torch.utils.data.DataLoader(data, 8 // ranks):
    # a sleep is computation that other processes do not slow down
    time.sleep(work * (serial + (1 - serial) / ranks) * (1 + uneven * (rank == 1)))
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.thorough
def test_a_serial_part_gives_amdahls_efficiency(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(AMDAHL)
    words = ["--workers", "1,2", "--repeats", 3, "--", script, 0.2, 0]
    _, two = scaled(tmp_path / "results", *words)["rows"]
    assert two["efficiency"]["value"] == pytest.approx(1 / (2 * (0.2 + 0.8 / 2)), abs=0.03)


@pytest.mark.thorough
def test_explain_names_the_rank_that_others_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(AMDAHL)
    words = ["--workers", "2", "--repeats", 1, "--profile", "--", script, 0, 0.3]
    found = scaled(tmp_path / "results", *words)
    capsys.readouterr()
    app(["report", str(found["folder"]), "--explain", "--json"], standalone_mode=False)
    (row,) = json.loads(capsys.readouterr().out)
    # 0.3 / 1.3, and less where other programs lengthen what the ranks have in common
    assert 0.1 < row["shares"]["straggler"] < 0.3
    assert "rank 1 waits least" in row["evidence"]


# What goes wrong.

STEPS = f"import sys, time, torch\nmodel = torch.nn.Linear(4, 2)\n{stepping.STEPS}"
PROBLEMS = {
    "never steps": ("print('done')", "no step of a torch optimiser"),
    "ends early": ("steps(3)", "3 steps"),
    "raises": ("steps(3); raise RuntimeError('no such\\nthing')", "rank 0: "),
    "exits": ("steps(3); sys.exit(7)", "rank 0: SystemExit: 7"),
    "killed": ("steps(3); import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    "hangs": ("steps(3); time.sleep(600)", "no rank took a step for 30 s (steps so far: rank 0: 3"),
    "no python": ("def", "SyntaxError"),
}


def left(marker: str) -> list[psutil.Process]:
    """Processes with a word on their command line."""
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if marker in " ".join(each.info["cmdline"] or []) and each.pid != os.getpid()
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_script_that_goes_wrong_ends_clearly(problem: str, tmp_path: Path) -> None:
    body, words = PROBLEMS[problem]
    script = tmp_path / "train.py"
    script.write_text(f"{STEPS}\n{body}\n")
    found, _ = ran(tmp_path / "results", [script], stall_s=30 if problem == "hangs" else 60)
    assert words in found[RunFailed].message
    assert not left(str(script))


def test_floods_ignored_signals_and_own_processes_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    marker = f"orphan-{os.getpid()}"
    script = tmp_path / "train.py"
    script.write_text(
        f"{STEPS}\n"
        "import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{marker}'],"
        " start_new_session=True)\n"
        "for _ in range(200):\n    print('x' * 10000)\n"
        "steps(50)\nprint('the end', flush=True)\n"
    )
    found, output = ran(tmp_path / "results", [script], warmup=2)
    assert found[ScriptMeasured].steps == 50
    assert found[ScriptMeasured].samples_per_step == 4
    assert len(output) <= 64 * 1024
    assert output.endswith("the end\n")
    assert not left(marker)
    assert not [*temporary.glob("torchelastic_*")]


@pytest.mark.thorough
def test_a_rank_that_hangs_ends_its_run_and_no_other(tmp_path: Path) -> None:
    marker = f"orphan-{os.getpid()}"
    script = tmp_path / "train.py"
    script.write_text(
        f"{STEPS}\n"
        "import os, signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{marker}'])\n"
        "torch.distributed.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(model)\n"
        "hangs = os.environ['RANK'] == '1'\n"
        "steps(3 if hangs else 50)\n"
        "if hangs:\n    time.sleep(600)\n"
    )
    words = ["--workers", "1,2", "--repeats", 1, "--stall", 60, "--warmup-steps", 2]
    found = scaled(tmp_path / "results", *words, "--", script)
    assert found["code"] == 1
    assert [row["throughput_samples_per_s"]["n"] for row in found["rows"]] == [1, 0]
    (reason,) = [run["reason"] for run in found["runs"] if run["status"] == "failed"]
    assert "no rank took a step for 60 s (steps so far: rank 0: 3, rank 1: 3)" in reason
    assert not left(marker)
    assert not left(str(script))


@pytest.mark.thorough
def test_a_run_that_is_stopped_has_no_end_and_no_orphan(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{STEPS}\nsteps(3)\ntime.sleep(600)\n")
    stop = threading.Event()
    threading.Timer(20.0, stop.set).start()
    began = time.monotonic()
    found, _ = ran(tmp_path / "results", [script], workers=2, ending=stop.is_set)
    assert [kind.__name__ for kind in found] == ["RunStarted"]
    assert time.monotonic() - began < 60
    assert not left(str(script))
