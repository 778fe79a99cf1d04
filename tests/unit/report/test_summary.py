"""The summary claims no more than the intervals show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysuite.records import (
    Journal,
    Ratio,
    RunFailed,
    SamplesSkipped,
    make_rows,
    results_figures,
)
from raysuite.records import rows as rows_module
from raysuite.records.statistics import compared
from raysuite.report import collect
from raysuite.report.summary import fastest, repeats_note, short_names, summarize_rows
from raysuite.report.tables import columns, rows_sheet
from raysuite.report.text import ratio
from tests.fake_batches import batch_found
from tests.fake_results import ENVIRONMENT, PACE, TWELVE_ROWS, write_results

LOST = RunFailed(run_id="", reason="lost", message="worker died\nand more")
CAUGHT = RunFailed(run_id="", reason="gate", message="the ranks disagree")


def summary(folder, **options) -> str:
    report = collect(write_results(folder, **options))
    return "\n".join([*(sentence.text for sentence in report.summary), report.note])


def test_one_run_each_shows_no_difference(tmp_path):
    said = summary(tmp_path)
    assert "is ddp · dali " in said
    assert "n = 1: no interval" in said
    assert "faster than" not in said


def test_a_difference_is_claimed_where_the_interval_leaves_one_out(tmp_path):
    said = summary(tmp_path, repeats=4)
    assert "faster than all 5" in said


def test_one_variant_without_repeats_leaves_the_others_their_differences(tmp_path):
    plans = write_results(tmp_path / "a", repeats=4).plans()
    missing = [
        place
        for place, plan in enumerate(plans)
        if plan["repeat"]
        and plan["spec"]["strategy"]["name"] == "horovod"
        and plan["spec"]["loader"]["name"] == "native"
        and plan["workers"] == 2
    ]
    assert len(missing) == 3
    said = summary(tmp_path / "b", repeats=4, missing=missing)
    assert "faster than 4 of the 5 others" in said
    assert "not shown to differ from horovod · native" in said


def test_no_difference_is_claimed_between_equals(tmp_path, monkeypatch):
    for name in PACE:
        monkeypatch.setitem(PACE, name, 900.0)
    said = summary(tmp_path, repeats=3, spec=TWELVE_ROWS.replace("[native, dali]", "[native]"))
    assert "It is not shown to differ from" in said
    assert "faster than" not in said


def test_what_has_nothing_to_compare_with_is_not_called_fastest(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]")
    said = summary(tmp_path, spec=spec.replace("[ddp, horovod, deepspeed]", "[ddp]"))
    assert "groups" not in said
    assert "highest" not in said.partition("Highest parallel")[0]


def test_models_are_not_compared_by_images_per_second(tmp_path):
    said = summary(tmp_path, spec=TWELVE_ROWS + "  model: [resnet20, resnet32]\n")
    assert "resnet20, 2 workers: " in said
    assert "resnet32, 2 workers: " in said


def test_options_of_a_model_make_another_network(tmp_path):
    spec = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2]", "[1]")
    for loaders, wanted in (("[native]", "No two variants"), ("[native, dali]", "")):
        models = (
            "[{name: resnet18, options: {stem: small}}, {name: resnet18, options: {stem: large}}]"
        )
        said = summary(
            tmp_path / loaders,
            spec=spec.replace("[native, dali]", loaders) + f"  model: {models}\n",
            repeats=4,
        )
        assert wanted in said
        for stem in ("small", "large"):
            place = f"resnet18(options=(stem={stem})), 1 worker: the highest"
            assert (place in said) == (not wanted)


def test_where_images_of_a_known_set_lie_makes_no_other_work(tmp_path):
    spec = TWELVE_ROWS.replace("digits", "mnist").replace("[native, dali]", "[native]")
    spec = spec.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2]", "[1]")
    said = summary(tmp_path, spec=spec + "  data.path: [/fast, /slow]\n", elsewhere=True)
    assert "highest mean throughput" in said


def test_other_images_under_the_name_of_a_known_set_make_another_work(tmp_path):
    spec = TWELVE_ROWS.replace("digits", "mnist").replace("[ddp, horovod, deepspeed]", "[ddp]")
    spec = spec.replace("[1, 2]", "[1]") + "  data.root: [/real, /stand-in]\n"
    results = write_results(tmp_path, spec, elsewhere=True)
    plans = results.plans()
    for plan in plans:
        if plan["spec"]["data"]["root"] == "/stand-in":
            plan["dataset"]["train_samples"] = 600
    results.write_plans(plans)
    said = [sentence.text for sentence in collect(results).summary]
    for root in ("/real", "/stand-in"):
        work = f"root={root}, 1 worker: the highest"
        assert [text for text in said if text.startswith(work)]


def test_failures_the_gate_and_missing_runs_are_named(tmp_path):
    said = summary(tmp_path, fails={0: LOST, 4: CAUGHT}, missing=[10, 11])
    assert "(lost: worker died)." in said
    assert "gate failed for horovod" in said
    assert "2 runs of 12" in said
    assert "them: ddp · native · 1 worker" in said


def test_of_many_failures_four_are_named_and_the_others_counted(tmp_path):
    said = summary(tmp_path, fails=dict.fromkeys(range(6), LOST))
    assert said.count("failed (lost: worker died).") == 4
    assert "2 more runs failed." in said


def test_what_diverged_is_named_with_its_step(tmp_path):
    end = RunFailed(run_id="", reason="diverged", message="not finite", step=7)
    report = collect(write_results(tmp_path, fails={0: end}))
    [said] = [s for s in report.summary if s.text.startswith("Diverged (losses or weights")]
    assert said.kind == "problem"
    assert "ddp · native · 1 worker (step 7)" in said.text
    assert not [s for s in report.summary if "failed (" in s.text]
    images = next(c for c in columns(report.rows) if c.title == "Images/s")
    marked = [images.write(row).endswith(" (diverged)") for row in report.rows]
    assert marked == [True] + [False] * 11


def test_steps_that_fp16_skipped_are_a_caveat(tmp_path):
    first, *others = results_figures(write_results(tmp_path))
    epochs = [each.model_copy(update={"skipped_steps": 2}) for each in first.epochs[:2]]
    runs = [replace(first, epochs=(*epochs, *first.epochs[2:])), *others]
    [said] = [s for s in summarize_rows(make_rows(runs), runs) if "overflowed in fp16" in s.text]
    assert (said.kind, said.text.partition(": ")[2]) == ("caveat", f"{first.name} (4).")


def test_steps_that_were_skipped_are_told_of_each_repeat(tmp_path):
    runs = results_figures(write_results(tmp_path, repeats=3))
    same = [place for place, run in enumerate(runs) if run.variant == runs[0].variant]
    for place, skipped in zip(same, (4, 3, 0), strict=True):
        epoch, *more = runs[place].epochs
        epoch = epoch.model_copy(update={"skipped_steps": skipped})
        runs[place] = replace(runs[place], epochs=(epoch, *more))
    [said] = [s.text for s in summarize_rows(make_rows(runs), runs) if "in fp16" in s.text]
    first = "ddp · native · 1 worker"
    assert f": {first} (4)" in said
    assert f"{first} · repeat 1 (3)" in said
    assert "repeat 2" not in said


def test_nothing_so_far(tmp_path):
    assert "No run has" in summary(tmp_path, missing=range(12))


def test_efficiency_above_one_is_pointed_out(tmp_path, monkeypatch):
    monkeypatch.setitem(PACE, "horovod", 4000.0)
    report = collect(write_results(tmp_path, repeats=3), baseline="ddp · native · 1 worker")
    assert any(sentence.text.startswith("Efficiency above 1:") for sentence in report.summary)


def test_the_highest_efficiency_has_the_interval_of_the_table(tmp_path):
    report = collect(write_results(tmp_path, repeats=3))
    [said] = [s.text for s in report.summary if s.text.startswith("Highest parallel")]
    best = max((r for r in report.rows if not r.is_baseline), key=lambda r: r.efficiency.value)
    assert f"E = {ratio(best.efficiency)}, a speed-up of {ratio(best.speed_up)}" in said
    table = "\n".join(map(str, rows_sheet(report.rows).cells))
    assert ratio(best.efficiency) in table
    assert ratio(best.speed_up) in table


def test_variants_are_named_without_what_all_share(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]")
    report = collect(write_results(tmp_path, spec=spec, repeats=3))
    said = "\n".join(sentence.text for sentence in report.summary)
    assert "against its baseline horovod · 1 worker." in said
    assert "native" not in said


def test_options_that_all_share_are_left_out_of_names():
    pair = [f"pipeline(schedule={each}, balance=time) · native" for each in ("gpipe", "1f1b")]
    wanted = ["pipeline(schedule=gpipe)", "pipeline(schedule=1f1b)"]
    assert list(short_names(pair).values()) == wanted


def test_what_is_true_of_all_variants_names_none(tmp_path):
    runs = results_figures(write_results(tmp_path, repeats=2))
    pace = (1000.0, 1500.0)
    apart = [replace(run, throughput=pace[run.plan["repeat"]]) for run in runs]
    [said] = [s.text for s in summarize_rows(make_rows(apart), apart) if "deviation of" in s.text]
    assert "all 12 variants (28%)" in said
    one = [replace(run, throughput=1000.0) for run in apart if run.workers == 2]
    one += [run for run in apart if run.workers == 1]
    [said] = [s.text for s in summarize_rows(make_rows(one), one) if "deviation of" in s.text]
    assert "ddp · dali · 1 worker (28%)" in said


def test_different_environments_are_pointed_out(tmp_path, monkeypatch):
    write_results(tmp_path, missing=range(6, 12))
    monkeypatch.setitem(ENVIRONMENT, "fingerprint", "cafe")
    assert "hardware or versions:" in summary(tmp_path, missing=range(6))


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_note_says_where_intervals_come_from(tmp_path, repeats):
    note = collect(write_results(tmp_path, repeats=repeats)).note
    assert note.startswith("One run per variant" if repeats == 1 else "Means over 3 repeats")


def test_random_tensors_in_place_of_images_are_a_caveat(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native, synthetic]")
    said = summary(tmp_path, spec=spec)
    assert "validations have no meaning: ddp · synthetic · 1 worker, " in said
    assert "meaning: ddp · native" not in said
    assert "have no meaning" not in summary(tmp_path / "other")


def test_samples_that_were_left_out_are_a_caveat_and_stand_in_the_data(tmp_path):
    results = write_results(tmp_path)
    for number, plan in enumerate(results.plans()):
        for split, count in (("train", 3), ("val", 0)):
            Journal(results.journal_file(plan["run_id"])).write(
                SamplesSkipped(
                    run_id=plan["run_id"],
                    split=split,
                    samples=1437,
                    skipped=0 if number else count,
                    places=["a.jpg: cut short"] * count,
                    known=0,
                    seconds=1,
                )
            )
    report = collect(results)
    [said] = [s for s in report.summary if "left out" in s.text]
    assert said.kind == "caveat"
    assert said.text.startswith(
        "Unreadable samples left out of digits: 3 of 1,437 train samples "
        "(in ddp · native · 1 worker)."
    )
    data = report.data()
    assert data["runs"][0]["skipped"]["train"] == {
        "samples": 1437,
        "skipped": 3,
        "places": ["a.jpg: cut short"] * 3,
    }
    assert data["rows"][0]["skipped_samples"]["mean"] == 3
    assert data["rows"][1]["skipped_samples"]["mean"] == 0


def test_batches_that_were_found_by_trial_are_told(tmp_path):
    results = write_results(tmp_path)
    ids = [plan["run_id"] for plan in results.plans()[:2]]
    for run_id, key in zip(ids, ("training.accumulate", "training.batch_per_worker"), strict=True):
        Journal(results.journal_file(run_id)).write(batch_found(run_id, key=key))
        said = "\n".join(sentence.text for sentence in collect(results).summary)
        words = "micro-batch 32 x 2 on each worker, a global batch of 64, found by trial"
        assert f"ddp · native · 1 worker: {words}" in said
        assert ("do the steps" in said) == (key != "training.accumulate")


def test_a_busy_machine_and_a_wide_spread_are_caveats(tmp_path):
    runs = results_figures(write_results(tmp_path, repeats=2))
    said = summarize_rows(make_rows(runs), runs)
    assert not any("busy" in sentence.text for sentence in said)
    runs = [replace(run, other_cores=0.5) for run in runs]  # of 2
    runs[0] = replace(runs[0], throughput=2 * runs[0].throughput)
    said = [s.text for s in summarize_rows(make_rows(runs), runs) if s.kind == "caveat"]
    assert any("busy" in each and "all 12 variants (25%)" in each for each in said)
    assert any("standard deviation of 10%" in each and runs[0].variant in each for each in said)
    runs = [replace(run, other_cores=0.3) for run in runs]  # of 2: one worker leaves a core free
    said = [s.text for s in summarize_rows(make_rows(runs), runs) if "busy" in s.text]
    named = {run.workers: run.variant for run in runs}
    assert [named[1] in said[0], named[2] in said[0]] == [False, True]


def test_a_single_variant_is_named(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]").replace("[ddp, horovod, deepspeed]", "[ddp]")
    spec = spec.replace("[native, dali]", "[dali]")
    runs = results_figures(write_results(tmp_path, spec, repeats=2))
    runs = [replace(run, other_cores=cores) for run, cores in zip(runs, (0.5, 0.4), strict=True)]
    runs[0] = replace(runs[0], throughput=300.0)  # beside other programs on 25 % of the cores
    runs[1] = replace(runs[1], throughput=100.0)  # s = 141 about a mean of 200
    said = [s.text for s in summarize_rows(make_rows(runs), runs) if s.kind == "caveat"]
    [busy] = [each for each in said if "busy during" in each]
    assert busy.endswith("all cores: ddp · dali · 2 workers (25%).")
    [wide] = [each for each in said if "standard deviation" in each]
    assert "or more: ddp · dali · 2 workers (71%)." in wide


@pytest.mark.parametrize(
    ("workers", "each", "other_cores", "told"),
    [
        (1, 1, 0.3, False),  # one of two cores is free
        (1, 1, 0.5, True),  # a quarter of the machine
        (1, 2, 0.3, True),  # none is free
        (1, 2, 0.19, False),
        (2, 1, 0.2, True),
        (2, 1, 0.19, False),
        (2, 2, 0.19, False),  # workers have no more cores than there are
        (2, 2, 0.2, True),
    ],
)
def test_other_programs_count_where_workers_have_no_free_cores_beside_them(
    tmp_path, workers, each, other_cores, told
):
    """10 % of the workers' own cores, on a machine with two."""
    spec = TWELVE_ROWS.replace("{device: cpu}", f"{{device: cpu, cpus_per_worker: {each}}}")
    spec = spec.replace("[1, 2]", f"[{workers}]").replace("[native, dali]", "[native, ray_data]")
    runs = [
        replace(run, other_cores=other_cores)
        for run in results_figures(write_results(tmp_path, spec))
    ]
    said = [s.text for s in summarize_rows(make_rows(runs), runs) if "Other programs" in s.text]
    assert len(said) == told
    assert not any("ray_data" in each for each in said), "whose tasks are those programs"


def test_a_slow_first_epoch_is_a_caveat_of_repeats_of_any_length(tmp_path):
    runs = results_figures(write_results(tmp_path, repeats=2))
    same = [place for place, run in enumerate(runs) if run.variant == runs[0].variant]
    for place, speeds in zip(same, ([50, 100, 99, 101, 100, 100], [50, 99, 101, 100]), strict=True):
        epochs = [
            each.model_copy(update={"steady_images": speed, "steady_seconds": 1.0})
            for each, speed in zip(runs[place].epochs, speeds, strict=False)
        ]
        runs[place] = replace(runs[place], epochs=tuple(epochs))
    [said] = [s.text for s in summarize_rows(make_rows(runs), runs) if "slower in" in s.text]
    assert f"{runs[0].variant} (by 50%)" in said


IN_ORDER = "ddp · dali · 1 worker, ddp · dali · 2 workers, ddp · native · 1 worker"


def said_of(runs, what):
    """What follows the colon of each sentence that holds `what`."""
    said = summarize_rows(make_rows(runs), runs)
    return [each.text.partition(": ")[2] for each in said if what in each.text]


@pytest.mark.parametrize("devices", [[], ["mlx5_0"]])
def test_tcp_between_hosts_that_have_infiniband_is_a_caveat(tmp_path, devices):
    runs = results_figures(write_results(tmp_path))
    facts = {**ENVIRONMENT, "infiniband": devices}
    tcp = {"transports": ["TCP, eth0"], "environment": facts}
    over_tcp = [replace(run, started=run.started.model_copy(update=tcp)) for run in runs]
    for slow, names in ((1, runs[0].variant), (12, f"{IN_ORDER} and 9 more")):
        some = [*over_tcp[:slow], *runs[slow:]]
        assert said_of(some, "InfiniBand") == ([f"{names}."] if devices else [])


def test_weights_that_were_not_compared_are_a_caveat(tmp_path):
    runs = results_figures(write_results(tmp_path))
    unknown = [
        replace(run, verdict=run.verdict.model_copy(update={"tolerance": None})) for run in runs
    ]
    assert said_of([unknown[0], *runs[1:]], "not compared") == [f"{runs[0].variant}."]
    assert said_of(unknown, "not compared") == [f"{IN_ORDER} and 9 more."]


def test_claims_of_several_groups_hold_together(tmp_path, monkeypatch):
    """A ratio that one group alone would claim is not claimed where there are eight."""
    levels = []
    monkeypatch.setattr(
        rows_module, "compared", lambda stats, level: levels.append(level) or compared(stats)
    )
    summary(tmp_path, repeats=2)
    assert levels == [pytest.approx(1 - 0.05 / 2)] * 2


@pytest.mark.parametrize(
    ("workers", "models", "left"),
    [
        ("[1, 2, 4, 8]", "[resnet20, resnet32]", []),
        ("[1, 2, 4]", "[resnet20, resnet32, resnet44]", ["Only in the table: 1 more group."]),
    ],
)
def test_groups_of_work_beyond_the_eighth_are_counted(tmp_path, workers, models, left):
    spec = TWELVE_ROWS.replace("[1, 2]", workers).replace("REPEATS", "1") + f"  model: {models}\n"
    said = fastest(make_rows(results_figures(write_results(tmp_path, spec))))
    assert [each.text for each in said if each.kind == "caveat"] == left
    assert len([each for each in said if each.kind == "result"]) == 8


def test_a_group_with_one_variant_is_not_compared_beside_groups_of_several(tmp_path):
    runs = results_figures(write_results(tmp_path))
    some = [run for run in runs if run.workers == 2 or run.variant.startswith("ddp · native")]
    said = [each.text for each in fastest(make_rows(some))]
    assert [each.partition(": ")[0] for each in said[:-1]] == ["2 workers"]
    assert said[-1].startswith("In 1 of the 2 groups with the same network, data and number of ")
    (alone,) = fastest(make_rows([run for run in some if run.workers == 1]))
    assert alone.text.startswith("1 worker: ddp · native · 1 worker at ")
    assert alone.text.endswith("images/s, the only variant with a speed here.")


def test_variants_that_are_not_shown_to_be_slower_are_named_from_the_fastest(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]").replace("[native, dali]", "[native]")
    runs = results_figures(write_results(tmp_path, spec, repeats=3))
    paces = {"horovod": (100, 120, 140), "deepspeed": (101, 119, 141), "ddp": (90, 110, 130)}
    runs = [
        replace(run, throughput=float(paces[run.variant.split()[0]][run.plan["repeat"]]))
        for run in runs
    ]
    (said,) = fastest(make_rows(runs))
    assert "is deepspeed at 120 [" in said.text
    assert said.text.endswith(" It is not shown to differ from horovod and ddp.")
    slow = [
        replace(run, throughput=run.throughput / 100) if run.variant.startswith("ddp") else run
        for run in runs
    ]
    (said,) = fastest(make_rows(slow))
    one = " It is faster than 1 of the 2 others (95 % confidence), and not shown to differ from "
    assert said.text.endswith(f"{one}horovod.")


def scaled(folder, **options):
    """The sentence on the highest efficiency, if any."""
    report = collect(write_results(folder, **options.pop("results", {})), **options)
    return [s.text for s in report.summary if s.text.startswith("Highest parallel")], report


def test_the_highest_efficiency_is_of_more_workers_than_the_baseline(tmp_path):
    found, report = scaled(tmp_path, results={"repeats": 3}, baseline="workers=2")
    assert any(row.speed_up and not row.is_baseline for row in report.rows)
    assert found == []
    one = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]")
    one = one.replace("[native, dali]", "[native]")
    for repeats, single in ((1, True), (3, False)):
        (said,) = scaled(tmp_path / f"{repeats}", results={"spec": one, "repeats": repeats})[0]
        assert said.endswith("n = 1: no interval.") == single
        assert "selected as the highest" not in said
    (said,) = scaled(tmp_path / "all", results={"repeats": 3})[0]
    assert "selected as the highest" in said


def test_a_speed_up_that_may_be_one_is_said_to_be(tmp_path):
    rows = make_rows(results_figures(write_results(tmp_path, repeats=2)))
    for low, told in ((0.9, True), (1.1, False)):
        near = [
            row if row.is_baseline else replace(row, speed_up=Ratio(1.5, low, 2.0)) for row in rows
        ]
        (said,) = (s.text for s in summarize_rows(near, []) if s.text.startswith("Highest"))
        assert said.endswith("The speed-up is not shown to differ from 1.") == told


def test_repeats_of_different_number_are_a_range(tmp_path):
    rows = make_rows(results_figures(write_results(tmp_path, repeats=3, missing=[24])))
    assert repeats_note(rows).startswith("Means over 2 to 3 repeats;")
    assert repeats_note([]) == "No run has a speed so far."
    few = make_rows(results_figures(write_results(tmp_path / "b", repeats=2, missing=[12])))
    assert repeats_note(few).startswith("Means over 1 to 2 repeats;")


def test_a_repeat_far_from_the_others_is_named(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]").replace("[native, dali]", "[native]")
    runs = results_figures(write_results(tmp_path, spec, repeats=5))
    paces = (1000.0, 1001.0, 999.0, 1000.5, 900.0)
    same = [
        replace(run, throughput=paces[run.plan["repeat"]] if "horovod" in run.variant else 1000.0)
        for run in runs
    ]
    assert said_of(same, "Grubbs") == ["horovod (900). They are still included in every mean."]
    assert said_of([run for run in same if run.plan["repeat"] > 1], "Grubbs") == []


def test_what_data_sets_lack_and_both_splits_leave_out_is_a_caveat(tmp_path):
    runs = results_figures(write_results(tmp_path, repeats=2))

    def left(split, skipped, *lacking):
        return SamplesSkipped(run_id="", split=split, samples=1437, skipped=skipped, places=[],
                              lacking=lacking, known=0, seconds=1)  # fmt: skip

    both = (left("train", 3), left("val", 2, "class 7", "class 9"))
    same = [place for place, run in enumerate(runs) if run.variant == runs[0].variant]
    for place in same:
        runs[place] = replace(runs[place], skipped=both)
    said = [s.text for s in summarize_rows(make_rows(runs), runs) if "without them" in s.text]
    end = "(in ddp · native · 1 worker). All figures are computed without them."
    assert said == [
        "Unreadable samples left out of digits: 3 of 1,437 train samples and 2 of 1,437 val "
        f"samples {end}",
        f"val of digits lacks class 7 and class 9 {end}",
    ]


def test_runs_that_were_stopped_pruned_or_not_checked_are_told(tmp_path):
    first, second, third, *others = results_figures(write_results(tmp_path))
    runs = [
        replace(first, status="stopped"),
        replace(second, status="pruned"),
        replace(third, gate="not checked"),
        *(replace(run, gate="not checked", status="missing") for run in others),
    ]
    said = {s.text: s.kind for s in summarize_rows(make_rows(runs), runs)}
    for text, kind in (
        (f"{first.name} stopped on request, and can be resumed.", "problem"),
        ("1 run of 12 stopped early by the sweep's scheduler.", "caveat"),
        ("9 runs of 12 without a result so far.", "problem"),
    ):
        assert said[text] == kind, said
    (unchecked,) = (text for text in said if text.startswith("No result of the gate is recorded"))
    assert unchecked.endswith(f" for {third.name}, so no speed is reported.")
