"""Which figures of a site's check are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import Results, RunFailed, make_rows, results_figures
from raysuite.records.history import hardware_of
from raysuite.records.node_checks import NodeFigures
from raysuite.records.verdicts import (
    FILE,
    SiteCheck,
    earlier_checks,
    judge,
    published,
    site_check,
)
from tests.fake_results import TWELVE_ROWS, write_results


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
    assert (first.ok, first.reference, first.source) == (True, None, "the first check")
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
    others = [
        *(check(1.0, 1), check(2.0, 2, hardware="x"), check(3.0, 3, workers=4)),
        *(check(4.0, 9), check(5.0, 5)),  # later, and the check itself
    ]
    for number, each in enumerate(others):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / FILE).write_text(each.model_dump_json())
    assert earlier_checks(tmp_path, check(5.0, 5)) == ([others[0]], [])


@pytest.mark.parametrize("content", [b"", b'{"when":1.0', b"\xff", b'{"when":1.0}'])
def test_a_damaged_check_is_named_and_left_out(content: bytes, tmp_path: Path) -> None:
    for name, text in (("1", check(1.0, 1).model_dump_json().encode()), ("2", content)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_bytes(text)
    assert earlier_checks(tmp_path, check(5.0, 5)) == ([check(1.0, 1)], [tmp_path / "2" / FILE])


def test_a_variant_that_was_checked_before_has_its_own_median_beside_what_is_expected() -> None:
    """By `ddp`, whose median is 1000; `fsdp` was in one of three earlier checks."""
    before = [*BEFORE, BEFORE[0].model_copy(update={"throughputs": {"fsdp": 300.0}})]
    now = check(1000.0).model_copy(update={"throughputs": {"ddp": 1000.0, "fsdp": 240.0}})
    found = judge(now, before, [], 0.1, 20.0)
    assert [(each.what, each.value, each.reference, each.ok) for each in found] == [
        ("ddp", 1000.0, 160.0, True),
        ("ddp", 1000.0, 1000.0, True),
        ("fsdp", 240.0, 160.0, True),
        ("fsdp", 240.0, 300.0, False),
    ]
    assert [each.source for each in found[2:]] == ["expected", "median of 1 earlier checks"]


def test_a_check_is_made_of_the_rows_of_its_suite(tmp_path: Path) -> None:
    lost = RunFailed(run_id="", reason="lost", message="gone")
    results = write_results(tmp_path, TWELVE_ROWS.replace("[native, dali]", "[native]"),
                            fails={1: lost}, missing=[0])  # fmt: skip
    found = site_check(results, 7.0)
    assert (found.when, found.hardware, found.workers) == (7.0, "2 x Made-up CPU", 2)
    assert found.failed == ["ddp · native · 1 worker", "deepspeed · native · 1 worker"]
    rows = {row.name: row for row in make_rows(results_figures(results))}
    assert found.throughputs == {
        name: row.throughput.mean for name, row in rows.items() if row.throughput is not None
    }
    assert len(found.throughputs) == 4
    empty = Results(tmp_path / "empty")
    empty.folder.mkdir()
    empty.write_plans([])
    assert (site_check(empty, 0.0).hardware, site_check(empty, 0.0).workers) == ("", 0)


def test_hardware_is_the_number_of_each_model() -> None:
    gpus = [{"name": name} for name in ("A100", "H100", "A100")]
    cpu = {"logical_cores": 64, "physical_cores": 32, "model": "EPYC"}
    assert hardware_of({"cpu": cpu, "gpus": gpus}) == "64 x EPYC, 2 x A100, 1 x H100"
