"""Specs -> RunPlans: numbers, order, identity and groups."""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.errors import SpecError
from raysuite.plan import RunPlan, groups, make_plans
from raysuite.plan import resolve as resolve_module
from raysuite.plan import trials as trials_module
from raysuite.plan.trials import trial_plan
from raysuite.spec import parse_document
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.loaders import AutoOptions, MemoryOptions, NativeOptions

BASE = """\
name: a
model: resnet20
data: digits
"""
BATCH = "training: {epochs: 2, global_batch: 64}\n"


def plans(text: str, gpus: int = 0) -> list[RunPlan]:
    return make_plans(parse_document(BASE + text, "x.yaml"), gpus)


def test_the_numbers_of_one_run() -> None:
    (plan,) = plans(
        "training: {epochs: 3, global_batch: 96, accumulate: 3}\n"
        "strategy: ddp\nresources: {workers: 2}\nseed: 5\n"
        "optimizer: {lr: 0.1, lr_reference_batch: 32}\n"
    )
    assert (plan.global_batch, plan.micro_batch, plan.accumulate) == (96, 16, 3)
    assert (plan.steps_per_epoch, plan.total_steps) == (15, 45)
    assert plan.peak_lr == pytest.approx(0.3)
    assert (plan.index, plan.repeat, plan.seed, plan.device) == (0, 0, 5, "cpu")
    assert (plan.dataset.train_samples, plan.dataset.classes) == (1437, 10)


def test_weak_scaling_grows_the_batch_and_the_rate() -> None:
    found = plans(
        "training: {epochs: 1, batch_per_worker: 32}\nstrategy: ddp\n"
        "optimizer: {lr: 0.1, lr_reference_batch: 32}\nmatrix: {resources.workers: [1, 4]}\n"
    )
    assert [plan.global_batch for plan in found] == [32, 128]
    assert [plan.micro_batch for plan in found] == [32, 32]
    assert [plan.peak_lr for plan in found] == pytest.approx([0.1, 0.4])


@pytest.mark.parametrize(
    ("scaling", "rates"),
    [
        ("", [0.025, 0.1, 0.4]),
        (", lr_scaling: linear", [0.025, 0.1, 0.4]),
        (", lr_scaling: sqrt", [0.025, 0.05, 0.1]),
        (", lr_scaling: none", [0.025, 0.025, 0.025]),
    ],
)
@pytest.mark.parametrize("name", ["sgd", "lars", "lamb", "adamw"])
def test_0025_per_64_images(name: str, scaling: str, rates: list[float]) -> None:
    """Aach et al. 2023: 64 images a worker, 0.025 times the number of workers."""
    found = plans(
        "training: {epochs: 1, batch_per_worker: 64}\nstrategy: ddp\n"
        f"optimizer: {{name: {name}, lr: 0.025, lr_reference_batch: 64{scaling}}}\n"
        "matrix: {resources.workers: [1, 4, 16]}\n"
    )
    assert [plan.peak_lr for plan in found] == pytest.approx(rates, rel=1e-12)


def test_repeats_vary_slowest_and_seed_the_runs() -> None:
    found = plans(BATCH + "seed: 3\nrepeats: 2\nmatrix: {strategy: [ddp, deepspeed]}\n")
    facts = [(plan.index, plan.repeat, plan.seed, plan.spec.strategy.name) for plan in found]
    assert facts == [
        (0, 0, 3, "ddp"),
        (1, 0, 3, "deepspeed"),
        (2, 1, 4, "deepspeed"),
        (3, 1, 4, "ddp"),
    ]
    assert {plan.spec.repeats for plan in found} == {1}
    assert [plan.spec.seed for plan in found] == [3, 3, 4, 4]


def test_a_plan_survives_json() -> None:
    for plan in plans(BATCH + "matrix: {strategy: [ddp, {name: deepspeed, zero_stage: 2}]}\n"):
        assert RunPlan.model_validate_json(plan.model_dump_json()) == plan


def test_the_same_spec_gives_the_same_ids_and_runs_differ() -> None:
    text = BATCH + "repeats: 2\nmatrix: {strategy: [ddp, horovod], seed: [0, 1, 3]}\n"
    first, second = plans(text), plans(text)
    assert [plan.run_id for plan in first] == [plan.run_id for plan in second]
    assert len({plan.run_id for plan in first}) == 12
    changed = plans(text.replace("epochs: 2", "epochs: 3"))
    assert not {plan.run_id for plan in first} & {plan.run_id for plan in changed}


def test_loader_auto_is_stated_in_the_plan() -> None:
    (small,) = plans(BATCH + "loader: auto\n")
    assert (small.spec.loader, small.label) == (MemoryOptions(threads=0), {})
    (named,) = plans(BATCH + "matrix: {loader: [auto]}\n")
    assert named.title == "single · memory(threads=0) · 1 worker"
    facts = DatasetFacts(60_000, 10_000, 10, channels=3, image_size=224)
    for data in (
        DataOptions(name="image_folder", path="x", image_size=8),
        DataOptions(name="digits"),
    ):
        assert AutoOptions().chosen(data, facts) == NativeOptions()
    mnist = DataOptions(name="mnist")  # 2**18 images of 2**10 values are the largest set held
    for train, grey, loader in (
        (2**18 - 5, 1, MemoryOptions(threads=0)),
        (2**18 - 4, 1, NativeOptions()),
        (2**16, 3, MemoryOptions(threads=0)),
        (2**17, 3, NativeOptions()),
    ):
        facts = DatasetFacts(train, 5, 10, channels=grey, image_size=32)
        assert AutoOptions().chosen(mnist, facts) == loader
    folder = DataOptions(name="mnist", format="folder")
    assert AutoOptions().chosen(folder, facts) == NativeOptions()


@pytest.mark.parametrize(
    ("training", "gpus", "found"),
    [
        ("precision: bf16", 1, "channels_last"),
        ("precision: bf16", 0, "contiguous"),
        ("precision: fp32", 1, "contiguous"),
        ("precision: fp32, memory_format: channels_last", 0, "channels_last"),
        ("precision: bf16, memory_format: contiguous", 1, "contiguous"),
    ],
)
def test_convolutions_are_channels_last_on_gpus_in_16_bits(
    training: str, gpus: int, found: str
) -> None:
    (plan,) = plans(BATCH.replace("}", f", {training}}}"), gpus)
    assert plan.memory_format == found


def test_a_run_id_is_of_what_runs_and_of_its_place(tmp_path: Path) -> None:
    (plan,) = plans(BATCH + "strategy: ddp\nloader: ray_data\nresources: {workers: 2}\n")
    assert re.fullmatch("000-ddp-ray-data-w2-[0-9a-f]{8}", plan.run_id)
    ids = [plans(BATCH + more)[0].run_id for more in ("", "track: wandb\n", "seed: 3\n")]
    assert ids[0] == ids[1] != ids[2], "where figures are sent to makes no other run"
    (script := tmp_path / "my train.py").touch()
    text = f"name: a\nscript: {{command: ['{script}']}}\nresources: {{workers: 2}}\n"
    (plan,) = make_plans(parse_document(text, "x.yaml"), 0)
    assert re.fullmatch("000-my-train(-py)?-w2-[0-9a-f]{8}", plan.run_id)
    assert plan.dataset == resolve_module.NO_FACTS
    assert plan.title == "my train.py · 2 workers"


def test_a_task_is_made_before_anything_starts_and_states_its_facts() -> None:
    text = "name: a\nmodel: 'my:Net'\ndata: {name: 'tests.task_sets:numbers'}\n" + BATCH
    text = text.replace("64}", "8, early_stopping: {patience: 1, metric: METRIC}}")

    def found(task: str, metric: str = "val_loss") -> list[RunPlan]:
        document = parse_document(text.replace("METRIC", metric) + f"task: {task}\n", "x.yaml")
        return make_plans(document, 0)

    (plan,) = found("regression")
    assert (plan.task.name, plan.task.unit) == ("regression", "samples")
    wrong = "{name: regression, options: {loss: cubic}}"
    metric = "got val_accuracy; valid for the task regression are val_loss and val_mae"
    for task, early, key, words in (
        (wrong, "val_loss", "task", "cubic"),
        ("regression", "val_accuracy", "training.early_stopping.metric", metric),
    ):
        with pytest.raises(SpecError) as caught:
            found(task, early)
        (mistake,) = caught.value.mistakes
        assert mistake.key == key
        assert words in mistake.message


def test_mistakes_of_all_variants_are_reported_together() -> None:
    with pytest.raises(SpecError) as caught:
        plans(BATCH + "strategy: ddp\nmatrix: {resources.workers: [3, 5, 2]}\n")
    (three, five) = caught.value.mistakes
    assert ("3 workers" in three.message, "5 workers" in five.message) == (True, True)


def test_a_set_that_is_not_here_is_listed_as_official_for_another_machine(tmp_path: Path) -> None:
    text = f"data: {{name: mnist, root: {tmp_path}}}\n" + BATCH
    document = parse_document(BASE.replace("data: digits\n", text), "x.yaml")
    (plan,) = make_plans(document, 0, elsewhere=True)
    assert (plan.dataset.train_samples, plan.dataset.val_samples) == (60_000, 10_000)


def test_titles() -> None:
    text = (
        BATCH + "repeats: 2\nmatrix:\n  resources.workers: [2]\n"
        "  strategy: [{name: ddp, bucket_mb: 1}]\n  loader: [dali]\n  training.accumulate: [2]\n"
    )
    first, second = plans(text)
    assert first.title == "ddp(bucket_mb=1) · dali · 2 workers · accumulate=2"
    assert second.title == first.title + " · repeat 1"
    assert plans(BATCH)[0].title == "single · native · 1 worker"
    [unset] = plans(BATCH + "matrix: {training.clip_norm: [null]}\n")
    assert unset.title == "single · native · 1 worker"


@pytest.mark.parametrize(
    ("resources", "gpus", "device"),
    [
        ("{workers: 2}", 0, "cpu"),
        ("{workers: 2}", 1, "cpu"),
        ("{workers: 2}", 2, "gpu"),
        ("{workers: 2, device: cpu}", 8, "cpu"),
        ("{workers: 2, device: gpu}", 2, "gpu"),
    ],
)
def test_devices(resources: str, gpus: int, device: str) -> None:
    (plan,) = plans(BATCH + f"strategy: ddp\nresources: {resources}\n", gpus)
    assert plan.device == device


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3", 3), ("GPU-a", 1), ("NoDevFiles", 0)],
)
def test_local_gpus_are_those_that_cuda_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    monkeypatch.setattr(resolve_module.glob, "glob", lambda _: ["a", "b", "c"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolve_module.local_gpus() == count


def test_without_a_number_the_gpus_of_this_machine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    document = parse_document(BASE + BATCH, "x.yaml")
    for module in (resolve_module, trials_module):
        monkeypatch.setattr(module, "local_gpus", lambda: 1)
    for gpus, device in ((None, "gpu"), (0, "cpu")):
        (plan,) = make_plans(document, gpus)
        assert (plan.device, trial_plan(document, {}, 0, gpus).device) == (device, device)


def sizes(text: str, gpus: int = 0, one_node: bool = True) -> list[int]:
    return [len(group) for group in groups(plans(BATCH + text, gpus), one_node)]


def test_runs_that_can_share_workers_stand_together() -> None:
    text = "matrix: {resources.workers: [1, 2], strategy: [horovod, ddp, deepspeed]}\n"
    found = [(p.workers, p.spec.strategy.name) for p in plans(BATCH + text)]
    assert found == [
        (1, "ddp"),
        (1, "deepspeed"),
        (1, "horovod"),
        (2, "ddp"),
        (2, "deepspeed"),
        (2, "horovod"),
    ]
    assert sizes(text) == [6]
    assert sizes(text, one_node=False) == [3, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [1]),
        ("repeats: 3\n", [3]),
        ("matrix: {strategy: [ddp, deepspeed], resources.cpus_per_worker: [1, 2]}\n", [2, 2]),
        ("resources: {fresh_workers: true}\nrepeats: 3\n", [1, 1, 1]),
        ("matrix: {loader: [native, dali], resources.fresh_workers: [true, false]}\n", [2, 1, 1]),
        (
            "matrix: {strategy: [{name: horovod, cycle_time_ms: 1}, {name: horovod, "
            "cycle_time_ms: 2}], loader: [native, dali]}\n",
            [2, 2],
        ),
        (
            "matrix: {loader: [native, dali], strategy: [{name: horovod, cycle_time_ms: 1}, "
            "{name: horovod, cycle_time_ms: 2}]}\n",
            [2, 2],
        ),
        ("strategy: horovod\nmatrix: {strategy.compression: [none, fp16]}\n", [2]),
        # between two runs that share, Horovod started with other values
        (
            "matrix: {strategy: [ddp, horovod, {name: horovod, cycle_time_ms: 2}]}\n",
            [2, 1],
        ),
        (
            "strategy: {name: horovod, cycle_time_ms: 2, fusion_threshold_mb: 1}\nrepeats: 2\n",
            [1, 1],
        ),
        ("strategy: jax\nresources: {device: cpu}\nrepeats: 2\n", [1, 1]),
        ("strategy: {name: deepspeed, zero_stage: 3}\nrepeats: 2\n", [2]),
        ("strategy: {name: deepspeed, zero_stage: 2}\nrepeats: 2\n", [2]),
    ],
)
def test_groups(text: str, expected: list[int]) -> None:
    assert sizes(text) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", [3]),
        ("measure: {profile: torch}\n", [3]),
        ("resources: {fresh_workers: true}\n", [1, 1, 1]),
    ],
)
def test_runs_of_a_script_have_processes_of_their_own_and_share_a_group(
    more: str, expected: list[int]
) -> None:
    text = f"name: a\nscript: {{command: '-m a.module'}}\nrepeats: 3\n{more}"
    found = groups(make_plans(parse_document(text, "x.yaml"), 0))
    assert [len(group) for group in found] == expected


def test_samples_that_are_no_images_are_contiguous_on_gpus_in_16_bits() -> None:
    text = "name: a\nmodel: 'my:Net'\ndata: {name: 'tests.task_sets:numbers'}\ntask: regression\n"
    training = "training: {epochs: 1, global_batch: 8, precision: bf16}\n"
    (plan,) = make_plans(parse_document(text + training, "x.yaml"), gpus=1)
    assert (plan.device, plan.memory_format) == ("gpu", "contiguous")


KINDS = """\
matrix:
  strategy: [ddp, horovod, {name: horovod, cycle_time_ms: 2},
             {name: horovod, cycle_time_ms: 2, fusion_threshold_mb: 1}]
  resources: [{workers: 1}, {workers: 2}, {workers: 1, cpus_per_worker: 2},
              {workers: 1, fresh_workers: true}]
"""


MANY = plans(BATCH + KINDS)


@given(st.randoms(use_true_random=False), st.booleans())
def test_neighbours_share_workers_where_each_two_of_them_may(
    draw: random.Random, one_node: bool
) -> None:
    def may(one: RunPlan, other: RunPlan) -> bool:
        needs: list[dict[str, Any]] = []
        cycles: set[Any] = set()
        for each in (one, other):
            spec = each.spec.model_dump()
            if spec["resources"]["fresh_workers"] or "fusion" in str(each.label):
                return False
            needs.append({**spec["resources"], **({"workers": 1} if one_node else {})})
            cycles |= {spec["strategy"].get("cycle_time_ms", -1)} - {-1}
        return needs[0] == needs[1] and len(cycles) <= 1

    expected: list[list[RunPlan]] = []
    runs = draw.choices(MANY, k=40)
    for run in runs:
        if expected and all(may(run, other) for other in expected[-1]):
            expected[-1].append(run)
        else:
            expected.append([run])
    assert groups(runs, one_node) == expected


def test_each_run_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunPlan] = []
    monkeypatch.setattr(resolve_module, "_stands_apart", seen.append)
    assert len(groups(MANY[:1] * 500)) == 1
    assert len(seen) == 500


def test_a_run_with_a_profile_has_workers_of_its_own() -> None:
    text = "repeats: 2\nmatrix: {measure.profile: [torch, nsight, off]}\n"
    found = groups(plans(BATCH + text, gpus=1))
    names = [[plan.spec.measure.profile for plan in group] for group in found]
    assert names == [["torch"], ["nsight"], ["off", "off"], ["nsight"], ["torch"]]


def test_rounds_are_turned_and_every_second_one_goes_backwards() -> None:
    text = "repeats: 5\nmatrix: {strategy: [ddp, deepspeed], loader: [native, dali]}\n"
    rounds = [
        [(plan.spec.strategy.name[:2], plan.spec.loader.name[0]) for plan in found]
        for _, found in itertools.groupby(plans(BATCH + text), lambda plan: plan.repeat)
    ]
    first = [("dd", "n"), ("dd", "d"), ("de", "n"), ("de", "d")]
    assert rounds == [
        first,
        first[::-1],
        first[1:] + first[:1],
        (first[1:] + first[:1])[::-1],
        first[2:] + first[:2],
    ]


@given(
    workers=st.integers(1, 8),
    accumulate=st.integers(1, 4),
    micro=st.integers(1, 40),
    epochs=st.integers(1, 100),
)
def test_the_numbers_belong_together(
    workers: int, accumulate: int, micro: int, epochs: int
) -> None:
    batch = workers * accumulate * micro
    (plan,) = plans(
        f"strategy: ddp\nresources: {{workers: {workers}}}\n"
        f"training: {{epochs: {epochs}, global_batch: {batch}, accumulate: {accumulate}}}\n"
    )
    assert plan.micro_batch == micro
    assert plan.micro_batch * plan.accumulate * plan.workers == plan.global_batch
    assert plan.steps_per_epoch == math.ceil(1437 / batch)
    assert plan.total_steps == plan.steps_per_epoch * epochs


def test_the_calls_of_planning_grow_with_the_number_of_runs() -> None:
    def calls(rates: int, repeats: int) -> int:
        count = 0

        def see(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        values = ", ".join(f"{0.01 + 0.001 * n:.3f}" for n in range(rates))
        text = BATCH + f"repeats: {repeats}\nmatrix: {{optimizer.lr: [{values}]}}\n"
        sys.setprofile(see)
        try:
            found = plans(text)
            groups(found)
        finally:
            sys.setprofile(None)
        assert len(found) == rates * repeats
        return count

    calls(2, 1)  # what is imported on first use
    small = calls(10, 1)
    assert calls(40, 1) < 4.2 * small
    assert calls(10, 4) < 4.2 * small
