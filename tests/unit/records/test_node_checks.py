"""Which nodes are named as slow, by drawn figures."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.records import Results
from raysuite.records.node_checks import (
    CHECKS,
    FILE,
    NodeFigures,
    findings,
    lasting,
    read_checks,
    slow_nodes,
    write_checks,
)
from raysuite.report.build import collect

TYPICAL = {"matrix": 1800.0, "memory": 180.0, "disk": 900.0, "pairs": 1100.0}


def drawn(nodes: int, spread: float, draw: random.Random, **slower: float) -> list[NodeFigures]:
    """Figures that differ by `spread` (relative, normal); the first node's are so much slower."""
    return [
        NodeFigures(
            host=f"n{node}",
            when=0.0,
            figures={
                check: TYPICAL[check]
                * draw.gauss(1.0, spread)
                * (1 - slower.get(check, 0.0) if node == 0 else 1.0)
                for check in CHECKS
            },
            all_reduce_s=0.1,
            transports=[],
        )
        for node in range(nodes)
    ]


@pytest.mark.parametrize("nodes", [3, 4, 8, 64])
@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_of_fifty_checks_without_a_slow_node_two_at_most_name_one(
    nodes: int, spread: float
) -> None:
    draw = random.Random(nodes)
    named = sum(bool(slow_nodes(drawn(nodes, spread, draw))) for _ in range(50))
    assert named <= 2


@pytest.mark.parametrize(("slow_tries", "tries"), [(0, 1), (1, 2), (5, 6), (9, 6)])
def test_a_node_is_named_if_it_is_slow_in_every_try(slow_tries: int, tries: int) -> None:
    draw = random.Random(1)
    made: list[list[NodeFigures]] = []

    def measure() -> list[NodeFigures]:
        slower = {"disk": 0.6} if len(made) < slow_tries else {}
        made.append(drawn(3, 0.01, draw, **slower))
        return made[-1]

    found = lasting(measure)
    assert len(made) == tries
    assert [each.host for each in slow_nodes(found)] == (["n0"] if slow_tries > tries else [])
    assert [each.host for each in found] == ["n0", "n1", "n2"]
    for row, *same in zip(found, *made, strict=True):
        assert row.figures == {c: max(each.figures[c] for each in same) for c in CHECKS}


def test_tries_keep_the_best_of_each_figure_and_its_spread() -> None:
    first = drawn(3, 0.0, random.Random(0), memory=0.9)
    second = [
        row.model_copy(
            update={"figures": {"matrix": row.figures["matrix"] / math.e}, "all_reduce_s": 0.2}
        )
        for row in first
    ]
    tries = iter([first, *[second] * 5])
    found = lasting(lambda: next(tries))[1]
    assert (found.figures, found.all_reduce_s) == (first[1].figures, 0.1)
    assert found.spreads == {"matrix": pytest.approx(math.sqrt(1 / 6))}  # of 1, 0, 0, 0, 0, 0


@pytest.mark.parametrize(("spread", "named"), [(0.1, True), (0.25, False)])
def test_a_node_is_slow_beyond_what_its_tries_differ_by(spread: float, named: bool) -> None:
    rows = [
        row.model_copy(update={"spreads": {"disk": spread}})
        for row in drawn(3, 0.0, random.Random(0), disk=0.5)  # ln 2 = 0.69
    ]
    assert bool(slow_nodes(rows)) == named


def test_of_three_nodes_on_a_noisy_machine_none_is_named_but_a_slow_one_is() -> None:
    draw = random.Random(2)

    def measured(slower: float) -> list[NodeFigures]:
        return [
            row.model_copy(
                update={
                    "figures": {
                        check: value * math.exp(draw.gauss(0, 0.25))
                        for check, value in row.figures.items()
                    }
                }
            )
            for row in drawn(3, 0.0, draw, matrix=slower, memory=slower)
        ]

    wrong = sum(bool(slow_nodes(lasting(lambda: measured(0.0)))) for _ in range(50))
    right = sum(
        "n0" in {each.host for each in slow_nodes(lasting(lambda: measured(0.75)))}
        for _ in range(50)
    )
    assert wrong <= 2
    assert right >= 40


@pytest.mark.parametrize("check", CHECKS)
def test_a_node_of_half_the_speed_is_named_alone(check: str) -> None:
    draw = random.Random(1)
    for nodes in (3, 8, 64):
        found = [slow_nodes(drawn(nodes, 0.01, draw, **{check: 0.5})) for _ in range(20)]
        assert {(each.host, each.check) for slow in found for each in slow} == {("n0", check)}
        assert all(len(slow) == 1 and 0.4 < slow[0].share < 0.6 for slow in found)


@pytest.mark.parametrize(("middle", "named"), [([0.0], ["n0"]), ([-0.1, 0.1], [])])
def test_few_nodes_are_seven_and_not_eight(middle: list[float], named: list[str]) -> None:
    """Logarithms 0.1 from the median, so a deviation of 0.148; one of 0.4 is beyond two of these,
    and within five."""
    logs = [-0.4, -0.1, -0.1, *middle, 0.1, 0.1, 0.1]
    rows = [
        row.model_copy(update={"figures": {"disk": 900 * math.exp(each)}})
        for row, each in zip(drawn(len(logs), 0.0, random.Random(0)), logs, strict=True)
    ]
    assert [slow.host for slow in slow_nodes(rows)] == named


def test_of_two_nodes_none_is_named() -> None:
    assert slow_nodes(drawn(2, 0.01, random.Random(0), matrix=0.9)) == []


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-2], lambda c: c.replace(b"n0", b"n1"), bytes.upper]
)
def test_a_damaged_file_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    write_checks(file := tmp_path / FILE, drawn(2, 0.01, random.Random(0)))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=r"nodes\.jsonl is damaged; restore it from a copy"):
        read_checks(file)


def test_a_figure_that_a_node_lacks_is_left_out(tmp_path: Path) -> None:
    rows = drawn(4, 0.01, random.Random(0), matrix=0.5)
    rows[1] = rows[1].model_copy(update={"figures": {"memory": 180.0}})
    write_checks(tmp_path / "nodes.jsonl", rows)
    assert read_checks(tmp_path / "nodes.jsonl") == rows
    assert [slow.host for slow in slow_nodes(rows)] == ["n0"]
    zero = [row.model_copy(update={"figures": row.figures | {"disk": 0.0}}) for row in rows]
    assert [slow.host for slow in slow_nodes(zero)] == ["n0"]
    assert slow_nodes(rows[:3]) == [], "two nodes have the figure"
    unread = [row.model_copy(update={"figures": {"matrix": row.figures["matrix"]}})
              for row in drawn(3, 0.0, random.Random(0), matrix=0.5)]  # fmt: skip
    assert [row.figures.keys() for row in lasting(lambda: unread)] == [{"matrix"}] * 3


def test_of_three_nodes_on_a_busy_machine_the_one_behind_a_slow_cable_is_named() -> None:
    figures = [(1.48, 0.69, 762, 493), (15.6, 1.64, 1296, 719), (1.48, 0.58, 530, 4.63)]
    rows = [
        row.model_copy(update={"figures": dict(zip(CHECKS, map(float, each), strict=True))})
        for row, each in zip(drawn(3, 0.0, random.Random(0)), figures, strict=True)
    ]
    assert [(slow.host, slow.check) for slow in slow_nodes(rows)] == [("n2", "pairs")]


def test_a_report_names_the_nodes_that_were_slow_before_its_suite(tmp_path: Path) -> None:
    rows = drawn(4, 0.0, random.Random(0), disk=0.5)
    rows[2] = rows[2].model_copy(
        update={"transports": ["NCCL, NET/Socket"], "networks": ["mlx5_0"]}
    )
    assert list(findings(rows)) == [
        "n0 is slow: disk read 450 MB/s, 50% below the median 900",
        "n2 fell back to sockets, although it has mlx5_0",
    ]
    results = Results(tmp_path)
    results.write_plans([])
    assert not any("is slow" in each.text for each in collect(results).summary)
    write_checks(tmp_path / FILE, rows)
    found = [each.text for each in collect(results).summary if each.kind == "caveat"]
    assert [text for text in found if "n0 is slow" in text or "n2 fell back" in text] == [
        f"Before the suite {each}." for each in findings(rows)
    ]
