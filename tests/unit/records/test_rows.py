"""Runs -> rows: repeats, baselines, speed-up, efficiency."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from raysuite.errors import UserError
from raysuite.plan import make_plans
from raysuite.plan.batch_candidates import decided
from raysuite.records import (
    Journal,
    Results,
    RunFailed,
    SamplesSkipped,
    make_rows,
    results_figures,
)
from raysuite.records.names import block_name, series_key
from raysuite.records.rows import same_work
from raysuite.records.schema import ScriptMeasured
from raysuite.records.statistics import accuracy, compared, ratio_of_means
from raysuite.report.summary import fastest
from raysuite.spec import parse_document
from raysuite.spec.strategies import Traffic
from raysuite.spec.tasks import CLASSIFICATION
from tests.fake_results import FOUR_KINDS, PACE, TWELVE_ROWS, write_results

WITH_SINGLE = (
    TWELVE_ROWS.replace("matrix:", "strategy: ddp\nmatrix:")
    .replace("[ddp, horovod, deepspeed]", "[single, ddp]")
    .replace("[1, 2]", "[1]")
)
LOST = RunFailed(run_id="", reason="lost", message="the workers died")
CAUGHT = RunFailed(run_id="", reason="gate", message="the ranks disagree")


def rows_of(folder, baseline=None, **options):
    return make_rows(results_figures(write_results(folder, **options)), baseline)


def test_repeats_of_a_variant_are_one_row(tmp_path):
    rows = rows_of(tmp_path, repeats=3)
    assert len(rows) == 12
    assert {len(row.runs) for row in rows} == {3}
    assert all(row.throughput.n == 3 and row.throughput.half_width > 0 for row in rows)
    assert all(row.gate == "passed" and row.status == "finished" for row in rows)


def test_wrappers_and_compilers_are_held_against_what_they_add_to(tmp_path):
    bare, compiled, wrapped, other = rows_of(tmp_path, spec=FOUR_KINDS, repeats=3)
    assert (bare.beside, other.beside) == (None, None)
    assert (compiled.beside, wrapped.beside) == (bare.name, bare.name)
    assert wrapped.relative.value == pytest.approx(wrapped.throughput.mean / bare.throughput.mean)
    assert wrapped.relative.low < wrapped.relative.value < wrapped.relative.high
    assert wrapped.break_even is None
    assert (compiled.compile_seconds.mean, compiled.graph_breaks.mean) == (20.0, 0.0)
    assert (bare.compile_seconds, bare.graph_breaks) == (None, None)
    saved = [
        64 / plain.throughput - 64 / run.throughput
        for plain, run in zip(bare.runs, compiled.runs, strict=True)
    ]
    assert compiled.break_even.value == pytest.approx(20.0 * 3 / sum(saved))
    assert compiled.break_even.low < compiled.break_even.value < compiled.break_even.high


def test_rows_of_different_specs_in_one_folder_are_never_ranked_together(tmp_path):
    """As earlier versions wrote them: two calls with other epochs into one folder."""
    for epochs in (3, 6):
        spec = TWELVE_ROWS.replace("epochs: 6", f"epochs: {epochs}")
        results = write_results(tmp_path / str(epochs), spec=spec)
        for plan in results.plans():
            Results(tmp_path).add_plan(plan)
            journal = Results(tmp_path).journal_file(plan["run_id"])
            journal.parent.mkdir(parents=True)
            journal.write_bytes(results.journal_file(plan["run_id"]).read_bytes())
    rows = make_rows(results_figures(Results(tmp_path)))
    assert len(rows) == 24
    assert [row.name.rpartition(" · ")[2] for row in rows] == ["epochs=3"] * 12 + ["epochs=6"] * 12
    groups = same_work(rows)
    assert len(groups) == 4
    assert all(len({str(row.unnamed) for row in group}) == 1 for group in groups.values())
    assert sum(row.is_best for row in rows) == 4
    said = [each.text.partition(",")[0] for each in fastest(rows)]
    assert said == ["epochs=3", "epochs=3", "epochs=6", "epochs=6"]


def test_seeds_in_the_matrix_are_repeats(tmp_path):
    spec = TWELVE_ROWS + "  seed: [1, 2, 3]\n"
    rows = rows_of(tmp_path, spec=spec)
    assert len(rows) == 12
    assert len(rows[0].runs) == 3
    assert [run.name for run in rows[0].runs] == [f"{rows[0].name} · seed={n}" for n in (1, 2, 3)]


def test_default_baseline_is_the_same_variant_with_fewest_workers(tmp_path):
    for row in rows_of(tmp_path):
        assert row.baseline == f"{row.series} · 1 worker"
        assert row.is_baseline == (row.workers == 1)


def test_speed_up_and_efficiency(tmp_path):
    rows = {row.name: row for row in rows_of(tmp_path, repeats=3)}
    base, two = rows["ddp · native · 1 worker"], rows["ddp · native · 2 workers"]
    assert two.speed_up.value == pytest.approx(two.throughput.mean / base.throughput.mean)
    assert two.efficiency.value == pytest.approx(two.speed_up.value / 2)
    assert two.efficiency.low == pytest.approx(two.speed_up.low / 2)
    assert (base.speed_up.value, base.efficiency.value) == (1.0, 1.0)
    assert not base.superlinear


BY_TRIAL = """\
name: made-up
model: resnet20
data: digits
strategy: ddp
training: {epochs: 2, BATCH}
resources: {device: cpu}
matrix: {resources.workers: [1, 2, 4]}
"""


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        ("global_batch: 64, accumulate: auto", {1: 16, 2: 16, 4: 16}),
        ("batch_per_worker: auto", {1: 64, 2: 32, 4: 16}),
    ],
)
def test_a_batch_found_by_trial_makes_no_series_of_its_own(tmp_path, batch, sizes):
    rows = rows_of(tmp_path, spec=BY_TRIAL.replace("BATCH", batch), sizes=sizes)
    assert [row.runs[0].plan["micro_batch"] for row in rows] == list(sizes.values())
    assert {row.baseline for row in rows} == {"ddp · native · 1 worker"}
    assert [row.is_baseline for row in rows] == [True, False, False]
    assert rows[2].speed_up.value > rows[1].speed_up.value > 1


PART_BY_TRIAL = BY_TRIAL.replace("BATCH", "global_batch: 64").replace(
    "4]}", "4], training.accumulate: ASKED}"
)


@pytest.mark.parametrize("asked", ["[1, auto]", "[auto, 1]"])
def test_a_row_of_which_a_part_was_found_by_trial_is_one_of_the_given_ones(tmp_path, asked):
    spec = PART_BY_TRIAL.replace("ASKED", asked)
    rows = rows_of(tmp_path, spec=spec, sizes={1: 64, 2: 16, 4: 8})
    base = next(row for row in rows if len(row.runs) == 2)
    given = [row for row in rows if "accumulate=1" in row.name or row is base]
    assert [row.workers for row in given] == [1, 2, 4]
    assert {row.baseline for row in given} == {base.name}
    found = [row for row in rows if row not in given]
    assert {row.baseline for row in found} == {"ddp · native · 2 workers · accumulate=auto"}


def test_what_was_asked_of_the_search_tells_series_apart():
    wishes = "training.accumulate: [auto, {auto: largest, at_most: 8}]"
    spec = BY_TRIAL.replace("BATCH", "global_batch: 64").replace("4]}", f"4], {wishes}}}")
    plans = [
        decided(plan, 8).model_dump(mode="json")
        for plan in make_plans(parse_document(spec, "spec.yaml"), gpus=0)
    ]
    assert len({series_key(plan) for plan in plans}) == 3
    other_seed = {**plans[0], "spec": {**plans[0]["spec"], "seed": 7}}
    assert series_key(other_seed) == series_key(plans[0])
    assert len({series_key(plan, "training.accumulate") for plan in plans}) == 2


def test_a_baseline_without_a_speed_is_not_replaced_in_silence(tmp_path):
    rows = {row.name: row for row in rows_of(tmp_path, fails={0: LOST})}
    two = rows["ddp · native · 2 workers"]
    assert two.baseline == "ddp · native · 1 worker"
    assert two.speed_up is None
    assert two.throughput is not None
    one = rows["ddp · native · 1 worker"]
    assert one.throughput is two.over(one) is one.over(two) is None


def test_baseline_by_part_of_a_name_takes_the_match_that_is_most_alike(tmp_path):
    rows = {row.name: row for row in rows_of(tmp_path, "single", spec=WITH_SINGLE)}
    assert rows["ddp · dali · 1 worker"].baseline == "single · dali · 1 worker"
    assert rows["ddp · native · 1 worker"].baseline == "single · native · 1 worker"
    ddp = {row.name: row for row in rows_of(tmp_path / "b", "ddp")}
    assert ddp["horovod · dali · 2 workers"].baseline == "ddp · dali · 2 workers"
    assert ddp["horovod · dali · 2 workers"].speed_up.value < 1


def test_a_whole_name_is_taken_before_names_with_it_as_a_part(tmp_path):
    spec = TWELVE_ROWS.replace("[native, dali]", "[native]") + "  training.clip_norm: [null, 1.0]\n"
    runs = results_figures(write_results(tmp_path, spec))
    name = "ddp · native · 1 worker"
    clipped = f"{name} · clip_norm=1.0"
    rows = {row.name: row for row in make_rows(runs, name)}
    assert {row.baseline for row in rows.values()} == {name}
    rows = {row.name: row for row in make_rows(runs, name.upper())}
    assert (rows[name].baseline, rows[clipped].baseline) == (name, clipped)
    assert make_rows([], "workers=2") == []


def test_a_number_of_workers_is_no_baseline_where_none_varies(tmp_path):
    spec = TWELVE_ROWS.replace("[1, 2]", "[2]")
    with pytest.raises(UserError, match="several numbers of workers"):
        rows_of(tmp_path, "workers=1", spec=spec)


def test_an_unknown_baseline_names_the_valid_ones(tmp_path):
    with pytest.raises(UserError, match=r"no row is called 'pdd'.*\n  ddp · native · 1 worker"):
        rows_of(tmp_path, "pdd")


def test_another_model_is_no_baseline(tmp_path):
    spec = TWELVE_ROWS + "  model: [resnet20, resnet32]\n"
    rows = rows_of(tmp_path, "model=resnet20", spec=spec)
    assert {row.baseline is None for row in rows if "resnet32" in row.name} == {True}


def test_other_images_under_the_same_name_are_no_baseline(tmp_path):
    spec = WITH_SINGLE.replace("data: digits", "data: mnist")
    spec += "  data.root: [/fast, /slow, /stand-in]\n"
    runs = results_figures(write_results(tmp_path, spec, elsewhere=True))
    for run in runs:
        if run.plan["spec"]["data"]["root"] == "/stand-in":
            run.plan["dataset"]["train_samples"] = 600
    rows = {row.name: row for row in make_rows(runs, "single · native · 1 worker · root=/fast")}
    assert rows["ddp · dali · 1 worker · root=/slow"].baseline
    assert rows["ddp · dali · 1 worker · root=/stand-in"].baseline is None


def test_a_variant_that_the_gate_caught_once_has_no_figures_at_all(tmp_path):
    row = rows_of(tmp_path, repeats=2, fails={0: CAUGHT})[0]
    assert row.gate == "failed"
    assert row.throughput is None
    assert row.counted == ()
    assert row.status == "1 of 2 failed"


def test_failed_and_missing_runs_leave_the_others_standing(tmp_path):
    rows = rows_of(tmp_path, repeats=2, fails={0: LOST}, missing=[1])
    assert rows[0].throughput.n == 1
    assert rows[0].status == "1 of 2 failed"
    assert rows[1].status == "1 of 2 missing"
    assert rows[1].gate == "passed"


def test_time_to_accuracy_needs_every_repeat(tmp_path):
    spec = TWELVE_ROWS.replace("0.9}", "0.999}")
    row = rows_of(tmp_path, spec=spec, repeats=2)[0]
    assert row.time_to_accuracy is None
    assert row.target_met == 0


def test_an_accuracy_is_of_the_samples_that_were_validated(tmp_path):
    results = write_results(tmp_path)
    whole = make_rows(results_figures(results))[0]
    for split, skipped in (("train", 5), ("val", 300)):
        record = SamplesSkipped(
            run_id=whole.runs[0].run_id,
            split=split,
            samples=360,
            skipped=skipped,
            places=[],
            known=0,
            seconds=0.1,
        )
        Journal(results.journal_file(record.run_id)).write(record)
    row = make_rows(results_figures(results))[0]
    assert row.runs[0].val_samples == whole.runs[0].val_samples - 300 == 60
    assert row.final_accuracy.values == whole.final_accuracy.values
    found = row.final_accuracy
    assert found == accuracy(found.values, 60) != whole.final_accuracy


def test_samples_that_a_lost_run_left_out_do_not_count(tmp_path):
    first, second = make_rows(results_figures(write_results(tmp_path, repeats=2)))[0].runs
    left_out = SamplesSkipped.model_construct(split="val", skipped=300)
    lost = replace(second, status="failed", skipped=(left_out,))
    row = make_rows([first, lost])[0]
    assert (lost.val_samples, first.val_samples) == (60, 360)
    assert row.final_accuracy == accuracy([first.final_primary], 360)


def test_a_row_has_the_traffic_of_the_first_run_that_has_it(tmp_path):
    runs = make_rows(results_figures(write_results(tmp_path, repeats=3)))[0].runs
    costs = runs[0].costs
    each = [None, replace(costs, traffic=None), replace(costs, traffic=Traffic(7))]
    made = [replace(run, costs=own) for run, own in zip(runs, each, strict=True)]
    assert make_rows(made)[0].traffic == Traffic(7)


def test_efficiency_is_above_one_where_its_interval_is_at_the_level_of_all_rows(tmp_path):
    """Ideal scaling with 1 % of noise, in 40 reports of six rows against baselines: half of the
    rows have a value above 1, and 2.5 % of reports one that is flagged."""
    runs = results_figures(write_results(tmp_path, repeats=3))
    noise = random.Random(1)
    flagged = 0
    for _ in range(40):
        drawn = [replace(run, throughput=run.workers * 1000 * noise.gauss(1, 0.01)) for run in runs]
        rows = make_rows(drawn)
        flagged += any(row.superlinear for row in rows)
    assert flagged <= 3
    assert sum(row.efficiency.value > 1 for row in rows) > 1
    fast = [replace(r, throughput=r.throughput * (1.2 if r.workers == 2 else 1)) for r in drawn]
    assert [row.superlinear for row in make_rows(fast)] == [row.workers == 2 for row in rows]


def test_an_efficiency_of_single_runs_is_not_shown_to_be_above_one(tmp_path, monkeypatch):
    monkeypatch.setitem(PACE, "horovod", 2000.0)
    rows = {row.name: row for row in rows_of(tmp_path, "ddp · native · 1 worker")}
    row = rows["horovod · native · 2 workers"]
    assert (row.efficiency.value > 1.5, row.superlinear) == (True, False)


def test_intervals_of_speed_ups_hold_for_all_rows_together(tmp_path):
    rows = rows_of(tmp_path, repeats=3)
    bases = {row.name: row for row in rows}
    for row in rows:
        base = bases[row.baseline]
        joint = ratio_of_means(row.throughput, base.throughput, 1 - 0.05 / 6)
        assert row.speed_up == joint
        assert row.efficiency.low == pytest.approx(joint.low * base.workers / row.workers)


def test_a_pair_of_rows_has_one_interval_in_all_columns(tmp_path):
    """The speed-up over another row with as many workers is the inverse of the ratio to the best;
    over a row with other workers, it is at the level of those pairs alone."""
    runs = results_figures(write_results(tmp_path, repeats=3))
    best = next(row for row in make_rows(runs) if row.is_best and row.workers == 2)
    of_two = {row.key: row for row in make_rows(runs, best.name) if row.workers == 2}
    assert len(of_two) == 6
    for row in of_two.values():
        assert row.speed_up == row.to_best == row.over(best)
        back = best.over(row)
        assert (back.low, back.high) == pytest.approx((1 / row.to_best.high, 1 / row.to_best.low))
    of_one = [row for row in make_rows(runs, best.name) if row.workers == 1]
    for row in of_one:
        assert row.speed_up == ratio_of_means(row.throughput, best.throughput, 1 - 0.05 / 6)


def test_of_a_variant_that_diverged_times_alone_count(tmp_path):
    end = RunFailed(run_id="", reason="diverged", message="not finite", step=7)
    rows = make_rows(results_figures(write_results(tmp_path, repeats=2, fails={0: end})))
    row = next(row for row in rows if row.diverged)
    assert row.throughput.n == 2
    assert (len(row.counted), len(row.timed), row.runs[0].diverged_at) == (1, 2, 7)
    assert row.runs[0].best_primary is None
    assert row.final_accuracy is row.best_accuracy is row.time_to_accuracy is None
    assert row.status == "1 of 2 failed, diverged"


def test_a_row_of_the_baselines_name_on_another_device_is_measured_against_it(tmp_path):
    spec = WITH_SINGLE.replace("{device: cpu}", "{device: auto}")
    runs = results_figures(write_results(tmp_path, repeats=2, spec=spec))
    again = [
        replace(run, plan={**run.plan, "device": "gpu"}, throughput=2 * run.throughput)
        for run in runs
    ]
    rows = make_rows([*runs, *again])
    first, *_, last = [row for row in rows if row.name == rows[0].name]
    assert (first.is_baseline, last.is_baseline) == (True, False)
    assert last.speed_up.value == pytest.approx(2.0)
    assert last.speed_up.low < 2.0


def test_epochs_to_the_target_stand_beside_the_time(tmp_path):
    row = rows_of(tmp_path, repeats=2)[0]
    for run in row.runs:
        met = run.epochs[run.epochs_to_accuracy - 1]
        assert met.elapsed_seconds == run.time_to_accuracy
    assert row.epochs_to_accuracy.n == 2


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (3, 2), (5, 4), (7, 8), (100, 8)])
def test_a_baseline_of_so_many_workers_is_the_nearest_of_the_series(tmp_path, asked, taken):
    """Of two as near, the smaller one; efficiency is per worker of the baseline."""
    spec = BY_TRIAL.replace("BATCH", "global_batch: 64")
    spec = spec.replace("[1, 2, 4]", "[8, 2, 4, 1], loader: [native, dali]")
    rows = rows_of(tmp_path, f"workers={asked}", spec=spec)
    for row in rows:
        (base,) = [each for each in rows if (each.series, each.workers) == (row.series, taken)]
        assert row.baseline == base.name
        assert row.is_baseline == (row is base)
        speed_up = row.throughput.mean / base.throughput.mean
        assert row.speed_up.value == pytest.approx(speed_up)
        assert row.efficiency.value == pytest.approx(speed_up * taken / row.workers)


def test_the_worst_verdict_of_the_gate_counts(tmp_path):
    runs = results_figures(write_results(tmp_path, repeats=2))
    row = make_rows(runs)[0]
    for worse, better in (("failed", "passed"), ("passed", "not needed"), ("not needed", "x")):
        pair = [
            replace(run, gate=gate) for run, gate in zip(row.runs, (better, worse), strict=True)
        ]
        assert replace(row, runs=tuple(pair)).gate == worse
    assert (row.scaling, row.target_met) == ("strong", 2)
    weak = BY_TRIAL.replace("BATCH", "batch_per_worker: 32")
    assert {each.scaling for each in rows_of(tmp_path / "weak", spec=weak)} == {"weak"}


def test_the_status_names_each_kind_of_end(tmp_path):
    run = rows_of(tmp_path)[0].runs[0]

    def status(*ends):
        row = make_rows([replace(run, status=end) for end in ends])[0]
        return row.status

    assert status("finished") == "finished"
    assert status("pruned") == "stopped early"
    assert status("finished", "stopped", "failed", "failed") == "2 of 4 failed, 1 of 4 stopped"


def test_compiling_breaks_even_by_rounds_that_have_both(tmp_path):
    """Seconds of compiling over those saved in a step of 64 images; a round without its other half
    does not count."""
    bare, compiled, *_ = rows_of(tmp_path, spec=FOUR_KINDS, repeats=3)
    runs = results_figures(write_results(tmp_path / "again", spec=FOUR_KINDS, repeats=3))
    speeds = {"bare": [100.0, 128.0, 64.0], "compiled": [200.0, 256.0, None]}
    seen = {"bare": 0, "compiled": 0}
    changed = []
    for run in runs:
        kind = "compiled" if run.variant == compiled.name else "bare"
        if run.plan["spec"]["strategy"]["name"] == "ddp":
            throughput = speeds[kind][seen[kind]]
            seen[kind] += 1
            run = replace(run, throughput=throughput, compile_seconds=run.compile_seconds and 10.0)
        changed.append(run)
    row = next(row for row in make_rows(changed) if row.name == compiled.name)
    # steps of 0.64 and 0.5 s become 0.32 and 0.25 s
    assert row.break_even.value == pytest.approx(20 / (0.32 + 0.25))
    task = CLASSIFICATION.model_copy(update={"unit": "tokens"}).model_dump(mode="json")
    tokens = [  # eight in each sample: steps take eight times as long
        replace(
            run,
            plan={**run.plan, "task": task},
            epochs=[each.model_copy(update={"images": 8 * each.images}) for each in run.epochs],
        )
        for run in changed
    ]
    row = next(row for row in make_rows(tokens) if row.name == compiled.name)
    assert row.break_even.value == pytest.approx(20 / (0.32 + 0.25) / 8)
    for lacking in (bare.name, compiled.name):
        left = [replace(r, throughput=None) if r.variant == lacking else r for r in changed]
        row = next(row for row in make_rows(left) if row.name == compiled.name)
        assert (row.beside, row.relative, row.break_even) == (bare.name, None, None)


def test_the_ratio_to_the_best_is_of_the_same_work_on_as_many_workers(tmp_path):
    """All pairs of a group hold together, and groups at Bonferroni's level."""
    runs = results_figures(write_results(tmp_path, repeats=3))
    rows = make_rows(runs)
    of_one = make_rows([run for run in runs if run.workers == 1])
    for workers, made, groups in ((1, rows, 2), (2, rows, 2), (1, of_one, 1)):
        group = [row for row in made if row.workers == workers]
        logs, reaches = compared([row.throughput for row in group], 1 - 0.05 / groups)
        best = max(group, key=lambda row: row.throughput.mean)
        assert [row.name for row in group if row.is_best] == [best.name]
        of_best = group.index(best)
        for row, log, reach in zip(group, logs[:, of_best], reaches[:, of_best], strict=True):
            assert row.to_best.value == pytest.approx(row.throughput.mean / best.throughput.mean)
            ends = math.exp(log - reach), math.exp(log + reach)
            ends = (1.0, 1.0) if row.is_best else ends
            assert (row.to_best.low, row.to_best.high) == pytest.approx(ends)
    single = make_rows([run for run in runs if run.plan["repeat"] == 0])
    assert all(row.to_best.low == (1.0 if row.is_best else None) for row in single)
    alone = make_rows([run for run in runs if run.variant == rows[0].name])
    assert [row.to_best for row in alone] == [None]


def test_no_efficiency_against_another_row_with_as_many_workers(tmp_path):
    rows = make_rows(results_figures(write_results(tmp_path, repeats=3)), "ddp · native")
    assert all(row.speed_up for row in rows)
    assert [row.efficiency is None for row in rows] == [
        row.workers == base.workers and not row.is_baseline
        for row in rows
        for base in rows
        if base.name == row.baseline
    ]


def test_intervals_are_no_wider_for_rows_that_have_none(tmp_path):
    """Bonferroni's level counts what an interval is given for: groups, and rows against their
    baselines, with repeats."""
    runs = results_figures(write_results(tmp_path, repeats=3))
    several = [run for run in runs if run.workers == 1]
    once = [run for run in runs if run.workers == 2 and run.plan["repeat"] == 0]
    alone, mixed, whole = (
        {row.key: row for row in make_rows(each)} for each in (several, several + once, runs)
    )
    of_once = [row for row in mixed.values() if row.workers == 2]
    assert [row.to_best.low is None for row in of_once] == [not row.is_best for row in of_once]
    for key, row in alone.items():
        assert mixed[key].to_best == row.to_best
        assert row.is_best or whole[key].to_best.low < row.to_best.low
    of_ddp = [run for run in runs if run.plan["spec"]["strategy"]["name"] == "ddp"]
    others = [run for run in runs if run not in of_ddp and run.plan["repeat"] == 0]
    alone, mixed = ({row.key: row for row in make_rows(each)} for each in (of_ddp, of_ddp + others))
    joint = [row.key for row in alone.values() if not row.is_baseline]
    assert len(joint) == 2
    [base, one] = make_rows(
        [run for run in of_ddp if run.plan["spec"]["loader"]["name"] == "native"]
    )
    assert one.speed_up == ratio_of_means(one.throughput, base.throughput)
    for key in joint:
        assert mixed[key].speed_up == alone[key].speed_up
        assert mixed[key].speed_up.low > whole[key].speed_up.low


def of_script(folder, samples, parameters=(7, 7, 7), command="a/train.py"):
    """The rows of a training script on 1, 2 and 4 workers, with so many samples of a step."""
    spec = BY_TRIAL.replace("BATCH", "global_batch: 64") + "repeats: 2\n"
    measured = dict(zip((1, 2, 4), zip(samples, parameters, strict=True), strict=True))
    runs = []
    for run in results_figures(write_results(folder, spec)):
        per_step, trained = measured[run.workers]
        script = ScriptMeasured(
            run_id=run.run_id,
            steps=10,
            left_out=0,
            samples_per_step=per_step,
            steps_per_second=1.0,
            parameters=trained,
            hosts=["here"],
            start_seconds={},
        )
        plan = {**run.plan, "spec": {**run.plan["spec"], "script": {"command": [command]}}}
        runs.append(replace(run, plan=plan, script=script))
    return make_rows(runs)


@pytest.mark.parametrize(
    ("samples", "scaling"),
    [((32, 32, 32), "strong"), ((32, 64, 128), "weak"), ((32, 64, 64), "own")],
)
def test_a_script_scales_as_its_steps_were_measured(tmp_path, samples, scaling):
    rows = of_script(tmp_path, samples)
    assert [row.scaling for row in rows] == [scaling] * 3
    assert [row.global_batch for row in rows] == list(samples)
    assert [row.name for row in rows] == [
        f"train.py · {n}" for n in ("1 worker", "2 workers", "4 workers")
    ]
    assert [row.speed_up.value > 1 for row in rows] == [False, True, True]


def test_a_scripts_scaling_is_that_of_the_measured_rows_of_its_series(tmp_path):
    samples = {"a.py": (32, 32, 32), "b.py": (32, 64, 128)}
    strong, weak = (of_script(tmp_path / name, of, command=name) for name, of in samples.items())
    lost = [replace(run, script=None, throughput=None) for run in strong[2].runs]
    runs = [run for row in (*strong[:2], *weak) for run in row.runs]
    found = [row.scaling for row in make_rows([*runs, *lost])]
    assert found == ["strong"] * 2 + ["weak"] * 3 + ["strong"]


def test_the_samples_of_a_scripts_step_are_rounded_or_not_known(tmp_path):
    rows = of_script(tmp_path, (31.6, None, 64.0))
    assert [row.global_batch for row in rows] == [32, 0, 64]
    assert {row.scaling for row in rows} == {"unknown"}
    bare = make_rows([replace(run, script=None) for row in rows for run in row.runs])
    assert [row.global_batch for row in bare] == [0, 0, 0]


def test_a_script_that_trains_other_parameters_has_no_speed_up(tmp_path):
    one, two, four = of_script(tmp_path, (32, 32, 32), parameters=(7, 8, None))
    assert [each.differs_in_work for each in (one, two, four)] == [False, True, False]
    assert (two.baseline, two.speed_up, two.efficiency) == (one.name, None, None)
    assert (one.speed_up.value, four.speed_up.value > 1) == (1.0, True)


def test_values_of_other_types_have_names_of_their_own() -> None:
    values = [1, "1", 1.5, "1.5", "1e5", True, "True", None, "None", "1f1b", "16-bit", "none"]
    names = ["1", '"1"', "1.5", '"1.5"', '"1e5"', "True", '"True"', "None", '"None"']
    assert [block_name(value) for value in values] == [*names, "1f1b", "16-bit", "none"]
    assert block_name({"name": "own", "depth": "2"}) == 'own(depth="2")'
    assert block_name({"name": "own"}) == "own"
