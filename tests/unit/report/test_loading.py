"""What is said of loaders: the doctor's rules one by one, table, plot and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysuite.records.loading import LoadingBench, loading_rows
from raysuite.report.loading.build import build, page, written
from raysuite.report.loading.doctor import Diagnosis, diagnose
from raysuite.report.loading.plot import speeds
from raysuite.report.loading.tables import notes
from tests.fake_loading import Speed, fake_bench

DECODING: dict[str, Speed] = {
    "decoding alone · 1 thread": ([500, 505, 495], 1.0),
    "decoding alone · 2 threads": ([1000, 1010, 990], 2.0),
    "reading alone · 1 thread": ([9000, 9100, 8900], 1.0),
    "reading alone · 2 threads": ([18000, 18100, 17900], 2.0),
}
SYNTHETIC: dict[str, Speed] = {"synthetic": ([1e6, 1.1e6, 0.9e6], 1.0)}
STAGES = {"reading": 0.1, "decoding": 0.5, "resizing": 0.3, "normalising": 0.1}


def of(**more: object) -> Diagnosis:
    """The diagnosis of `native · 2 threads` at the speed and with the cores given."""
    rates, cores = more.pop("native", ([900, 905, 895], 1.95))
    figures = {"native · 2 threads": (rates, cores), **DECODING, **SYNTHETIC}
    figures |= more.pop("speeds", {})
    return diagnose(fake_bench(figures, **more))


def test_a_loader_near_bare_decoding_is_bound_by_decoding():
    found = of()
    assert (found.best, found.bound, found.certain) == ("native · 2 threads", "decoding", True)
    assert "0.90 [0.88, 0.92] of bare decoding by as many threads" in found.because
    assert [part.partition(" (")[0] for part in found.advice] == [
        "--loader '{name: native, decode: scaled}'",
        "--loader memory",
        "smaller files",
    ]
    assert str(found).startswith("native · 2 threads is bound by decoding: it reaches 0.90")


def test_an_interval_on_both_sides_of_the_rule_makes_it_probable():
    found = of(native=([700, 900, 1000], 1.95))
    assert (found.bound, found.certain) == ("decoding", False)
    assert "is probably bound by decoding" in str(found)


def test_one_round_is_never_certain():
    once = {name: (rates[:1], cores) for name, (rates, cores) in DECODING.items()}
    found = of(native=([900], 1.95), speeds={**once, "synthetic": ([1e6], 1.0)})
    assert (found.bound, found.certain) == ("decoding", False)


def test_what_was_tried_is_not_advised():
    found = diagnose(
        fake_bench(
            {
                "native · 2 threads": ([900, 905, 895], 1.95),
                "native · decode=scaled · 2 threads": ([60, 61, 62], 2.0),
                "memory · 2 threads": ([50, 51, 52], 1.0),
                **DECODING,
            },
            loaders=["native", {"name": "native", "decode": "scaled"}, "memory"],
        )
    )
    assert [part.partition(" (")[0] for part in found.advice] == ["smaller files"]


def test_small_images_need_no_smaller_files():
    found = of(pixel_bytes=224 * 224 * 3)
    assert not any("smaller" in part or "scaled" in part for part in found.advice)


def test_a_gpu_that_was_not_tried_is_advised():
    assert "--loader '{name: dali, device: gpu}'" in of(gpus=1).advice


def test_near_the_reading_limit_the_disk_or_the_processor_is_named():
    slow = {"reading alone · 2 threads": ([1000, 1010, 990], 0.2)}
    found = of(speeds={**slow, "decoding alone · 2 threads": ([5000, 5010, 4990], 2.0)})
    assert found.bound == "reading"
    assert "waits for the disk" in found.because
    assert found.advice[0].startswith("TFRecord shards")
    busy = {"reading alone · 2 threads": ([1000, 1010, 990], 2.0)}
    found = of(speeds={**busy, "decoding alone · 2 threads": ([5000, 5010, 4990], 2.0)})
    assert "opening and copying" in found.because


def test_idle_cores_of_the_machine_ask_for_threads():
    found = of(cpus=8)
    assert found.bound == "threads"
    assert found.advice == ("--threads 4",)
    more = {"native · 4 threads": ([910, 890, 900], 1.95)}
    limits = {f"{kind} alone · 4 threads": ([2000] * 3, 4.0) for kind in ("decoding", "reading")}
    assert of(cpus=8, threads=(1, 2, 4), speeds=more | limits).bound != "threads"


def test_threads_that_do_not_compute_wait():
    found = of(native=([450, 455, 445], 1.0))
    assert found.bound == "waiting"
    assert "2 at work keep only 1.0 of 2 cores busy" in found.because
    assert "Python's lock" in found.because
    assert found.advice == ("loading processes: --processes 2", "a larger batch: --batch 128")
    alone = of(native=([450, 455, 445], 1.0), loaders=["native", "synthetic"])
    assert "--loader dali" in alone.advice


@pytest.mark.parametrize("stage", list(STAGES))
def test_far_below_bare_decoding_the_slowest_stage_is_named(stage):
    found = of(native=([500, 505, 495], 1.95), stages={**STAGES, stage: 0.9})
    assert found.bound == stage
    assert f"{stage} {100 * 0.9 / (sum(STAGES.values()) - STAGES[stage] + 0.9):.1f} %" in str(found)


def test_of_other_loaders_no_stages_are_known():
    figures = {"dali cpu · 2 threads": ([500, 505, 495], 1.95), **DECODING}
    found = diagnose(fake_bench(figures, stages=STAGES))
    assert (found.best, found.bound) == ("dali cpu · 2 threads", "work beside decoding")


def test_as_fast_as_nothing_loaded():
    found = of(speeds={"synthetic": ([1000, 1010, 990], 1.0)})
    assert (found.bound, found.advice) == ("nothing", ())


def test_other_programs_come_before_what_they_distort():
    found = of(native=([900, 905, 895], 1.0), others=1.0)
    assert found.bound == "other programs"
    assert "1.0 of 2 cores busy" in found.because
    assert "1.11 ms of processor time, and bare decoding 2.00 ms" in found.because
    assert of(cpus=16, others=1.0).bound != "other programs"


def test_rivals_are_those_that_the_intervals_do_not_tell_apart():
    close = {"native · 1 thread": ([880, 910, 900], 1.0), "dali cpu · 2 threads": ([500] * 3, 2.0)}
    assert of(speeds=close).rivals == ("native · 1 thread",)
    assert "Not shown to be slower: native · 1 thread." in str(of(speeds=close))


def test_with_one_round_nothing_is_shown_to_be_slower():
    found = diagnose(
        fake_bench({"native · 2 threads": ([900], 2.0), "native · 1 thread": ([9], 1.0)})
    )
    assert found.rivals == ("native · 1 thread",)


def test_synthetic_is_no_loader():
    found = diagnose(fake_bench(SYNTHETIC, failures={"native · 1 thread": "no such file"}))
    assert (found.best, found.bound) == ("", None)
    assert "no such file" in str(found)


def test_shares_are_of_the_limit_with_as_many_threads():
    rows = {r.candidate.name: r for r in loading_rows(fake_bench({
        "native · 1 thread": ([400, 404, 396], 1.0),
        "native · 2 threads": ([900, 905, 895], 2.0),
        **DECODING,
        **SYNTHETIC,
    }))}  # fmt: skip
    shares = [rows[f"native · {width}"].of_decoding for width in ("1 thread", "2 threads")]
    assert [round(share.value, 3) for share in shares if share] == [0.8, 0.9]
    assert rows["synthetic"].of_decoding is None
    assert rows["decoding alone · 1 thread"].of_decoding is None


def test_what_has_no_figures_says_why_in_its_row():
    bench = fake_bench(DECODING, failures={"dali cpu · 2 threads": "DALI is | not here"})
    (line,) = (line for line in written(bench).splitlines() if line.startswith("| dali cpu · 2"))
    assert line.endswith("| DALI is \\| not here |")


def test_notes_tell_of_interruption_disk_and_company():
    bench = fake_bench(DECODING, others=0.5, read_before=False)
    said = " ".join(notes(bench.model_copy(update={"complete": False}), loading_rows(bench)))
    for words in ("interrupted", "0.5 to 0.5 cores", "larger than the page cache"):
        assert words in said


def test_limits_that_are_far_away_are_told_instead_of_drawn():
    bench = fake_bench({"native · 2 threads": ([900, 905, 895], 2.0), **DECODING, **SYNTHETIC})
    plot = speeds(loading_rows(bench))
    assert plot is not None
    drawn = [name for trace in plot.traces for name in trace["y"]]
    assert drawn == ["decoding alone", "native", "decoding alone"]
    assert "synthetic 1,000,000" in plot.note
    assert "reading alone · 2 threads 18,000" in plot.note


def test_nothing_measured_is_a_page_too():
    bench = fake_bench({})
    assert speeds(loading_rows(bench)) is None
    assert "Nothing was measured" in page(bench)


def test_files(tmp_path: Path):
    bench = fake_bench({"native · 2 threads": ([900, 905, 895], 2.0), **DECODING})
    assert LoadingBench.model_validate_json(bench.save(tmp_path).read_bytes()) == bench
    build(bench, tmp_path)
    assert (tmp_path / "loaders.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "loaders.svg").read_text("utf-8")
    assert "decoding alone" in svg
    html = (tmp_path / "loaders.html").read_text("utf-8")
    assert "http-equiv" in html
    assert "src=" not in html.split("<script")[0]
    figures = html.split('id="figures">')[1].split("</script>")[0]
    assert [each["type"] for each in json.loads(figures)["loaders"]["data"]] == ["bar", "bar"]
    build(bench, tmp_path)
    assert (tmp_path / "loaders.svg").read_text("utf-8") == svg
