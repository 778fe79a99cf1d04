"""Which figures of a site's check are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records.node_checks import NodeFigures
from raysuite.records.verdicts import FILE, SiteCheck, earlier_checks, judge, published


def check(
    value: float, when: float = 0.0, hardware: str = "4 x A100", workers: int = 8
) -> SiteCheck:
    return SiteCheck(when=when, hardware=hardware, workers=workers, throughputs={"ddp": value})


BEFORE = [check(each) for each in (1000.0, 1020.0, 400.0)]


@pytest.mark.parametrize(("value", "ok"), [(990.0, True), (900.0, True), (899.0, False)])
def test_a_throughput_far_below_earlier_ones_is_wrong(value: float, ok: bool) -> None:
    (found,) = judge(check(value), BEFORE, [], 0.1, None)
    assert (found.ok, found.reference) == (ok, 1000.0)


def test_a_first_check_is_only_kept_unless_a_figure_is_expected() -> None:
    (first,) = judge(check(5.0), [], [], 0.1, None)
    assert (first.ok, first.reference) == (True, None)
    (found,) = judge(check(5.0), [], [], 0.1, 980.0)
    assert (found.ok, found.reference) == (False, 980.0 * 8)


def test_slow_nodes_and_variants_without_a_throughput_are_wrong() -> None:
    now = check(1000.0).model_copy(update={"failed": ["horovod"]})
    found = judge(
        now, BEFORE, [node(f"n{n}", 900.0 if n < 3 else 10.0) for n in range(4)], 0.1, None
    )
    assert [(each.what, each.ok) for each in found] == [
        ("horovod", False),
        ("ddp", True),
        ("n3 disk", False),
    ]


def node(host: str, disk: float, *transports: str, networks: tuple[str, ...] = ()) -> NodeFigures:
    return NodeFigures(host=host, when=0.0, figures={"disk": disk}, all_reduce_s=0.1,
                       transports=[*transports], networks=[*networks])  # fmt: skip


def test_a_node_whose_nccl_fell_back_to_sockets_is_wrong() -> None:
    nodes = [
        node("n0", 1.0, "NCCL, NET/Socket", networks=("cxi0",)),
        node("n1", 1.0, "NCCL, NET/Socket"),
        node("n2", 1.0, "NCCL, NET/AWS Libfabric", networks=("cxi0",)),
        node("n3", 1.0, "TCP, ib0", networks=("mlx5_0",)),
    ]
    found = judge(check(1000.0), BEFORE, nodes, 0.1, None)
    assert [each.what for each in found if not each.ok] == ["n0 sockets"]


@pytest.mark.parametrize(("each_gpu", "ok"), [(883.0, True), (881.0, False)])
def test_a_first_check_of_known_gpus_is_compared_with_what_is_published(
    each_gpu: float, ok: bool
) -> None:
    known = published("288 x Neoverse-V2, 4 x NVIDIA GH200 120GB")
    now = check(8 * each_gpu)
    (found,) = judge(now, [], [], 0.1, None, known)
    assert (found.ok, found.reference) == (ok, 8 * 980.0)
    (found,) = judge(now, [], [], 0.1, 100.0, known)
    assert (found.ok, found.source) == (True, "expected")
    assert published("128 x EPYC, 4 x A100") is None


def test_only_checks_of_the_same_hardware_and_size_count(tmp_path: Path) -> None:
    others = [check(1.0, 1), check(2.0, 2, hardware="x"), check(3.0, 3, workers=4), check(4.0, 9)]
    for number, each in enumerate(others):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / FILE).write_text(each.model_dump_json())
    assert earlier_checks(tmp_path, check(5.0, 5)) == [others[0]]
