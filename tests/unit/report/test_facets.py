"""Legends say what differs, and no more than that."""

from __future__ import annotations

import pytest

from raysuite.report import collect
from raysuite.report.facets import WORK, shared, telling, written
from tests.fake_studies import write_study


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return {
        study: collect(write_study(tmp_path_factory.mktemp(study), study)).rows
        for study in ("throughput", "schedules", "sets")
    }


def test_what_all_rows_share_is_not_told(rows):
    names = telling(rows["throughput"], lambda row: row.workers)
    assert names == ["strategy", "loader", "model"]
    assert written(rows["throughput"][0], names) == "ddp · native · resnet20"
    assert shared(rows["throughput"]) == "digits"
    assert telling(rows["schedules"]) == ["schedule", "batch"]
    assert shared(rows["schedules"]) == "resnet20 · digits"


def test_a_facet_that_follows_from_another_is_left_out(rows):
    names = telling(rows["sets"], lambda row: row.workers)
    assert names == ["strategy", "model", "data"], "each set goes with one batch"


def test_works_are_told_apart_even_where_the_place_on_the_axis_does(rows):
    sets = [row for row in rows["sets"] if row.workers == 1]
    assert "data" not in telling(sets, lambda row: row.global_batch)
    assert "data" in telling(sets, lambda row: row.global_batch, WORK)


def test_no_two_rows_have_one_name(rows):
    for study in rows.values():
        names = telling(study)
        assert len({written(row, names) for row in study}) == len(study)
