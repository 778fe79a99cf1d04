"""A trial's values -> its plan, and mistakes that name the line in the space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from raysuite.errors import Mistake, SpecError, UserError
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.space import drawn
from raysuite.plan.trials import (
    check_retry,
    check_space,
    create_sweep,
    idle_parts,
    latest_sweep,
    most_epochs,
    plans_of_space,
    set_more_trials,
    specs_of_space,
    sweep_document,
    trial_plan,
    write_more_trials,
)
from raysuite.records import Results
from raysuite.records.journal import Decided
from raysuite.spec import Document, parse_document, read_document
from raysuite.spec.document import set_key
from raysuite.spec.search_check import read_search
from tests.fake_results import write_results
from tests.small_sets import OwnSet

BASE = """\
name: a
model: resnet20
data: digits
training: {epochs: 2, global_batch: 8}
strategy: {name: ddp, bucket_mb: 3}
"""
SEARCH = """\
search:
  trials: 8
  space:
    optimizer.lr: {loguniform: [0.01, 1.0]}
    strategy: {choice: [ddp, {name: deepspeed, overlap_comm: true}]}
    strategy.zero_stage: {choice: [0, 1], when: {strategy: deepspeed}}
    resources.workers: {choice: [1, 2, 3]}
"""


def document(text: str = SEARCH, base: str = BASE) -> Document:
    return parse_document(base + text, "x.yaml")


def wrong(text: str, base: str = BASE) -> tuple[Mistake, ...]:
    found = document(text, base)
    with pytest.raises(SpecError) as caught:
        check_space(found, read_search(found))
    return caught.value.mistakes


def test_a_trial_is_a_run_of_its_own() -> None:
    values: dict[str, Any] = {
        "strategy.zero_stage": 1,
        "optimizer.lr": 0.2,
        "strategy": {"name": "deepspeed", "overlap_comm": True},
        "resources.workers": 2,
    }
    plan = trial_plan(document(), values, 5, gpus=0)
    assert (plan.index, plan.repeat, plan.label) == (5, 0, values)
    assert plan.spec.strategy.model_dump() == {
        "name": "deepspeed",
        "overlap_comm": True,
        "zero_stage": 1,
        "offload": "none",
        "bucket_mb": 200.0,
    }
    assert (plan.workers, plan.peak_lr, plan.run_id[:4]) == (2, 0.2, "005-")
    assert (plan.spec.search, plan.spec.matrix) == (None, {})
    assert RunPlan.model_validate_json(plan.model_dump_json()) == plan


def test_it_is_the_very_run_of_a_spec_with_these_values() -> None:
    values = {"optimizer.lr": 0.2, "strategy": "ddp", "resources.workers": 2}
    plan = trial_plan(document(), values, 0, gpus=0)
    text = BASE.replace("{name: ddp, bucket_mb: 3}", "ddp")
    alone = parse_document(f"{text}optimizer: {{lr: 0.2}}\nresources: {{workers: 2}}\n", "y")
    (same,) = make_plans(alone, gpus=0)
    assert plan.spec == same.spec
    assert plan.run_id == same.run_id


def test_a_trial_that_cannot_be_names_the_line_of_its_value() -> None:
    with pytest.raises(SpecError) as caught:
        trial_plan(document(), {"strategy": "ddp", "resources.workers": 3}, 0, gpus=0)
    (found,) = caught.value.mistakes
    assert (found.key, found.line) == ("training.global_batch", 4)
    assert "3 workers" in found.message
    text = SEARCH + "    training.global_batch: {choice: [8, 9]}\n"
    with pytest.raises(SpecError) as caught:
        trial_plan(document(text), {"training.global_batch": 9, "resources.workers": 2}, 0, gpus=0)
    assert [each.line for each in caught.value.mistakes] == [13]


def test_what_depends_on_several_values_is_not_told_beforehand() -> None:
    found = document()
    check_space(found, read_search(found))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("training.label_smoothing: {uniform: [0, 1]}", "less than 1"),
        ("optimizer.momentum: {quniform: [-0.1, 0.9, 0.1]}", "equal to 0"),
        ("training.epochs: {uniform: [1, 2]}", "got "),
        ("training.epochs: {randint: [0, 3]}", "equal to 1"),
        ("training.clip_norm: {normal: [-1, 0.1]}", "greater than 0"),
        ("loader: {choice: [native, dalli]}", "'dali'"),
        ("strategy: {grid: [ddp, {name: ddp, zero_stage: 1}]}", "a key of deepspeed"),
        ("training.precision: {choice: [fp32, fp8]}", "got 'fp8'"),
    ],
)
def test_a_value_that_cannot_stand_at_its_key(line: str, words: str) -> None:
    base = BASE.replace("epochs: 2", "epochs: 3") if "epochs" in line else BASE
    (found,) = wrong(f"search:\n  trials: 3\n  space:\n    {line}\n", base)
    assert words in found.message
    assert found.line == 9


def test_a_conditional_value_is_tried_under_its_condition() -> None:
    (found,) = wrong(SEARCH.replace("[0, 1]", "[0, 4]"))
    assert (found.key, found.line) == ("strategy.zero_stage", 11)
    nested = "    strategy.offload: {choice: [none, nothing], when: {strategy.zero_stage: 1}}\n"
    (found,) = wrong(SEARCH + nested)
    assert (found.key, found.line) == ("strategy.offload", 13)


def test_several_at_once_and_those_of_the_spec_itself() -> None:
    found = wrong(SEARCH.replace("[0, 1]", "[5, 4]").replace("1, 2, 3", "0, 1"), BASE + "sed: 3\n")
    assert [(each.key, each.line) for each in found] == [
        ("sed", 6),
        ("strategy.zero_stage", 12),
        ("strategy.zero_stage", 12),
        ("resources.workers", 13),
    ]


def test_a_batch_that_is_found_by_trial_is_left_open() -> None:
    base = BASE.replace("global_batch: 8", "batch_per_worker: auto")
    found = document(SEARCH, base)
    check_space(found, read_search(found))
    assert trial_plan(found, {"strategy": "ddp"}, 0, gpus=0).undecided


def test_a_data_set_that_is_not_there() -> None:
    text = "search:\n  trials: 3\n  space:\n    data: {choice: [digits, mnist]}\n"
    (found,) = wrong(text)
    assert (found.key, found.line) == ("data.name", 9)


def test_a_trial_has_the_counts_of_its_data_set() -> None:
    base = BASE.replace("digits", "{name: 'tests.small_sets:OwnSet', image_size: 8}")
    plan = trial_plan(document(base=base), {"strategy": "ddp"}, 0, gpus=0)
    assert plan.dataset.train_samples == len(OwnSet("train"))


def test_a_required_block_may_be_searched() -> None:
    base = BASE.replace("model: resnet20\n", "")
    found = document("search: {trials: 2, space: {model: {grid: [resnet20, resnet32]}}}\n", base)
    check_space(found, read_search(found))
    names = [trial_plan(found, v, 0, gpus=0).spec.model.name for v in drawn(read_search(found))]
    assert names == ["resnet20", "resnet32"] * 2


def test_a_sweep_is_taken_from_its_folder_again(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    scales = "scales: {small: {training.epochs: 1}}\n"
    file.write_text(BASE + scales + SEARCH, "utf-8")
    began = read_document(file, ["strategy.bucket_mb=7"], "small")
    results = create_sweep(began, tmp_path)
    assert (results.plans(), results.decided()) == ([], Decided([], is_all=False))
    assert Results.open(tmp_path).folder == results.folder, "before the first trial"
    assert (results.folder / "spec.yaml").read_text("utf-8") == BASE + scales + SEARCH
    again = sweep_document(results)
    assert read_search(again) == read_search(began)
    for number, values in enumerate(drawn(read_search(began))):
        if "deepspeed" in str(values):
            continue
        left = {**values, "resources.workers": 1}
        assert trial_plan(again, left, number, gpus=0) == trial_plan(began, left, number, gpus=0)
    with_more = sweep_document(results)
    set_more_trials(with_more, Document({"search": {**began.data["search"], "trials": 9}}, "y"))
    with pytest.raises(UserError, match="give more"):
        set_more_trials(again, began)
    results.write_decided(Decided([3], is_all=True))
    write_more_trials(with_more, results)
    assert results.decided() == Decided([3], is_all=False)
    assert (results.search() or {})["name"] == "a-small"
    assert read_search(sweep_document(results)).trials == 9
    for found in (again, with_more, sweep_document(results)):
        plan = trial_plan(found, {"strategy": "ddp"}, 0, gpus=0)
        assert (plan.spec.name, plan.spec.training.epochs) == ("a-small", 1)
        assert plan.spec.strategy.model_dump()["bucket_mb"] == 7.0


def test_the_newest_sweep_of_a_name_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing to resume: .*/a contains no sweep"):
        latest_sweep(document(), tmp_path)
    first, second = create_sweep(document(), tmp_path), create_sweep(document(), tmp_path)
    create_sweep(document(base=BASE.replace("name: a", "name: b")), tmp_path)
    write_results(tmp_path / "a" / "9999-runs")
    assert first.folder != second.folder
    assert latest_sweep(document(), tmp_path).folder == second.folder
    renamed = first.folder.rename(first.folder.with_name("zebra"))
    os.utime(renamed / "search.json", (0, 0))
    assert latest_sweep(document(), tmp_path).folder == second.folder


def test_each_listed_value_and_end_of_a_range_is_in_a_spec_of_a_space() -> None:
    found = document()
    search = read_search(found)
    specs = specs_of_space(found, search)
    assert {spec.optimizer.lr for spec in specs} >= {0.01, 1.0}
    assert {spec.resources.workers for spec in specs} == {1, 2, 3}
    assert {getattr(spec.strategy, "zero_stage", None) for spec in specs} == {None, 0, 1}
    plans = plans_of_space(found, search, gpus=1)
    feasible = [number for number, spec in enumerate(specs) if spec.resources.workers != 3]
    assert [plan.index for plan in plans] == feasible
    assert [plan.spec for plan in plans] == [specs[number] for number in feasible]
    assert {(plan.workers, plan.device) for plan in plans} == {(1, "gpu"), (2, "cpu")}


def test_other_results_are_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="raysuite run --resume-from"):
        sweep_document(write_results(tmp_path))


EITHER = "strategy: {choice: [ddp, single]}"
LONG = "training: {choice: [{epochs: 7, global_batch: 8}, {epochs: 20, global_batch: 8}]}"


@pytest.mark.parametrize(
    ("space", "most"),
    [
        (["seed: {choice: [1, 2]}"], 9),
        (["training.epochs: {choice: [3, 12, 5]}"], 12),
        (["training.epochs: {choice: [3, 5]}"], 5),
        (["training.epochs: {randint: [3, 6]}"], 5),
        (["training.epochs: {quniform: [2, 6, 2]}"], 6),
        ([EITHER, "training.epochs: {choice: [2, 4], when: W}"], 9),
        ([EITHER, "training.epochs: {choice: [2, 14], when: W}"], 14),
        ([LONG], 20),
        ([LONG.replace("20", "8")], 8),
        ([LONG, "training.epochs: {choice: [2, 4]}"], 4),
        ([LONG, EITHER, "training.epochs: {choice: [4], when: W}"], 20),
        ([EITHER, LONG.replace("20", "8").replace("]}", "], when: W}")], 9),
    ],
)
def test_the_most_epochs_are_those_of_whichever_trial(space, most):
    keys = [f"    {key.replace('W', '{strategy: ddp}')}" for key in space]
    found = document(
        "\n".join(["search:", "  trials: 3", "  space:", *keys]),
        BASE.replace("epochs: 2", "epochs: 9"),
    )
    search = read_search(found)
    assert most_epochs(found, search) == most
    check_space(found, search)
    specs = [trial_plan(found, values, 0, gpus=0).spec for values in drawn(search)]
    assert all(spec.training.epochs <= most for spec in specs)


@pytest.mark.parametrize(
    ("brackets", "epochs", "most"),
    [(1, 1, None), (2, 3, 1), (2, 4, None), (3, 9, 2), (3, 10, None), (9, 2, 1)],
)
def test_brackets_without_a_rung_before_the_last_epoch_are_refused(
    brackets: int, epochs: int, most: int | None
) -> None:
    asha = f"scheduler: {{name: asha, reduction_factor: 3, brackets: {brackets}}}"
    text = f"search:\n  trials: 3\n  space: {{seed: {{choice: [1, 2]}}}}\n  {asha}\n"
    base = BASE.replace("epochs: 2", f"epochs: {epochs}")
    if most is None:
        check_space(found := document(text, base), read_search(found))
        return
    (mistake,) = wrong(text, base)
    assert (mistake.key, mistake.line) == ("search.scheduler.brackets", 9)
    assert f"at most {most}," in mistake.message


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("scheduler: {name: asha, grace_epochs: 1}", []),
        ("scheduler: {name: asha, grace_epochs: 2}", ["grace_epochs is 2"]),
        ("scheduler: {name: median, grace_epochs: 5}", ["grace_epochs is 5"]),
        ("scheduler: {name: median, min_trials: 2}", []),
        ("scheduler: {name: median, min_trials: 3}", ["compared with only 2 others"]),
        ("searcher: {name: optuna, startup_trials: 2}", []),
        ("searcher: {name: optuna, startup_trials: 3}", ["startup_trials is 3"]),
    ],
)
def test_options_that_leave_a_part_of_a_sweep_idle_are_named(part: str, words: list[str]) -> None:
    found = document(f"search:\n  trials: 3\n  space: {{seed: {{randint: [1, 9]}}}}\n  {part}\n")
    said = list(idle_parts(found, read_search(found)))
    assert [word in line for word, line in zip(words, said, strict=True)] == [True] * len(words)


def test_epochs_that_are_set_hold_for_each_block_that_is_drawn():
    found = document(f"search: {{trials: 3, space: {{{LONG}}}}}")
    set_key(found, "training.epochs", 30)
    found.overrides["training.epochs"] = 30
    assert most_epochs(found, read_search(found)) == 30


PBT = """\
search:
  trials: 8
  space: {optimizer.lr: {loguniform: [0.01, 1.0]}}
  scheduler: {name: pbt, interval_epochs: 1}
"""
GRID = "search: {searcher: grid, space: {seed: {grid: [1, 2]}}}\n"


@pytest.mark.parametrize(
    ("began", "wanted", "words"),
    [
        (SEARCH, "7", "search.trials=7 was given, and this sweep has 8"),
        (SEARCH, "8", "search.trials=8 was given, and this sweep has 8"),
        (SEARCH, "9", ""),
        (PBT, "9", "of a population"),
        (GRID, "9", "number of trials of a grid"),
        (SEARCH, "", "search.trials=None was given"),
    ],
)
def test_more_trials_are_for_sweeps_that_draw_them(began: str, wanted: str, words: str) -> None:
    found = document(began)
    other = document(SEARCH.replace("trials: 8", f"trials: {wanted}") if wanted else GRID)
    if not words:
        set_more_trials(found, other)
        assert read_search(found).trials == 9
        return
    before = read_search(found)
    with pytest.raises(UserError, match=words):
        set_more_trials(found, other)
    assert read_search(found) == before


def test_failed_trials_of_a_population_are_not_repeated() -> None:
    check_retry(document())
    with pytest.raises(UserError, match="leave --retry-failed out"):
        check_retry(document(PBT))
