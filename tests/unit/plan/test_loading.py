"""Which loaders are timed: names, numbers of threads, limits."""

from __future__ import annotations

import pytest

from raysuite.errors import SpecError, UserError
from raysuite.plan.loading import (
    LoadingPlan,
    candidates,
    checked_data,
    default_blocks,
    facts_of,
    loader_blocks,
    loader_options,
)
from raysuite.spec.datasets import DIGITS
from raysuite.spec.loaders import DaliOptions, NativeOptions, RayDataOptions


def names(blocks, threads=(1, 2), processes=()) -> list[str]:
    return [each.name for each in candidates(loader_blocks(blocks), threads, processes)]


def test_all_loaders_and_both_limits_for_each_number_of_threads():
    assert names(default_blocks(0), processes=(2,)) == [
        "native · 1 thread",
        "native · 2 threads",
        "native · 2 processes",
        "dali cpu · 1 thread",
        "dali cpu · 2 threads",
        "memory · 1 thread",
        "memory · 2 threads",
        "ray_data · 1 task",
        "ray_data · 2 tasks",
        "synthetic",
        "decoding alone · 1 thread",
        "decoding alone · 2 threads",
        "reading alone · 1 thread",
        "reading alone · 2 threads",
    ]


def test_dali_on_the_gpu_where_there_is_one():
    found = names(default_blocks(1))
    assert found[2:6] == [
        "dali cpu · 1 thread",
        "dali cpu · 2 threads",
        "dali gpu · 1 thread",
        "dali gpu · 2 threads",
    ]


def test_a_number_that_is_given_is_taken_as_it_is():
    blocks = [{"name": "native", "processes": 3}, {"name": "native", "threads": 0}, "native"]
    assert names(blocks, threads=(2,)) == [
        "native · 3 processes",
        "native · the worker itself",
        "native · 2 threads",
        "decoding alone · 1 thread",
        "decoding alone · 2 threads",
        "decoding alone · 3 threads",
        "reading alone · 1 thread",
        "reading alone · 2 threads",
        "reading alone · 3 threads",
    ]


def test_the_same_twice_is_timed_once_and_other_options_make_another():
    found = candidates(
        loader_blocks(["native", {"name": "native", "decode": "scaled"}, "native"]), [2], []
    )
    loaders = [each for each in found if each.kind == "loader"]
    assert [each.name for each in loaders] == [
        "native · 2 threads",
        "native · decode=scaled · 2 threads",
    ]
    assert loader_options(loaders[1]) == NativeOptions(threads=2, decode="scaled")


def test_options_are_those_of_a_spec():
    found = candidates(loader_blocks(["dali", "ray_data"]), [2], [])
    assert loader_options(found[0]) == DaliOptions(threads=2)
    assert loader_options(found[1]) == RayDataOptions(tasks=2)


def test_series_join_numbers_of_threads_but_not_processes():
    found = candidates(loader_blocks(["native"]), [1, 2], [2])
    assert [each.series for each in found[:3]] == ["native", "native", "native · processes"]
    assert len({each.name for each in found}) == len(found)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("nativ", "did you mean 'native'"),
        (7, "called None"),
        ({"threads": 2}, "called None"),
    ],
)
def test_what_is_no_loader(block, words):
    with pytest.raises(UserError, match=words):
        loader_blocks([block])


def test_options_that_a_loader_does_not_have():
    with pytest.raises(UserError, match=r"thread: unknown key; did you mean .loader.threads"):
        candidates(loader_blocks([{"name": "dali", "thread": 2}]), [1], [])
    with pytest.raises(UserError, match="threads is 1"):
        candidates(loader_blocks([{"name": "native", "threads": 1, "processes": 2}]), [1], [])


def test_a_comparison_is_titled_by_its_set_and_by_the_form_if_there_are_several():
    for data, title in (
        ({"name": "image_folder", "path": "x", "image_size": 8}, "image_folder"),
        ({"name": "mnist", "path": "x"}, "mnist idx"),
        ({"name": "mnist", "path": "x", "format": "tfrecord"}, "mnist tfrecord"),
    ):
        assert LoadingPlan.model_construct(data=checked_data(data)).title == title


def test_facts_are_counted_on_disk(tmp_path):
    assert facts_of(checked_data({"name": "digits"})) == DIGITS
    missing = checked_data({"name": "image_folder", "path": str(tmp_path / "no"), "image_size": 8})
    with pytest.raises(SpecError, match=r"data\.path: "):
        facts_of(missing)
    with pytest.raises(SpecError, match="image_folder needs `path`"):
        checked_data({"name": "image_folder", "image_size": 8})
