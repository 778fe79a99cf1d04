"""`python -m raysuite.train`: in one process and under torchrun, without Ray."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from raysuite.errors import RunError, UserError
from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import (
    EpochFinished,
    Journal,
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    results_figures,
)
from raysuite.records.batch_trials import BatchFound, BatchTried, TriedFile
from raysuite.report.build import collect
from raysuite.spec import parse_document
from raysuite.track.model_registry import weights_of
from raysuite.train import stop_together
from raysuite.train.__main__ import _end, _run, begin, decide, main
from raysuite.train.checkpoint import LoopState, write_sizes
from raysuite.train.run import execute
from raysuite.train.stop_together import SIGNALS, Signals, Stop
from tests.digit_arrays import DATA
from tests.fake_results import TWELVE_ROWS, write_results
from tests.torchrun import ROOT, torchrun

SPEC = f"""
name: plain
model: tests.tiny_model:Tiny
data: {json.dumps(DATA)}
training: {{epochs: 2, global_batch: 240, clip_norm: 1.0}}
resources: {{device: cpu}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return file


def losses(folder: Path) -> list[float]:
    results = Results.open(folder)
    (plan,) = results.plans()
    assert isinstance(results.end_of(plan["run_id"]), RunFinished)
    records = results.records(plan["run_id"])
    return [x for record in records if isinstance(record, EpochFinished) for x in record.losses]


def test_the_spec_of_a_script_is_refused_before_there_are_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "own.yaml").write_text("name: own\nscript: {command: own.yaml}\n")
    assert main([str(file), "--results", str(tmp_path / "results")]) == 2
    assert "a training script was given" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.integration
@pytest.mark.thorough
def test_a_rank_more_changes_no_loss(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(spec), "--results", str(tmp_path / "one")]) == 0
    assert "epoch 2/2" in capsys.readouterr().out
    ddp = ("strategy=ddp", "resources.workers=2", "--results", tmp_path / "two")
    said = torchrun(2, "raysuite.train", spec, *ddp)
    assert said.count("epoch 2/2") == 1  # rank 0 speaks for all
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 12
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_is_a_request_with_its_reason(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Signals(kept=True) as signals:
        assert signals.request() is None
        signal.raise_signal(number)
        assert signals.request() == Stop(SIGNALS[number])
    assert signal.getsignal(number) == before


@pytest.mark.integration
def test_a_signal_stops_it_and_it_goes_on(spec: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    call = [sys.executable, "-m", "raysuite.train", spec, "--results", folder]
    # longer than anybody waits: it ends by the signal
    call += ["training.epochs=20000", "training.checkpoint_every=0"]
    with subprocess.Popen(map(str, call), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        assert "epoch 1/" in process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
        said = process.stdout.read()
        assert process.wait(timeout=120) == 75
    assert "with --resume" in said
    results = Results.open(folder)
    assert printed == f"results: {results.folder}\n"
    assert results.folder.parent == folder / "plain"
    (plan,) = results.plans()
    stopped = results.records(plan["run_id"])[-1]
    assert isinstance(stopped, RunStopped)
    assert stopped.reason == "time_limit"
    assert results.end_of(plan["run_id"]) is None


@pytest.mark.integration
@pytest.mark.parametrize("cut_off", [False, True], ids=["whole", "killed between two renames"])
def test_a_run_that_is_taken_up_has_the_losses_of_one_left_alone(
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cut_off: bool,
) -> None:
    calls = iter([None] * 3 + [Stop("time_limit")] * 1000)
    monkeypatch.setattr(stop_together, "MEET_SECONDS", 0.0)
    monkeypatch.setattr(Signals, "request", lambda _: next(calls))
    call = [str(spec), "--results", str(tmp_path / "parts")]
    assert main(call) == 75
    monkeypatch.undo()
    if cut_off:
        (kept,) = (tmp_path / "parts").rglob("checkpoint")
        kept.rename(kept.with_name("checkpoint.old"))
    assert main([*call, "--resume"]) == 0
    capsys.readouterr()
    assert main([*call, "--resume"]) == 0
    assert "nothing to resume" in capsys.readouterr().err
    assert main([str(spec), "--results", str(tmp_path / "whole")]) == 0
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    records = Results.open(tmp_path / "parts")
    found = records.records(records.plans()[0]["run_id"])
    started = [record for record in found if isinstance(record, RunStarted)]
    assert [record.first_step > 0 for record in started] == [False, True]


@pytest.mark.integration
@pytest.mark.parametrize("damaged", ["checkpoint/engine.pt", "journal.jsonl"])
def test_a_run_whose_files_are_damaged_is_trained_again(
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damaged: str,
) -> None:
    """It is stopped in its second epoch; then a byte is changed."""
    calls = iter([None] * 8 + [Stop("preempted")] * 1000)
    call = [str(spec), "--results", str(tmp_path)]
    with monkeypatch.context() as patched:
        patched.setattr(stop_together, "MEET_SECONDS", 0.0)
        patched.setattr(Signals, "request", lambda _: next(calls))
        assert main(call) == os.EX_TEMPFAIL
    results = Results.open(tmp_path)
    [plan] = results.plans()
    folder = results.journal_file(plan["run_id"]).parent
    content = bytearray((folder / damaged).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / damaged).write_bytes(content)
    assert main([*call, "--resume"]) == 0
    records = results.records(plan["run_id"])
    started = [record for record in records if isinstance(record, RunStarted)][-1]
    assert started.first_step == 0
    assert ("engine.pt" if "engine.pt" in damaged else "the journal has only 0") in started.unread
    assert "weights_only" not in "".join(capsys.readouterr())
    [run] = results_figures(results)
    assert (run.status, len(run.epochs)) == ("finished", 2)


class DistError(RuntimeError):
    """Named as torch's error of a collective whose other end is gone."""


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (1, ValueError("no"), "ValueError: no"),
        (1, UserError("no"), "no"),
        (3, UserError("no"), "rank 2: no"),
    ],
)
def test_the_first_error_of_a_run_is_its_record_and_the_message_of_ranks_that_it_ended(
    tmp_path: Path, size: int, error: Exception, message: str
) -> None:
    [plan] = make_plans(parse_document(SPEC, "x.yaml"))
    results, world = Results(tmp_path), World(size - 1, size, 0, torch.device("cpu"))
    began = time.time()
    try:
        raise error
    except Exception as raised:
        first = _end(plan, results, world, raised, began)
    assert first == message
    for each in (DistError("closed"), KeyError("later")):
        found = _end(plan, results, World(0, size, 0, torch.device("cpu")), each, began)
        assert (found == message) == isinstance(each, DistError)
    [failed] = results.records(plan.run_id)
    assert isinstance(failed, RunFailed)
    assert (failed.reason, failed.message) == ("error", message)
    assert failed.detail.startswith("Traceback")
    assert f"{type(error).__name__}: no" in failed.detail
    assert _end(plan, results, world, error, time.time()) == message, "of a later attempt"
    assert len(results.records(plan.run_id)) == 2


@pytest.mark.parametrize(
    ("failed", "end"),
    [("rank 1: no", "the run ended: rank 1: no"), ("", "closed; --resume continues the run")],
)
def test_a_rank_that_lost_another_gives_its_error_or_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: str, end: str
) -> None:
    [plan] = make_plans(parse_document(SPEC, "x.yaml"))
    results = Results(tmp_path)

    def losing(*arguments: Any, **options: Any) -> Iterator[Record]:
        if failed:
            record = RunFailed(run_id=plan.run_id, reason="error", message=failed)
            Journal(results.journal_file(plan.run_id)).write(record)
        raise DistError("closed")

    monkeypatch.setattr("raysuite.train.__main__.recorded", losing)
    monkeypatch.setattr("raysuite.train.__main__._ENDING_S", 0.0)
    with pytest.raises(RunError, match=f"rank 0 lost another rank: {end}$"):
        _run(plan, results, resume=False, requested=lambda: None)


def test_ranks_have_the_results_folder_that_rank_0_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = HashStore()
    monkeypatch.setattr("raysuite.train.__main__.shared_store", lambda *_: store)
    monkeypatch.setenv("WORLD_SIZE", "2")
    document, found = parse_document(SPEC, "x.yaml"), list[Path]()
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        found.append(begin(document, tmp_path, ["x.yaml", "a=b c"]).folder)
    assert found == [*tmp_path.iterdir()] * 2
    assert (found[0] / "spec.yaml").read_text() == SPEC
    assert Results(found[0]).plans() == []
    assert capsys.readouterr().out == f"results: {found[0]}\n"


UNDECIDED = SPEC.replace("global_batch: 240", "batch_per_worker: auto")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_batch_is_searched_anew_unless_resumed_and_recorded_once_by_rank_0(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 samples fit, and 4 do not."""
    earlier: list[int] = []

    def search(wish: RunPlan, world: World, tried: TriedFile) -> int:
        earlier.append(len(tried.read()))
        if not earlier[-1]:
            tried.end(BatchTried(stage="alone", micro_batch=2, fits=True))
            tried.end(BatchTried(stage="alone", micro_batch=4, fits=False))
        return size

    size = 2
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr("raysuite.train.__main__.search_batch", search)
    [wish] = make_plans(parse_document(UNDECIDED, "x.yaml"))
    results = Results(tmp_path)
    for resume in (True, False, True, False):
        plan = decide(wish, results, resume)
        assert (plan.undecided, plan.micro_batch) == (False, 2)
    # rank 1 leaves the file to rank 0
    assert earlier == ([0, 2, 2, 2] if rank else [0, 0, 2, 0])
    found = [each for each in results.records(plan.run_id) if isinstance(each, BatchFound)]
    assert [(each.micro_batch, each.bound, len(each.tried)) for each in found] == (
        [] if rank else [(2, "memory", 2)] * 3  # not if it was recorded before it was resumed
    )
    if rank:
        size = 0
        with pytest.raises(RunError, match="no batch size was found"):
            decide(wish, results, False)


def test_a_search_that_lost_a_rank_to_memory_is_resumed_by_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: object) -> int:
        raise MemoryError("out of memory in steps of 8 samples")

    monkeypatch.setattr("raysuite.train.__main__.search_batch", search)
    [wish] = make_plans(parse_document(UNDECIDED, "x.yaml"))
    with pytest.raises(RunError, match=r"rank 0: out of memory .* with --resume to try a smaller"):
        decide(wish, Results(tmp_path), False)


FINISHED = RunFinished.model_construct()
STOPPED = RunStopped(run_id="", reason="time_limit", epoch=0, step=3)
FAILED = RunFailed(run_id="", reason="diverged", message="")


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([FINISHED, FINISHED], 0),
        ([FINISHED, FAILED], 1),
        ([FAILED, FINISHED], 1),
        ([None, FINISHED], 1),
        ([STOPPED], os.EX_TEMPFAIL),
        ([FAILED, STOPPED], os.EX_TEMPFAIL),
    ],
)
def test_runs_follow_one_another_until_one_is_stopped(
    ends: list[Record | None], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two seeds, each with one and with two workers."""
    left, seeds = iter(ends), list[tuple[int, int]]()

    def run(plan: RunPlan, results: Results, resume: bool, *_: object) -> Record | None:
        assert not resume
        seeds.append((plan.seed, plan.workers))
        return next(left)

    monkeypatch.setattr("raysuite.train.__main__._run", run)
    (file := tmp_path / "spec.yaml").write_text(SPEC.replace("{device: cpu}", MATRIX))
    assert main([str(file), "--results", str(tmp_path / "results")]) == code
    assert seeds == [(1, 1), (2, 1)][: len(ends)]


def test_a_second_process_does_not_resume_a_run_that_is_executed(
    spec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call, runs = [str(spec), "--results", str(tmp_path / "results")], list[str]()

    def run(plan: RunPlan, results: Results, *_: object) -> Record:
        runs.append(plan.run_id)
        assert main([*call, "--resume"]) == 2
        assert f"{results.folder} is being written by process {os.getpid()}" in (
            capsys.readouterr().err
        )
        return FINISHED

    monkeypatch.setattr("raysuite.train.__main__._run", run)
    assert main(call) == 0
    assert len(runs) == 1


MATRIX = "{device: cpu}\nstrategy: ddp\nmatrix: {resources.workers: [1, 2], seed: [1, 2]}"


@pytest.mark.parametrize("resume", [True, False])
def test_a_partial_checkpoint_is_removed_and_an_older_one_is_left_to_a_resumed_run(
    resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysuite.train.__main__.recorded", lambda *_, **given: iter(()))
    [plan] = make_plans(parse_document(SPEC, "x.yaml"))
    results = Results(tmp_path)
    kept = results.journal_file(plan.run_id).with_name("checkpoint")
    state = LoopState(
        run_id=plan.run_id, epoch=0, step=3, elapsed_seconds=1.0, time_to_accuracy=None
    )
    for folder in (kept, kept.with_name("checkpoint.partial")):
        folder.mkdir(parents=True)
        state.write(folder)
        write_sizes(folder)
    _run(plan, results, resume, requested=lambda: None)
    found = {each.name for each in kept.parent.iterdir() if each.is_dir()}
    assert found == ({"checkpoint"} if resume else set())


@pytest.mark.integration
def test_a_run_that_lost_a_rank_is_resumed_from_its_checkpoint(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raysuite.train import __main__ as module
    from raysuite.train import recording

    def losing(*arguments: Any, **options: Any) -> Iterator[Record]:
        for record in execute(*arguments, **options):
            if isinstance(record, EpochFinished) and record.epoch == 1:
                raise DistError("connection closed by peer")
            yield record

    monkeypatch.setattr(recording, "execute", losing)
    monkeypatch.setattr(module, "_ENDING_S", 0.2)
    folder = tmp_path / "lost"
    call = [str(spec), "--results", str(folder), "training.checkpoint_every=1"]
    assert main(call) == 1
    monkeypatch.undo()
    results = Results.open(folder)
    (plan,) = results.plans()
    assert results.end_of(plan["run_id"]) is None
    assert main([*call, "--resume"]) == 0
    started = [r for r in results.records(plan["run_id"]) if isinstance(r, RunStarted)]
    assert [record.first_step > 0 for record in started] == [False, True]
    assert len(losses(folder)) == 12


@pytest.mark.integration
@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_resumes_a_run_whose_rank_was_killed(
    spec: Path, tmp_path: Path, rank: int
) -> None:
    mark, folder = tmp_path / "mark", tmp_path / "results"
    mark.touch()
    model = f"{{name: 'tests.tiny_model:Killed', options: {{rank: {rank}, mark: {mark}}}}}"
    words = [spec, f"model={model}", "strategy=ddp", "resources.workers=2", "--results", folder]
    torchrun(2, "raysuite.train", *words, fails=True)
    results = Results.open(folder)
    (plan,) = results.plans()
    assert not mark.exists()
    assert results.end_of(plan["run_id"]) is None
    torchrun(2, "raysuite.train", *words, "--resume")
    started = [r for r in results.records(plan["run_id"]) if isinstance(r, RunStarted)]
    assert [record.first_step > 0 for record in started] == [False, True]
    assert len(losses(folder)) == 12


@pytest.mark.integration
def test_a_failed_run_left_alone_exits_1_and_is_repeated_on_request(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "failed"
    call = [str(spec), "--results", str(folder), "optimizer.lr=1.0e+30"]

    def attempts() -> int:
        results = Results.open(folder)
        (plan,) = results.plans()
        end = results.end_of(plan["run_id"])
        assert isinstance(end, RunFailed)
        assert end.reason == "diverged"
        return sum(isinstance(r, RunStarted) for r in results.records(plan["run_id"]))

    assert main(call) == 1
    assert attempts() == 1
    capsys.readouterr()
    assert main([*call, "--resume"]) == 1
    assert "--retry-failed" in capsys.readouterr().err
    assert attempts() == 1
    assert main([*call, "--resume", "--retry-failed"]) == 1
    assert attempts() == 2
    assert main([*call, "--retry-failed"]) == 2


@pytest.mark.integration
def test_a_failed_run_is_repeated_from_its_first_step_though_it_has_a_checkpoint(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raysuite.train import recording

    def failing(*arguments: Any, **options: Any) -> Iterator[Record]:
        for record in execute(*arguments, **options):
            if isinstance(record, EpochFinished) and record.epoch == 1:
                yield RunFailed(run_id=record.run_id, reason="diverged", message="", step=6)
                return
            yield record

    folder = tmp_path / "failed"
    call = [str(spec), "--results", str(folder), "training.checkpoint_every=1"]
    with monkeypatch.context() as patched:
        patched.setattr(recording, "execute", failing)
        assert main(call) == 1
    results = Results.open(folder)
    (plan,) = results.plans()
    assert results.journal_file(plan["run_id"]).with_name("checkpoint").is_dir()
    assert main([*call, "--resume", "--retry-failed"]) == 0
    started = [r for r in results.records(plan["run_id"]) if isinstance(r, RunStarted)]
    assert [record.first_step for record in started] == [0, 0]


def test_each_call_has_a_results_folder_that_a_report_opens(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [str(spec), "--results", str(tmp_path), "training.epochs=1"]
    folders = []
    for _ in range(2):
        assert main(call) == 0
        folders.append(Path(capsys.readouterr().out.split()[1]))
    assert [folder.parent for folder in folders] == [tmp_path / "plain"] * 2
    report = collect(Results.open(tmp_path / "plain"))
    assert report.folder == folders[1] != folders[0]
    assert [row.status for row in report.rows] == ["finished"]
    assert report.spec_text == SPEC
    assert report.provenance["commands"] == [f"python -m raysuite.train {shlex.join(call)}"]
    assert weights_of(Results(folders[1]), report.runs[0].run_id).is_file()


def test_runs_of_other_work_are_not_resumed_into_one_folder(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [str(spec), "--results", str(tmp_path), "training.epochs=1"]
    assert main([*call, "--resume"]) == 2
    assert "nothing to resume" in capsys.readouterr().err
    assert main(call) == 0
    assert main([*call, "training.epochs=3", "--resume"]) == 2
    assert "training.epochs was 1 and is now 3" in capsys.readouterr().err
    assert main([*call, "measure.warmup_steps=1", "--resume"]) == 0


def test_another_number_of_processes(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(spec), "resources.workers=2", "strategy=ddp"]) == 2
    said = capsys.readouterr().err
    assert "started with 1 processes, but the runs have [2] workers" in said
    assert "torchrun --nproc-per-node N" in said


def test_one_batch_is_tried_of_each_network_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        SPEC.replace(
            "tests.tiny_model:Tiny", "{name: tests.networks:made, options: {which: unused}}"
        )
        + "strategy: horovod\nmatrix:\n  optimizer.weight_decay: [0, 0.01]\n"
    )
    call = [str(file), "data.image_size=8", "--results", str(tmp_path / "results")]
    assert main(call) == 2
    assert f"error: {file}:3: model.freeze: " in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_mistake_in_the_spec(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(spec), "strategy=dpd"]) == 2
    assert "'ddp'" in capsys.readouterr().err


@pytest.mark.parametrize(("fails", "code"), [([], 0), ([0], 1), ([1], 1), ([0, 1], 1)], ids=str)
def test_one_failed_run_of_several_sets_the_exit_code(
    tmp_path: Path, fails: list[int], code: int
) -> None:
    """Of runs that have ended, so that nothing is trained."""
    text = TWELVE_ROWS.replace("REPEATS", "1").replace("resources.workers: [1, 2]", "seed: [1, 2]")
    text = text.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[native, dali]", "[native]")
    failure = RunFailed(run_id="", reason="gate", message="differs")
    write_results(
        tmp_path / "made-up" / "20260102-030405", text, fails=dict.fromkeys(fails, failure)
    )
    (file := tmp_path / "spec.yaml").write_text(text)
    assert main([str(file), "--results", str(tmp_path), "--resume"]) == code
