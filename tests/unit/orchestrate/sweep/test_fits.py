"""Trials beside each other: no worker and no GPU is counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.orchestrate.leaving_nodes import Need
from raysuite.orchestrate.sweep.trial_source import Node, fits

LAPTOP = [Node(2, 0)]
GPU_NODES = [Node(8, 4), Node(8, 4)]

needs = st.builds(Need, st.integers(1, 4), st.integers(1, 4), st.booleans())
nodes = st.builds(Node, st.integers(0, 16).map(float), st.integers(0, 4).map(float))


@pytest.mark.parametrize(
    ("where", "running", "wanted", "expected"),
    [
        (LAPTOP, [], Need(2, 1, False), True),
        (LAPTOP, [], Need(3, 1, False), False),
        (LAPTOP, [Need(1, 1, False)], Need(1, 1, False), True),
        (LAPTOP, [Need(1, 1, False)], Need(2, 1, False), False),
        (LAPTOP, [], Need(1, 1, True), False),
        (GPU_NODES, [Need(4, 1, True)], Need(4, 1, True), True),
        (GPU_NODES, [Need(4, 1, True), Need(4, 1, True)], Need(1, 1, True), False),
        # eight CPUs are left in all, and no node has five
        (GPU_NODES, [Need(2, 4, False)], Need(2, 5, False), False),
        # the larger worker is placed first, in whatever order the trials are
        ([Node(4, 0), Node(3, 0)], [Need(1, 3, False)], Need(1, 4, False), True),
        # a worker that needs no GPU goes where there is none
        ([Node(2, 2), Node(2, 0)], [Need(2, 1, False)], Need(2, 1, True), True),
    ],
)
def test_free_resources_are_those_that_no_running_trial_has(where, running, wanted, expected):
    assert fits(where, running, wanted) is expected


@given(st.lists(nodes, max_size=4), st.lists(needs, max_size=4), needs)
def test_no_resource_is_counted_twice(where, running, wanted):
    if fits(where, running, wanted):
        every = [*running, wanted]
        assert sum(need.workers * need.cpus for need in every) <= sum(node.cpus for node in where)
        gpus = sum(need.workers for need in every if need.gpu)
        assert gpus <= sum(node.gpus for node in where)


@given(st.lists(nodes, max_size=4), st.lists(needs, max_size=4), needs)
def test_what_fits_beside_others_fits_alone(where, running, wanted):
    if fits(where, running, wanted):
        assert fits(where, [], wanted)
