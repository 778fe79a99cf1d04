"""The same work on fewer workers."""

from __future__ import annotations

import pytest

from raysuite.plan import RunPlan, groups, make_plans
from raysuite.plan.resolve import smaller
from raysuite.records.names import series_key, variant_key, variant_name
from raysuite.spec import parse_document

SPEC = "name: a\nmodel: resnet20\ndata: digits\nrepeats: 2\nmatrix: {resources.workers: [2, 4]}\n"


def full(text: str, workers: int = 4) -> RunPlan:
    plans = make_plans(parse_document(SPEC + text, "x.yaml"), gpus=0)
    return next(plan for plan in plans if plan.workers == workers and plan.repeat == 1)


@pytest.mark.parametrize(
    ("most", "workers", "micro_batch", "accumulate"),
    [(9, 3, 20, 2), (3, 3, 20, 2), (2, 2, 30, 2), (1, 1, 30, 4)],
)
@pytest.mark.parametrize("batch", ["batch_per_worker: 30", "global_batch: 120"])
def test_the_global_batch_stays_and_no_micro_batch_grows(
    batch: str, most: int, workers: int, micro_batch: int, accumulate: int
) -> None:
    plan = full(f"strategy: ddp\ntraining: {{epochs: 3, {batch}}}\n")
    found = smaller(plan, most, 0, 7)
    assert found is not None
    assert (found.workers, found.micro_batch, found.accumulate) == (
        workers,
        micro_batch,
        accumulate,
    )
    same = ("global_batch", "peak_lr", "total_steps", "seed", "repeat", "dataset", "device")
    assert all(getattr(found, name) == getattr(plan, name) for name in same)
    assert found.index == 7
    assert RunPlan.model_validate_json(found.model_dump_json()) == found


def test_micro_batches_of_one_sample_stay_so() -> None:
    found = smaller(full("strategy: ddp\ntraining: {epochs: 1, batch_per_worker: 1}\n"), 3, 0, 7)
    assert found is not None
    assert (found.workers, found.micro_batch, found.accumulate) == (2, 1, 2)


def test_the_first_number_of_micro_batches_that_divides_the_batch_is_taken() -> None:
    """60 samples, 12 on each of five workers: on four, not 2 but 3 micro-batches."""
    text = SPEC.replace("matrix: {resources.workers: [2, 4]}", "resources: {workers: 5}")
    training = "strategy: ddp\ntraining: {epochs: 1, global_batch: 60}\n"
    (plan, *_) = make_plans(parse_document(text + training, "x.yaml"), gpus=0)
    found = smaller(plan, 4, 0, 7)
    assert found is not None
    assert (found.workers, found.micro_batch, found.accumulate) == (4, 5, 3)
    assert found.label == {"resources.elastic_of": 5}


def test_none_where_nothing_fits() -> None:
    batch = "training: {epochs: 1, global_batch: 120}\n"
    assert smaller(full(f"strategy: ddp\n{batch}"), 0, 0, 7) is None
    few = f"strategy: ddp\nresources: {{min_workers: 2}}\n{batch}"
    assert smaller(full(few), 1, 0, 7) is None
    assert smaller(full(few), 2, 0, 7) is not None
    fixed = full(f"strategy: {{name: ddp, static_graph: true}}\n{batch}")
    assert smaller(fixed, 2, 0, 7) is None, "DDP cannot accumulate in a static graph"


def test_it_stays_on_gpus_and_takes_no_more_workers_than_there_are() -> None:
    text = f"{SPEC}strategy: ddp\ntraining: {{epochs: 1, global_batch: 120}}\n"
    (plan, *_) = make_plans(parse_document(text.replace("2, 4", "4"), "x.yaml"), gpus=4)
    found = smaller(plan, 3, 2, 7)
    assert found is not None
    assert (plan.device, found.device, found.workers) == ("gpu", "gpu", 2)
    assert smaller(plan, 3, 0, 7) is None
    assert found.label == {"resources.workers": 2, "resources.elastic_of": 4}


def test_its_figures_are_its_own() -> None:
    batch = "strategy: ddp\ntraining: {epochs: 1, global_batch: 120}\n"
    two, four = full(batch, 2), full(batch, 4)
    found = smaller(four, 2, 0, 7)
    assert found is not None
    plans = [plan.model_dump(mode="json") for plan in (two, four, found)]
    for key in (variant_key, variant_name):
        assert len({key(plan) for plan in plans}) == 3
    assert series_key(plans[0]) == series_key(plans[1]) != series_key(plans[2])
    assert len({plan.run_id for plan in (two, four, found)}) == 3
    assert len(groups([two, found])) == 2
    assert found.title == "ddp · native · 2 workers · elastic_of=4 · repeat 1"


def test_it_can_be_made_smaller_again() -> None:
    plan = full("strategy: ddp\ntraining: {epochs: 1, global_batch: 120}\n")
    once = smaller(plan, 2, 0, 7)
    assert once is not None
    twice = smaller(once, 1, 0, 8)
    assert twice is not None
    assert (twice.workers, twice.spec.resources.elastic_of, twice.micro_batch) == (1, 4, 30)
