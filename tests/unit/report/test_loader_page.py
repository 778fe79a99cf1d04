"""What is said of loaders: the diagnosis, table, plot and page."""

from __future__ import annotations

import json
from pathlib import Path

from raysuite.records.loader_rates import Failure, LoadingBench, Timing, loading_rows
from raysuite.report.loader_page import (
    Diagnosis,
    build,
    described,
    diagnose,
    loaders_sheet,
    markdown,
    page,
    speeds,
    summarize_loaders,
)
from raysuite.report.summary import NO_INTERVAL
from tests.fake_loading import Speed, fake_bench

DECODING: dict[str, Speed] = {
    "decoding alone · 1 thread": ([500, 505, 495], 1.0),
    "decoding alone · 2 threads": ([1000, 1010, 990], 2.0),
    "reading alone · 1 thread": ([9000, 9100, 8900], 1.0),
    "reading alone · 2 threads": ([18000, 18100, 17900], 2.0),
}
SYNTHETIC: dict[str, Speed] = {"synthetic": ([1e6, 1.1e6, 0.9e6], 1.0)}


def of(**more: object) -> Diagnosis:
    """The diagnosis of `native · 2 threads` at the speed and with the cores given."""
    rates, cores = more.pop("native", ([900, 905, 895], 1.95))
    figures = {"native · 2 threads": (rates, cores), **DECODING, **SYNTHETIC}
    figures |= more.pop("speeds", {})
    return diagnose(fake_bench(figures, **more))


def test_a_loader_far_below_synthetic_is_bound_by_loading():
    found = of()
    assert (found.best, found.bound) == ("native · 2 threads", "loading")
    for figure in (
        "0.90 [0.88, 0.92] of decoding alone",
        "1.9 of 2 cores busy",
    ):
        assert figure in found.because


def test_as_fast_as_nothing_loaded():
    assert of(speeds={"synthetic": ([1000, 1010, 990], 1.0)}).bound == "hand-over"
    assert of(speeds={"synthetic": ([1200, 1210, 1190], 1.0)}).bound == "loading"


def test_without_synthetic_no_bound_is_named():
    speeds = {"dali cpu": 500.0, "decoding alone": 1000.0}
    found = diagnose(fake_bench({f"{k} · 2 threads": ([v], 2.0) for k, v in speeds.items()}))
    assert (found.best, found.bound) == ("dali cpu · 2 threads", None)
    assert found.because == "500 (n = 1) images/s; 0.50 of decoding alone; 2.0 of 2 cores busy"


def test_rivals_are_those_that_the_intervals_do_not_tell_apart():
    close = {"native · 1 thread": ([880, 910, 900], 1.0), "dali cpu · 2 threads": ([500] * 3, 2.0)}
    assert of(speeds=close).rivals == ("native · 1 thread",)
    assert "Not significantly slower than the fastest: native · 1 thread." in str(of(speeds=close))


def test_with_one_round_nothing_is_shown_to_be_slower():
    found = diagnose(
        fake_bench({"native · 2 threads": ([900], 2.0), "native · 1 thread": ([9], 1.0)})
    )
    assert found.rivals == ("native · 1 thread",)
    assert str(found).endswith(NO_INTERVAL)


def test_intervals_are_mentioned_where_there_are_some():
    for rounds, words in (([900], "One round each: no intervals."), ([900, 901], "95 % intervals")):
        rows = loading_rows(fake_bench({"native · 2 threads": (rounds, 2.0)}))
        assert words in speeds(rows).note
        assert words in loaders_sheet(rows).notes[0]


def test_synthetic_is_no_loader():
    found = diagnose(fake_bench(SYNTHETIC, failures={"native · 1 thread": "no such file"}))
    assert (found.best, found.bound) == ("", None)
    assert found.because == "native · 1 thread: no such file"
    assert found.because in str(found)


def test_shares_are_of_the_limit_with_as_many_threads():
    rows = {r.candidate.name: r for r in loading_rows(fake_bench({
        "native · 1 thread": ([400, 404, 396], 1.0),
        "native · 2 threads": ([900, 905, 895], 2.0),
        **DECODING,
        **SYNTHETIC,
    }))}  # fmt: skip
    shares = [rows[f"native · {width}"].of_decoding for width in ("1 thread", "2 threads")]
    assert [round(share.value, 3) for share in shares if share] == [0.8, 0.9]
    of_reading = [rows[f"native · {width}"].of_reading for width in ("1 thread", "2 threads")]
    assert [round(share.value, 4) for share in of_reading if share] == [0.0444, 0.05]
    assert rows["synthetic"].of_decoding is None
    assert rows["decoding alone · 1 thread"].of_decoding is None


def test_what_has_no_figures_says_why_in_its_row():
    bench = fake_bench(DECODING, failures={"dali cpu · 2 threads": "DALI is | not here"})
    (line,) = (line for line in markdown(bench).splitlines() if line.startswith("| dali cpu · 2"))
    assert line.endswith("| DALI is \\| not here |")
    first, *others = bench.candidates
    left_out = first.model_copy(update={"excuse": "left out"})
    rows = loading_rows(bench.model_copy(update={"candidates": (left_out, *others)}))
    failures = {each.candidate.name: each.failure for each in rows if each.failure}
    assert failures == {first.name: "left out", "dali cpu · 2 threads": "DALI is | not here"}


def test_notes_tell_of_interruption_disk_and_company():
    bench = fake_bench(DECODING, others=0.5, read_before=False)
    cut = bench.model_copy(update={"complete": False})
    said = summarize_loaders(cut, loading_rows(cut))
    for kind, words in (
        ("problem", "interrupted: 7 candidates of 11 not measured"),
        ("caveat", "0.5 to 0.5 cores"),
        ("caveat", "larger than the page cache"),
    ):
        assert any(each.kind == kind and words in each.text for each in said)


def test_company_of_one_candidate_is_mentioned():
    bench = fake_bench(DECODING, others={"reading alone · 1 thread": 0.5})
    said = summarize_loaders(bench, loading_rows(bench))
    assert "Other programs kept 0.0 to 0.5 cores busy." in [each.text for each in said]
    quiet = fake_bench(DECODING, others=0.09)
    said = summarize_loaders(quiet, loading_rows(quiet))
    assert not any("Other programs" in each.text for each in said)


def test_limits_that_are_far_away_are_not_drawn():
    bench = fake_bench({"native · 2 threads": ([900, 905, 895], 2.0), **DECODING, **SYNTHETIC})
    plot = speeds(loading_rows(bench))
    assert plot is not None
    drawn = [name for trace in plot.traces for name in trace["y"]]
    assert drawn == ["decoding alone", "native", "decoding alone"]
    assert plot.note.endswith("faster, so shown only in the table: synthetic and reading alone.")


def test_the_fastest_loader_is_drawn_however_much_faster_it_is():
    figures = {"native · 1 thread": ([100.0] * 3, 1.0), "memory · 1 thread": ([9000.0] * 3, 1.0)}
    plot = speeds(loading_rows(fake_bench(figures)))
    assert sorted(name for trace in plot.traces for name in trace["y"]) == ["memory", "native"]
    assert "only in the table" not in plot.note


def test_nothing_measured_is_a_page_too():
    bench = fake_bench({})
    assert speeds(loading_rows(bench)) is None
    assert "Nothing was measured" in page(bench)
    assert "2027-01-15 08:00 UTC" in page(bench)


def test_files(tmp_path: Path):
    bench = fake_bench({"native · 2 threads": ([900, 905, 895], 2.0), **DECODING})
    assert LoadingBench.model_validate_json(bench.save(tmp_path).read_bytes()) == bench
    build(bench, tmp_path)
    (tmp_path / "cut").mkdir()
    assert (tmp_path / "loaders.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "loaders.svg").read_text("utf-8")
    assert "decoding alone" in svg
    build(bench.model_copy(update={"complete": False}), tmp_path / "cut")
    assert sorted(each.name for each in (tmp_path / "cut").iterdir()) == [
        "loaders.html",
        "loaders.md",
    ]
    html = (tmp_path / "loaders.html").read_text("utf-8")
    assert "http-equiv" in html
    assert "src=" not in html.split("<script")[0]
    figures = html.split('id="figures">')[1].split("</script>")[0]
    traces = json.loads(figures)["plots"]["loaders"]["traces"]
    assert [trace["kind"] for trace in traces] == ["bar", "bar"]
    build(bench, tmp_path)
    assert (tmp_path / "loaders.svg").read_text("utf-8") == svg


def test_figures_of_a_candidate_are_those_of_its_own_timings_by_hand():
    """100 images in 4 s, in which the machine had 10 s of processor time."""
    bench = fake_bench(DECODING)
    name = "dali cpu · 1 thread"
    for repeat, cpu in ((0, 6.0), (1, 12.0)):
        timing = Timing(candidate=name, repeat=repeat, images=100, seconds=4.0, cpu_seconds=cpu,
                        machine_seconds=10.0, start_seconds=2.0 + repeat)  # fmt: skip
        bench = bench.grown(timing)
    failure = Failure(candidate=name, repeat=2, reason="lost")
    bench = bench.grown(failure)
    assert (bench.timings[-1], bench.failures) == (timing, (failure,))
    (row,) = (each for each in loading_rows(bench) if each.candidate.name == name)
    assert (row.throughput.values, row.cores.values) == ((25.0, 25.0), (1.5, 3.0))
    assert (row.others.values, row.start_seconds.values) == ((1.0, 0.0), (2.0, 3.0))
    assert row.failure == "lost"
    assert [number for number, _ in row.throughput.rounds] == [0, 1]


def test_a_comparison_is_described_by_what_was_timed():
    bench = fake_bench(DECODING)
    method = "224 pixels, augmentation resized_crop_flip, batches of 64 on the CPU; 3 rounds of "
    assert described(bench) == f"train split, {method}3 s each"
    plan = bench.plan | {"split": "val", "images": 5000, "repeats": 1, "device": "gpu"}
    other = bench.model_copy(update={"plan": plan})
    words = "val split, 224 pixels, batches of 64 on the GPU; 1 round of 5,000 images each"
    assert described(other) == words
