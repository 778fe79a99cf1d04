"""Interval arithmetic against sets of whole numbers, and events whose parts are known."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raysuite.measure.shares import (
    DATA,
    STEP,
    WINDOW,
    Event,
    Interval,
    Intervals,
    horovod_collectives,
    minus,
    parts_of,
    seconds,
    union,
    within,
)

whenever = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine fails nothing."""

MARK = "an engine's own"
TRAINING, OTHER = 1, 2

some = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def points(intervals: list[Interval]) -> set[int]:
    return {point for begin, end in intervals for point in range(begin, end)}


def is_tidy(intervals: Intervals) -> bool:
    flat = [edge for each in intervals for edge in each]
    return all(left < right for left, right in itertools.pairwise(flat))


class TestIntervals:
    @whenever
    @given(some, some)
    def test_union(self, left: list[Interval], right: list[Interval]) -> None:
        found = union(left, right)
        assert points(found) == points(left) | points(right)
        assert is_tidy(found)

    @whenever
    @given(some, some, some)
    def test_minus(
        self, whole: list[Interval], left: list[Interval], right: list[Interval]
    ) -> None:
        found = minus(union(whole), union(left), union(right))
        assert points(found) == points(whole) - points(left) - points(right)
        assert is_tidy(found)

    @whenever
    @given(some, st.integers(0, 40), st.integers(0, 40))
    def test_within(self, whole: list[Interval], first: int, length: int) -> None:
        found = within(union(whole), (first, first + length))
        assert points(found) == points(whole) & set(range(first, first + length))
        assert is_tidy(found)

    @whenever
    @given(some)
    def test_seconds(self, whole: list[Interval]) -> None:
        assert seconds(union(whole)) == pytest.approx(len(points(whole)) / 1e9)


def events_of(*rows: tuple[str, float, float] | tuple[str, float, float, int]) -> list[Event]:
    """Events on the host from names and seconds, on the training thread unless told."""
    return [
        Event(name, int(begin * 1e9), int(end * 1e9), *(thread or [TRAINING]))
        for name, begin, end, *thread in rows
    ]


def kernels_of(*rows: tuple[str, float, float]) -> list[Event]:
    return [Event(name, int(b * 1e9), int(e * 1e9), 7, on_device=True) for name, b, e in rows]


class TestOnACpu:
    def test_each_second_goes_to_one_part(self) -> None:
        found = parts_of(
            events_of(
                (WINDOW, 10, 20),
                (DATA, 10, 12),
                ("aten::stack", 10, 11),  # the loader computes: loading
                (STEP, 12, 20),
                ("aten::conv2d", 12, 14),
                ("aten::_convolution", 12, 14),
                ("aten::mul", 13, 15, OTHER),  # another thread's
                ("autograd::engine::evaluate_function: AddmmBackward0", 14, 18),
                ("aten::mm", 14, 15),
                ("gloo:all_reduce", 14.5, 17, OTHER),
                (MARK, 15, 18),
                ("aten::add_", 17.5, 18),
            ),
            MARK,
        )
        assert found.window == 10
        assert found.computation == pytest.approx(2 + 1 + 0.5)
        assert found.communication == pytest.approx(3.5)
        assert found.communication_exposed == pytest.approx(2.5)
        assert found.data == found.data_exposed == pytest.approx(2)
        assert found.kernels == {}
        assert found.sources == ("torch.distributed", "waits")

    def test_a_hook_is_not_computation(self) -> None:
        """DDP calls its hooks within autograd's events."""
        found = parts_of(
            events_of(
                (WINDOW, 0, 4),
                ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 4),
                ("torch::autograd::AccumulateGrad", 0, 1),
                ("c10d::allreduce_", 1, 2),
                ("aten::copy_", 1, 2),  # of the collective itself
                ("_c10d_functional::wait_tensor", 2, 3),
            ),
            MARK,
        )
        assert found.computation == 0
        assert found.communication_exposed == pytest.approx(2)

    def test_what_is_beyond_the_window_is_left_out(self) -> None:
        found = parts_of(
            events_of(("aten::mm", 0, 5), (WINDOW, 4, 8), (DATA, 7, 9), ("gloo:all_gather", 8, 9)),
            MARK,
            timeline=[(6 * 10**9, 12 * 10**9)],
        )
        assert found.computation == pytest.approx(1)
        assert found.communication == pytest.approx(2)
        assert found.data == pytest.approx(1)
        assert found.data_exposed == 0
        assert found.sources == ("timeline",)


class TestOnAGpu:
    def test_kernels_by_class(self) -> None:
        found = parts_of(
            events_of((WINDOW, 0, 20), (DATA, 0, 2), ("c10d::allreduce_", 5, 6), (MARK, 5, 7))
            + kernels_of(
                ("sm80_xmma_fprop_implicit_gemm_f32f32", 2, 6),
                ("void at::native::vectorized_elementwise_kernel<4>", 6, 8),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 7, 11),
                ("Memcpy HtoD (Pinned -> Device)", 10, 12),
                ("Memcpy DtoD (Device -> Device)", 12, 13),
                ("dali::kernels::ResampleKernel", 12.5, 14),
            ),
            MARK,
        )
        assert found.kernels == {
            "communication": pytest.approx(4),
            "loading": pytest.approx(2 + 1.5),
            "convolution_gemm": pytest.approx(4),
            "other": pytest.approx(2 + 1),
        }
        assert found.computation == pytest.approx(7)
        assert found.communication == pytest.approx(4)  # the calls on the host do not count again
        assert found.communication_exposed == pytest.approx(3)
        assert found.data == pytest.approx(2 + 3.5)
        assert found.data_exposed == pytest.approx(2 + 1 + 1)
        assert found.sources == ("kernels",)

    def test_without_nccl_the_host_tells(self) -> None:
        found = parts_of(
            events_of((WINDOW, 0, 10), (MARK, 5, 8)) + kernels_of(("volta_sgemm_128x64", 1, 6)),
            MARK,
        )
        assert found.communication == pytest.approx(3)
        assert found.communication_exposed == pytest.approx(2)


names = st.sampled_from(
    ["aten::mm", "gloo:all_reduce", "c10d::allreduce_", DATA, STEP, MARK, "AddmmBackward0"]
)
spans = st.tuples(st.integers(0, 30), st.integers(0, 12))


@whenever
@given(
    st.lists(st.tuples(names, spans, st.sampled_from([TRAINING, OTHER])), max_size=20),
    st.lists(st.tuples(st.sampled_from(["nccl", "sgemm", "Memcpy HtoD", "x"]), spans), max_size=9),
)
def test_parts_never_exceed_the_window(
    host: list[tuple[str, Interval, int]], device: list[tuple[str, Interval]]
) -> None:
    events = [Event(name, at, at + long, thread) for name, (at, long), thread in host]
    events += [Event(name, at, at + long, 7, on_device=True) for name, (at, long) in device]
    found = parts_of([Event(WINDOW, 5, 25, TRAINING), *events], MARK)
    parts = (found.computation, found.communication_exposed, found.data_exposed)
    assert min(parts) >= 0
    assert sum(parts) <= found.window * (1 + 1e-9)
    assert found.communication_exposed <= found.communication <= found.window
    assert found.data_exposed <= found.data <= found.window


class TestHorovodsTimeline:
    ROWS = (
        {"ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1000}},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 2, "pid": 2},
        {"ph": "E", "ts": 5, "pid": 1},
        {"ph": "E", "ts": 5, "pid": 2},
        {"ph": "B", "name": "ALLREDUCE", "ts": 6, "pid": 1},
        {"ph": "B", "name": "ALLREDUCE", "ts": 7, "pid": 2},
        {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 7, "pid": 1},
        {"ph": "E", "ts": 9, "pid": 1},
        {"ph": "E", "ts": 10, "pid": 1, "args": {"dtype": "float32"}},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 11, "pid": 1},
        {"ph": "E", "ts": 12, "pid": 2},
        {"ph": "E", "ts": 15, "pid": 1},
        {"ph": "B", "name": "ALLREDUCE", "ts": 20, "pid": 1},
    )

    @pytest.mark.parametrize("end", ["]", ",", ', {"ph": "E", "t'])
    def test_transfers_in_the_wall_clock(self, tmp_path: Path, end: str) -> None:
        """Also of a file that breaks off."""
        file = tmp_path / "timeline.json"
        file.write_text("[\n" + ",\n".join(map(json.dumps, self.ROWS)) + end)
        assert horovod_collectives(file) == [(1_006_000, 1_012_000)]

    @pytest.mark.parametrize("text", ["", "[\n", "[]"])
    def test_nothing_was_under_way(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "timeline.json"
        file.write_text(text)
        assert horovod_collectives(file) == []
