"""Throughput on few workers -> on many: against laws that the tests write down themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.errors import UserError
from raysuite.perf import scaling
from raysuite.perf.scaling import Point, fit, forecast, left_out, read_figures, series_of
from tests import fake_calibration

FEW = (4, 8, 16, 32, 64)


def measured(law: Callable[[int, int], float], noise: float = 0.01) -> list[Point]:
    """Weak scaling with four workers on a node; `law` is the time of a step."""
    random = np.random.default_rng(3)
    return [
        Point(w, w // 4, w / law(w, w // 4) * math.exp(noise * random.standard_normal()))
        for w in FEW
    ]


@pytest.fixture(scope="module")
def by_tree() -> tuple[Callable[[int, int], float], list[Point]]:
    def law(workers: int, nodes: int) -> float:
        return 0.2 * (1 + 0.06 * math.log2(nodes))

    return law, measured(law)


def test_a_law_is_extrapolated_with_intervals_that_grow_with_the_distance(by_tree) -> None:
    law, points = by_tree
    found = fit(points)
    widths = []
    for workers in (128, 256, 1024):
        made = found.predict(workers, workers // 4)
        truth = workers / law(workers, workers // 4)
        assert made.low < truth < made.high
        assert made.value == pytest.approx(truth, rel=0.08)
        widths.append(math.log(made.high / made.low))
    assert widths[0] < widths[1] < widths[2]
    assert fit(points[::-1]).predict(workers, workers // 4) == made
    assert "shared" in found.untold
    assert not {"computation", "beside"} & set(found.untold)


def test_the_largest_size_is_predicted_from_the_others(by_tree) -> None:
    law, points = by_tree
    largest, made = left_out(points) or pytest.fail("not validated")
    assert largest == points[-1]
    assert made.value == pytest.approx(64 / law(64, 16), rel=0.06)
    assert left_out(points[:2]) is None
    changed = [*points[:-1], points[-1]._replace(throughput=1.0)]
    assert left_out(changed) == (changed[-1], made)


def test_no_repeat_of_the_largest_size_is_among_what_predicts_it(
    by_tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, points = by_tree
    repeats = [points[-1]._replace(throughput=points[-1].throughput * f) for f in (0.5, 0.9)]
    fitted: list[list[Point]] = []

    def recorded(others: list[Point], wanted: list[Point]) -> SimpleNamespace:
        fitted.append(others)
        return SimpleNamespace(predict=lambda *place: place)

    monkeypatch.setattr(scaling, "fit", recorded)
    mean = points[-1]._replace(throughput=pytest.approx(points[-1].throughput * 0.8))
    assert left_out([*repeats, *points]) == (mean, (64, 16, 0.0))
    assert fitted == [points[:-1]]


def test_with_a_fixed_batch_computation_shrinks_and_communication_stays() -> None:
    def law(workers: int) -> float:
        return 1024 / workers * 0.01 + 0.4 * (1 - 4 / workers)

    points = [Point(w, w // 4, 1024 / law(w), 1024) for w in (4, 8, 16, 32)]
    made = fit(points).predict(64, 16, 1024)
    assert made.value == pytest.approx(1024 / law(64), rel=0.1)
    assert forecast("ddp", points, [64]).places[0].throughput == made
    as_if_weak = fit([each._replace(batch=0.0) for each in points]).predict(64, 16)
    assert abs(math.log(as_if_weak.value / made.value)) > 0.1


def test_a_nodes_workers_have_no_term_of_the_network() -> None:
    points = [Point(w, 1, w / (1 + 0.3 * (1 - 1 / w))) for w in (1, 2, 4)]
    found = fit(points)
    assert found.terms == ("computation", "beside", "slowest")
    assert found.predict(8, 1).value == pytest.approx(8 / (1 + 0.3 * 7 / 8), rel=0.08)


def test_terms_of_the_network_keep_their_priors_if_one_node_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "STEPS", 300)
    points = [Point(w, 1, float(w)) for w in (1, 2, 4)]
    made = forecast("ddp", points, [256])
    # with the means of these priors, a step takes 1 + 0.20 * 63 / 64 + 0.06 * 6 + 0.001 * 63 = 1.6,
    # with their medians 1 + 0.1 * 63 / 64 + 0.03 * 6 + 0.0003 * 63 = 1.3
    assert 1 / 1.6 < made.places[0].efficiency.value < 1 / 1.3
    assert {"bandwidth", "levels", "shared"} <= set(made.untold)
    assert not {"bandwidth", "levels", "shared"} & set(forecast("ddp", points, [8], 8).untold)


def test_an_efficiency_is_relative_to_the_mean_of_the_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "STEPS", 30)
    points = [Point(1, 1, 80.0), Point(1, 1, 120.0), Point(2, 1, 190.0), Point(2, 1, 210.0)]
    (place,) = forecast("ddp", points, [4]).places
    assert place.throughput.value / place.efficiency.value == pytest.approx(4 * 100)


def test_an_interval_on_fewer_workers_than_measured_grows_with_the_distance(by_tree) -> None:
    found = fit(by_tree[1])
    one, two, four = (
        math.log(each.high / each.low) for each in (found.predict(w, 1) for w in (1, 2, 4))
    )
    assert one > 1.2 * two > 1.44 * four


def test_the_sampler_draws_the_distribution_it_is_given() -> None:
    spread = np.array([[1.0, 0.8], [0.8, 2.0]])
    inverse = np.linalg.inv(spread)

    def density(draws: np.ndarray) -> np.ndarray:
        apart = draws - np.array([3.0, -1.0])
        return -0.5 * np.einsum("ni,ij,nj->n", apart, inverse, apart)

    random = np.random.default_rng(0)
    found = scaling._drawn(density, random.standard_normal((scaling.WALKERS, 2)), random)
    assert found.mean(axis=0) == pytest.approx([3.0, -1.0], abs=0.1)
    assert np.cov(found.T) == pytest.approx(spread, abs=0.25)


def test_the_drift_is_a_random_walk_over_doublings() -> None:
    points = [Point(2, 1, 1.0), Point(4, 1, 1.0), Point(16, 4, 1.0)]
    found = scaling._covariance(points, np.array([0.5]), np.array([0.25]))[0]
    assert found.tolist() == [[0.25, 0, 0], [0, 0.75, 0.5], [0, 0.5, 1.75]]


def test_a_forecast_names_efficiency_error_and_what_was_assumed(by_tree) -> None:
    law, points = by_tree
    made = forecast("ddp", points, [128])
    (place,) = made.places
    assert (place.workers, place.nodes) == (128, 32)
    assert place.efficiency.value == pytest.approx(law(4, 1) / law(128, 32), rel=0.06)
    assert place.throughput.value / place.efficiency.value == pytest.approx(
        128 * points[0].throughput / 4
    )
    assert made.error is not None
    said = "the throughput on 64 workers is predicted from that on fewer workers with an error of"
    assert f"{said} {made.error:+.1%}" in made.words
    assert "a shared file system" in made.words
    assert "not validated" in forecast("ddp", points[:2], [128]).words


@pytest.mark.parametrize(("per_node", "nodes"), [(None, [2, 16]), (8, [1, 8])])
def test_a_forecast_has_the_nodes_and_batch_of_the_largest_measurement_unless_told(
    per_node: int | None, nodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "STEPS", 30)
    points = [Point(1, 1, 1.0, 64), Point(8, 2, 7.0, 320), Point(16, 4, 13.0, 512)]
    places = forecast("", points, [6, 64], per_node).places
    assert [place.nodes for place in places] == nodes
    assert places[1].throughput == fit(points).predict(64, nodes[1], 64 * 32), "images of 16"
    assert left_out(points) == (points[-1], fit(points[:-1]).predict(16, 4, 512))


def test_runs_of_other_costs_are_another_series_even_if_the_names_are_equal() -> None:
    plans = fake_calibration.plans("[[64, 1]]")
    plans += fake_calibration.plans("[[64, 1]]", **{"epochs: 2": "epochs: 2, precision: bf16"})
    found = series_of([fake_calibration.measured(plan) for plan in plans])
    measured = fake_calibration.measured(plans[0])
    [[point]] = series_of([replace(measured, plan={**measured.plan, "workers": 6})], 4).values()
    assert (point.workers, point.nodes) == (6, 2)
    (fp32, points), (bf16, _) = (each for each in found.items() if " ddp " in each[0])
    assert [each.workers for each in points] == [1, 2]
    runs = [fake_calibration.measured(plan) for plan in fake_calibration.plans("[[64, 1]]")]
    unknown = [replace(run, status="failed") for run in runs]
    unknown += [replace(run, throughput=None) for run in runs]
    for per_node, nodes in ((None, [1, 1]), (1, [1, 2]), (2, [1, 1])):
        [own] = (
            each for name, each in series_of([*unknown, *runs], per_node).items() if " ddp" in name
        )
        assert [(each.workers, each.nodes, each.batch) for each in own] == [
            (1, nodes[0], 64.0),
            (2, nodes[1], 64.0),
        ]
        assert [each.throughput for each in own] == [
            run.throughput for run in runs if run.plan["spec"]["strategy"]["name"] == "ddp"
        ]
    assert [name.endswith("· resnet20 at 16 px, bf16, cpu") for name in (fp32, bf16)] == [0, 1]


def test_a_file_of_figures_names_its_series(tmp_path: Path) -> None:
    file = tmp_path / "figures.csv"
    file.write_text("workers,throughput,loader\n4,10,dali\n9,19,dali\n4,9,native\n")
    found = read_figures(file, workers_per_node=4)
    assert found == {
        "dali": [Point(4, 1, 10.0), Point(9, 3, 19.0)],
        "native": [Point(4, 1, 9.0)],
    }
    file.write_text("workers,nodes,throughput,batch\n4,2,10,64\n8,,19,128\n")
    found = read_figures(file, workers_per_node=8)
    assert found == {"figures": [Point(4, 2, 10.0, 64), Point(8, 1, 19.0, 128)]}
    file.write_text(
        "loader,workers,nodes,throughput,gpu\nx,4,2,1,\n,8,,2,h200\ny,8,8,2,a\n,2,1,1,\n"
    )
    assert read_figures(file, workers_per_node=3) == {
        "x": [Point(4, 2, 1.0)],
        "h200": [Point(8, 3, 2.0)],
        "y · a": [Point(8, 8, 2.0)],
        "figures": [Point(2, 1, 1.0)],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers,speed\n4,1\n", "no column throughput"),
        ("workers,throughput\n4,1\n", "no column nodes"),
        ("workers,nodes,throughput\n4,1,x\n8,2,5\n2,4,5\n4,1,-1\n", "line 2, line 4, line 5"),
        ("workers,nodes,throughput,batch\n4,1,1,64\n8,2,2,\n", "only some lines of figures"),
        (
            "workers,nodes,throughput,batch\n4,5,1,\n4,0,1,\n4,4,1,\n4,4,0,\n4,4,inf,\n4,4,1,-1\n",
            "line 2, line 3, line 5, line 6, line 7: workers",
        ),
        ("workers,nodes,throughput\n4,1,1,\n8,2,5,3\n", r"figures.csv: line 3: workers"),
        ("workers,nodes,throughput,é\n4,1,1,x\n", r"figures.csv cannot be read: 'utf-8' codec"),
        ("", "no column throughput and no column workers"),
    ],
)
def test_a_wrong_file_is_refused_with_every_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "figures.csv"
    file.write_text(text, "latin-1")
    with pytest.raises(UserError, match=said):
        read_figures(file)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name, said in (("no.csv", "No such file"), ("folder.csv", "Is a directory")):
        with pytest.raises(UserError, match=f"{name} cannot be read: {said}"):
            read_figures(tmp_path / name)


def test_an_empty_cell_without_a_heading_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "figures.csv"
    file.write_text("workers,nodes,throughput\n4,1,10,\n8,2,19,,\n")
    assert read_figures(file) == {"figures": [Point(4, 1, 10.0), Point(8, 2, 19.0)]}


def test_files_of_one_series_of_which_one_has_batches_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / f"{each}.csv" for each in "ab"]
    files[0].write_text("workers,nodes,throughput,net\n4,1,10,x\n8,2,19,x\n")
    files[1].write_text("workers,nodes,throughput,net,batch\n16,4,30,x,64\n")
    result = CliRunner().invoke(app, ["calibrate", *map(str, files), "--workers", "32"])
    assert result.exit_code == 2
    assert "only some lines of x have a batch" in result.stderr


@pytest.mark.thorough
def test_the_page_of_published_figures_is_what_its_script_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmarks = Path(scaling.__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    import prediction_scale_out

    written = (benchmarks / "results" / "prediction_scale_out.md").read_text("utf-8")
    assert prediction_scale_out.page() == written
