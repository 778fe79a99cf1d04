"""Damaged journals, plans, specs and checkpoints: named or harmless, and no figure of an incomplete
run counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from raysuite.cli.watch import _view
from raysuite.errors import UserError
from raysuite.orchestrate import suite
from raysuite.parallel.base import read_state
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.trials import sweep_document
from raysuite.records import GateVerdict, Results, make_rows, results_figures
from raysuite.records.ends import is_left
from raysuite.records.sweep import trials
from raysuite.spec import read_document
from raysuite.spec.search_check import read_search
from raysuite.track.entries import run_points, run_tags
from raysuite.train.checkpoint import LoopState, latest_checkpoint
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_sweeps import write_sweep
from tests.unit.train.test_checkpoint import keep

OF_A_SWEEP = ("search.json", "decided.json")
TWO_ROWS = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2, 4, 8]", "[2]")


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def flipped(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def zeroed(content: bytes, draw: random.Random) -> bytes:
    """Blocks that never reached the disk."""
    begin = draw.randrange(len(content))
    end = min(len(content), begin + draw.choice([16, 512, 4096]))
    return content[:begin] + bytes(end - begin) + content[end:]


def lines(content: bytes, draw: random.Random) -> bytes:
    """Merged, lost, doubled or swapped."""
    found = content.splitlines(keepends=True)
    place = draw.randrange(len(found))
    match draw.randrange(4):
        case 0:
            found[place] = found[place].rstrip(b"\n")
        case 1:
            del found[place]
        case 2:
            found.insert(place, found[draw.randrange(len(found))])
        case 3:
            other = draw.randrange(len(found))
            found[place], found[other] = found[other], found[place]
    return b"".join(found)


@contextmanager
def changed(file: Path, draw: random.Random) -> Iterator[None]:
    before = file.read_bytes()
    change: Callable[[bytes, random.Random], bytes] = draw.choice([cut, flipped, zeroed, lines])
    file.write_bytes(change(before, draw))
    try:
        yield
    finally:
        file.write_bytes(before)


def look(results: Results) -> dict[str, Any]:
    """Run -> throughput and accuracy, of those that count in a mean, as report, MLflow, watch and
    resume read them."""
    runs = results_figures(results)
    for run in runs:
        list(run_points(run))
        run_tags(run, "x")
    suite.planned(results)
    view = _view(results)
    for plan in results.plans():
        view.add(RunPlan.model_validate(plan))
    view.poll(results)
    if results.search() is not None:
        read_search(sweep_document(results))
        results.decided()
        trials(results)
    counted = [run for row in make_rows(runs) for run in row.counted]
    for run in counted:
        assert [each.epoch for each in run.epochs] == list(
            range(run.plan["spec"]["training"]["epochs"])
        )
    return {run.run_id: (run.throughput, run.final_primary) for run in counted}


def read_gate(results: Results, run_id: str) -> GateVerdict | None:
    records = results.records(run_id)
    return next((each for each in records if isinstance(each, GateVerdict)), None)


def check_results(results: Results, spec: Path, count: int, draw: random.Random) -> None:
    expected = look(results)
    assert expected
    files = [*results.folder.rglob("journal.jsonl"), results.folder / "plan.json", spec]
    files += [path for path in map(results.folder.joinpath, OF_A_SWEEP) if path.exists()]
    for number in range(count):
        file = draw.choice(files)
        with changed(file, draw):
            named, found = "", expected
            try:
                found = look(results)
            except UserError as error:
                named = str(error)
            assert not named or file.name in named, (number, named)
            assert found.items() <= expected.items(), (number, file)
            # the others are known to be damaged, to have no end, or to have lost the gate's verdict
            for run_id in () if named else expected.keys() - found.keys():
                left = is_left(results.end_of(run_id))
                assert left or read_gate(results, run_id) is None, (number, file)
            try:
                make_plans(read_document(spec, []), gpus=0)
            except UserError:
                assert file == spec, (number, file)


@pytest.mark.parametrize("count", [30, pytest.param(3750, marks=pytest.mark.thorough)])
def test_damage_is_named_and_no_figure_of_an_incomplete_run_counts(
    tmp_path: Path, count: int
) -> None:
    draw = random.Random(count)
    suite_folder, sweep_folder = tmp_path / "suite", tmp_path / "sweep"
    results = write_results(suite_folder, TWO_ROWS)
    check_results(results, suite_folder / "spec.yaml", count // 3 * 2, draw)
    sweep = write_sweep(sweep_folder, trials=3)
    check_results(sweep, suite_folder / "spec.yaml", count // 3, draw)


@pytest.mark.parametrize("count", [10, pytest.param(1250, marks=pytest.mark.thorough)])
def test_a_damaged_checkpoint_is_named_or_its_state_is_whole(tmp_path: Path, count: int) -> None:
    keep(tmp_path / "x")
    expected = read_state(tmp_path / "x" / "engine.pt")
    state = LoopState.read(tmp_path / "x")
    draw = random.Random(count)
    for number in range(count):
        with changed(draw.choice(sorted((tmp_path / "x").iterdir())), draw):
            found, why = latest_checkpoint(tmp_path / "x", "mine", 1)
            if found is None:
                assert str(tmp_path / "x") in why, number
                continue
            assert LoopState.read(found) == state, number
            read = read_state(found / "engine.pt")
            assert torch.equal(read["model"], expected["model"]), number
