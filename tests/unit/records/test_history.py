"""Throughput over results folders: who is compared with whom, and where it changed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import vl_convert
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.records import Results, RunFailed, make_rows, results_figures
from raysuite.records.history import History, Point, _changes, histories
from raysuite.records.statistics import summarize
from raysuite.report.history_page import history_plot, page
from tests.fake_results import write_results

SPEC = """\
name: NAME
model: resnet20
data: digits
training: {epochs: 3, global_batch: 64}
strategy: ddp
repeats: 3
"""


def points(means: Sequence[float], noise: float, seed: int) -> list[Point]:
    draw = random.Random(seed)
    found = []
    for number, mean in enumerate(means):
        stat = summarize([mean * (1 + draw.gauss(0, noise)) for _ in range(3)])
        assert stat is not None
        found.append(Point(str(number), float(number), "1", "", stat))
    return found


def test_a_regression_and_its_repair_are_found_with_their_ratios() -> None:
    found = _changes(points([100] * 6 + [90] * 6 + [105] * 6, 0.01, 0), 0.95, by_runs=False)
    changed = {place: each.change for place, each in enumerate(found) if each.change}
    assert set(changed) == {6, 12}
    for place, true in ((6, 0.9), (12, 105 / 90)):
        ratio = changed[place]
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        assert ratio.low < true < ratio.high


def test_a_repaired_regression_is_found_where_halves_hardly_differ() -> None:
    found = _changes(points([100] * 5 + [80] * 4 + [105] * 3, 0.01, 0), 0.95, by_runs=False)
    assert [place for place, each in enumerate(found) if each.change] == [5, 9]


@pytest.mark.parametrize("by_runs", [False, True])
def test_copies_of_folders_show_a_change_although_nothing_varies(by_runs: bool) -> None:
    found = _changes(points([100] * 2 + [80] * 2, 0.0, 0), 0.95, by_runs)
    [change] = [each.change for each in found if each.change]
    assert (found[2].change, change.value, change.low) == (change, 0.8, 0.8)


def test_equal_versions_hardly_ever_show_a_change() -> None:
    wrong = sum(
        any(p.change for p in _changes(points([100] * 10, 0.02, seed), 0.95, by_runs=False))
        for seed in range(200)
    )
    assert wrong <= 20  # 5 % of 200, and three standard errors


def test_two_folders_are_compared_by_their_runs() -> None:
    slower = _changes(points([100, 80], 0.01, 1), 0.95, by_runs=True)
    assert slower[1].change is not None
    assert slower[1].change.value == pytest.approx(0.8, rel=0.05)
    assert _changes(points([100, 80], 0.01, 1), 0.95, by_runs=False)[1].change is None


def test_of_three_folders_the_middle_one_may_be_the_slow_one() -> None:
    found = _changes(points([100, 80, 101], 0.01, 1), 0.95, by_runs=True)
    changes = [each.change.value if each.change else None for each in found]
    assert changes == [None, pytest.approx(0.8, rel=0.03), pytest.approx(101 / 80, rel=0.03)]


def write(
    folder: Path, name: str, factor: float, cpu: str = "A", when: float = 0.0, commit: str = ""
) -> Results:
    results = write_results(folder, SPEC.replace("NAME", name))
    for plan in results.plans():
        file = results.journal_file(plan["run_id"])
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line["kind"] == "epoch_finished":
                line["steady_seconds"] /= factor
            if line["kind"] == "run_started":
                line["environment"]["cpu"]["model"] = cpu
                line["time"] += when
                line["environment"]["source"] = {"commit": commit} if commit else None
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return results


def test_the_verb_names_the_regression_on_the_same_hardware_alone(tmp_path: Path) -> None:
    for number, (name, factor, cpu) in enumerate(
        [("a", 1.0, "A"), ("b", 0.7, "A"), ("a", 0.1, "B")]
    ):
        write(tmp_path / name / str(number), name, factor, cpu)
    words = ["report", str(tmp_path), "--history"]
    seen = CliRunner().invoke(app, [*words, "--json"])
    assert seen.exit_code == 0, seen.output
    (only,) = json.loads(seen.stdout)
    assert only["by_runs"]
    assert (only["name"], only["hardware"]) == ("ddp · native · 1 worker", "2 x A")
    assert [bool(point["change"]) for point in only["points"]] == [False, True]
    assert np.isclose(only["points"][1]["change"]["value"], 0.7, rtol=0.05)
    page = tmp_path / "pages" / "history.html"
    shown = CliRunner().invoke(app, [*words, "--out", str(page.parent)])
    assert "regression: 0.7" in shown.stdout
    assert shown.stdout.splitlines()[-1] == str(page)
    assert '<li class="problem">' in page.read_text("utf-8")
    plot = history_plot(histories(Results(tmp_path / f) for f in ("a/0", "b/1"))[0])
    assert [len(trace["x"]) for trace in plot.traces] == [2, 1]
    vl_convert.vegalite_to_vega(plot.spec(600))


def test_points_are_in_the_order_of_time_with_version_and_commit(tmp_path: Path) -> None:
    newer = write(tmp_path / "new", "b", 1.0, when=9.0, commit="0123456789abcdef")
    older = write(tmp_path / "old", "a", 1.0)
    (found,) = histories([newer, older])
    old, new = found.points
    assert (Path(old.folder).name, old.version, old.commit) == ("old", "0.1.0", "0123abc")
    assert (Path(new.folder).name, new.version, new.commit) == ("new", "0.1.0", "0123456789")
    assert (new.time - old.time, new.unit) == (9.0, "images")
    assert histories([older] * 3)[0].by_runs
    assert not histories([older] * 4)[0].by_runs


def test_a_variant_that_diverged_is_no_point(tmp_path: Path) -> None:
    good = write(tmp_path / "a", "a", 1.0)
    bad = write(tmp_path / "b", "a", 0.5)
    for plan in bad.plans():
        file = bad.journal_file(plan["run_id"])
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        end = RunFailed(run_id=plan["run_id"], reason="diverged", message="NaN", step=9)
        lines[-1] = end.model_dump(mode="json")
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert all(row.diverged and row.throughput for row in make_rows(results_figures(bad)))
    assert histories([good, bad]) == []


def test_dates_are_utc_wherever_the_page_is_written() -> None:
    found = History("ddp", "a CPU", tuple(points([100, 100], 0.0, 0)), by_runs=False)
    assert "1970-01-01 00:00:01" in page([found])


def test_the_newest_folder_is_that_of_all_variants() -> None:
    newer, older = (
        History(name, "a CPU", tuple(points([100] * count, 0.0, 0)), by_runs=False)
        for name, count in (("ddp", 3), ("fsdp", 2))
    )
    for found in ([newer, older], [older, newer]):
        assert "newest folder 1970-01-01 00:00:02 UTC" in page(found)


def test_one_folder_has_no_history(tmp_path: Path) -> None:
    results = write(tmp_path / "a" / "1", "a", 1.0)
    assert histories([results]) == []
    found = CliRunner().invoke(app, ["report", str(tmp_path), "--history"])
    assert found.exit_code == 0
    assert found.stdout.startswith("no history yet: of 1 results folder below ")


def test_a_history_has_the_name_of_its_newest_folder(tmp_path: Path) -> None:
    """With other descriptions, and a matrix whose value is the default."""
    more = "\ndescription: before\nmatrix: {training.accumulate: [1]}"
    older = write(tmp_path / "old", f"a{more}", 1.0)
    newer = write(tmp_path / "new", "b", 1.0, when=9.0)
    assert [each.name for each in histories([newer, older])] == ["ddp · native · 1 worker"]
    newest = write(tmp_path / "newest", f"a{more}", 1.0, when=19.0)
    (found,) = histories([newest, newer])
    assert found.name == "ddp · native · 1 worker · accumulate=1"
    once = write(tmp_path / "other", "a\noptimizer: {lr: 0.3}", 1.0, when=29.0)
    assert [len(each.points) for each in histories([newest, newer, once])] == [2]
