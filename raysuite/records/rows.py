"""Combine the repeats of each variant into a row, and compare it with its baseline."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from raysuite.errors import UserError
from raysuite.records.derive import STATUS_WORDS, RunFigures
from raysuite.records.metrics import BY_NAME, Metric, metrics_of
from raysuite.records.names import (
    block_name,
    key_name,
    loader_name,
    script_name,
    series_key,
    series_name,
    strategy_name,
    task_of,
    unnamed_differences,
    variant_key,
    variant_name,
    work_key,
    work_name,
)
from raysuite.records.statistics import (
    LEVEL,
    Ratio,
    Stat,
    compared,
    fieller,
    ratio_of_logs,
    ratio_of_means,
    summarize,
)
from raysuite.spec.strategies import STRATEGY_OPTIONS, Traffic
from raysuite.spec.tasks import TaskFacts


@dataclass(frozen=True)
class Row:
    """One variant: the mean over its repeats, and its ratios to its baseline.

    Figures come from the finished runs whose times may be reported (`RunFigures.may_tell_speed`).
    If a repeat failed the gate, the row has no figures. A figure is None if no run has it. If a
    repeat diverged, its times and throughput count, but the row has no accuracies. Units are
    seconds, bytes, and images per second (or another unit of the task); accuracies are in [0, 1].
    """

    name: str
    series: str
    """The row's name without the number of workers."""
    strategy: str
    loader: str
    work: str
    """Names of model and data; throughputs are comparable within one `work_key`."""
    workers: int
    device: str
    global_batch: int
    runs: tuple[RunFigures, ...]
    figures: Mapping[str, Stat | None]
    """Name of a metric -> its mean over the repeats. Each is also an attribute of the row."""
    traffic: Traffic | None = None
    """Bytes of a step's collectives, computed, not measured; equal for all repeats."""
    unnamed: Mapping[str, Any] = field(default_factory=dict)
    """Key -> this row's value, for keys in which several specs of one folder differ."""
    baseline: str | None = None
    """Name of the row to which speed-up and efficiency are relative."""
    is_baseline: bool = False
    """Whether the row is its own baseline."""
    speed_up: Ratio | None = None
    """S = throughput / throughput of the baseline."""
    efficiency: Ratio | None = None
    """E = S * workers of the baseline / workers. None if the baseline is another row with the same
    number of workers."""
    to_best: Ratio | None = None
    """Throughput / the highest mean throughput of the rows with the same `work_key` and number of
    workers; None if this is the only such row."""
    is_best: bool = False
    """Whether the row has the highest mean throughput of several rows with the same `work_key` and
    number of workers."""
    beside: str | None = None
    """Name of an otherwise equal row without torch.compile, or without the strategy's wrapper."""
    relative: Ratio | None = None
    """Throughput / throughput of the row `beside`."""
    own_scaling: str = ""
    """For a script, the value of `scaling`; else empty."""
    differs_in_work: bool = False
    """Whether a row of a script trains a different number of parameters than its baseline; if so,
    no speed-up is given."""
    break_even: Ratio | None = None
    """Number of steps after which the time that torch.compile has saved equals the time that it
    took; None if steps are not shorter."""
    ratios: Ratios | None = field(default=None, compare=False, repr=False)
    """Computes the ratios of throughputs in the fields above."""

    def __getattr__(self, name: str) -> Stat | None:
        """The value of a metric, by name."""
        if name in BY_NAME:
            return self.figures.get(name)  # None for a metric of another task
        raise AttributeError(f"a Row has no {name!r}")

    def over(self, base: Row) -> Ratio | None:
        """Throughput of this row / throughput of another row of the same report."""
        return self.ratios(self, base) if self.ratios else None

    @property
    def counted(self) -> tuple[RunFigures, ...]:
        """The runs whose figures count; none if a repeat failed the gate."""
        return tuple(run for run in self.timed if run.status == "finished")

    @property
    def timed(self) -> tuple[RunFigures, ...]:
        """The runs whose times count: the runs in `counted`, and diverged runs."""
        return _timed(self.runs)

    @property
    def diverged(self) -> bool:
        """Whether one of the runs in `timed` diverged."""
        return any(run.diverged_at is not None for run in self.timed)

    @property
    def task(self) -> TaskFacts:
        return self.runs[0].task

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return metrics_of(self.task)

    @property
    def final(self) -> Stat | None:
        """The task's primary metric after the last epoch."""
        return self.figures[f"final_{self.task.primary}"]

    @cached_property
    def key(self) -> str:
        """Key of the variant. The name is not unique: variants on CPUs and on GPUs may share it."""
        return variant_key(self.runs[0].plan)

    @cached_property
    def work_key(self) -> str:
        """A key that is equal for rows whose throughputs are comparable."""
        key = work_key(self.runs[0].plan)
        return key + json.dumps(self.unnamed, sort_keys=True) if self.unnamed else key

    @cached_property
    def series_key(self) -> str:
        """A key that is equal for rows that differ only in the number of workers, and in the value
        that a batch search found."""
        found = {run.batch.key if run.batch else None for run in self.runs}
        # if not all repeats were searched, the row is grouped with rows whose specs give the size
        return series_key(self.runs[0].plan, found.pop() if len(found) == 1 else None)

    @property
    def scaling(self) -> str:
        """`strong` if the global batch is fixed, `weak` if the batch per worker is fixed. A
        script's scaling is measured, and can also be `own` (neither is fixed) or `unknown`."""
        if script_name(self.runs[0].plan):
            return self.own_scaling
        fixed = self.runs[0].plan["spec"]["training"].get("global_batch")
        return "weak" if fixed is None else "strong"

    @property
    def superlinear(self) -> bool:
        """Whether the efficiency is significantly above 1; the baseline should then be checked."""
        found = self.efficiency
        return found is not None and found.low is not None and found.low > 1

    @property
    def status(self) -> str:
        """`finished`, or how many of the runs failed, ended early or are missing."""
        total = len(self.runs)
        parts = [
            f"{count} of {total} {STATUS_WORDS[status]}" if total > 1 else STATUS_WORDS[status]
            for status in ("failed", "pruned", "stopped", "missing")
            if (count := sum(run.status == status for run in self.runs))
        ]
        if self.diverged:
            parts.append("diverged")
        return ", ".join(parts) or "finished"

    @property
    def gate(self) -> str:
        """The first of these gate results that a repeat has: failed, passed, not needed, not asked,
        not decidable, not checked."""
        found = {run.gate for run in self.runs}
        order = ("failed", "passed", "not needed", "not asked", "not decidable", "not checked")
        return next(gate for gate in order if gate in found)

    @property
    def target_met(self) -> int:
        """Number of counted repeats that met the target."""
        return sum(run.time_to_accuracy is not None for run in self.counted)


def make_rows(runs: Sequence[RunFigures], baseline: str | None = None) -> list[Row]:
    """Rows in the order of execution, each relative to its baseline.

    Without `baseline`, a row's baseline is the row with the fewest workers that is equal in all
    other options. With `workers=4`, a row's baseline is the row of the same series whose number of
    workers is nearest to 4. Any other `baseline` is a row's name, or a part of a name such as
    `single`. Of the rows with this name and the same `work_key`, a row's baseline is then the row
    whose spec agrees in the most blocks. A tie is decided by an equal loader, then by an equal
    strategy, then by fewer workers.

    Raises UserError, with the valid names, if nothing matches `baseline`, and if `workers=4` makes
    each row its own baseline.
    """
    groups: dict[str, list[RunFigures]] = {}
    for run in runs:
        groups.setdefault(variant_key(run.plan), []).append(run)
    rows = _with_what_differs([_row(group) for group in groups.values()])
    number = re.fullmatch(r"workers=(\d+)", baseline or "")
    if baseline and not number:
        pairs = _named_baselines(rows, baseline)
    else:
        pairs = _own_baselines(rows, int(number[1]) if number else 1)
    alone = rows and all(row is base for row, base in zip(rows, pairs, strict=True))
    if number and alone:
        raise UserError(
            f"--baseline {baseline}: no series has several numbers of workers, so each row would "
            "be its own baseline; leave --baseline out, or give a row's name, or a part of it"
        )
    ratios = Ratios(rows, pairs)
    rows = [
        _against(replace(row, ratios=ratios), base) for row, base in zip(rows, pairs, strict=True)
    ]
    rows = [replace(row, own_scaling=_scaling(row, rows)) for row in rows]
    keys = {row.key: row for row in rows}
    bests = {
        row.key: max(group, key=lambda each: each.throughput.mean if each.throughput else 0.0)
        for group in same_work(rows).values()
        if len(group) > 1
        for row in group
    }
    return [_beside(_against_the_best(row, bests.get(row.key)), keys) for row in rows]


def same_work(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows that have a throughput, by `work_key` and number of workers."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.throughput is not None:
            groups.setdefault((row.work_key, row.workers), []).append(row)
    return groups


class Ratios:
    """Ratios of throughputs. The interval of a ratio is the same in every table, plot and sentence.

    The intervals of all ratios between rows with the same `work_key` and number of workers have a
    simultaneous level of 95 %, so that the best row may be picked afterwards. The intervals of the
    ratios to all other baselines are a second family with this simultaneous level.
    """

    def __init__(self, rows: Sequence[Row], pairs: Sequence[Row | None]):
        groups = [[row for row in group if _repeated(row)] for group in same_work(rows).values()]
        groups = [group for group in groups if len(group) > 1]
        level = _each_of(len(groups))
        self._places: dict[str, tuple[int, int]] = {}
        self._found = []
        for number, group in enumerate(groups):
            self._places |= {row.key: (number, place) for place, row in enumerate(group)}
            self._found.append(compared([row.throughput for row in group if row.throughput], level))
        self._level = _each_of(
            sum(
                base is not None and _repeated(row, base) and not self._same_work(row, base)
                for row, base in zip(rows, pairs, strict=True)
            )
        )

    def _same_work(self, row: Row, base: Row) -> bool:
        return (row.work_key, row.workers) == (base.work_key, base.workers)

    def __call__(self, row: Row, base: Row) -> Ratio | None:
        """Throughput of `row` / that of `base`; None if one of them has no throughput."""
        if row.throughput is None or base.throughput is None:
            return None
        if row.key == base.key or not self._same_work(row, base) or not _repeated(row, base):
            below = row.throughput if row.key == base.key else base.throughput
            return ratio_of_means(row.throughput, below, self._level)
        (number, above), (_, under) = self._places[row.key], self._places[base.key]
        log, reach = (float(each[above, under]) for each in self._found[number])
        return ratio_of_logs(math.exp(log), reach)


def _each_of(families: int) -> float:
    """The confidence level that each of `families` statements needs, so that all together hold at
    95 % (Bonferroni)."""
    return 1 - (1 - LEVEL) / max(1, families)


def _against_the_best(row: Row, best: Row | None) -> Row:
    if best is None:
        return row
    return replace(row, to_best=row.over(best), is_best=row.key == best.key)


def _with_what_differs(rows: Sequence[Row]) -> list[Row]:
    """If the rows were planned from different specs, as in a folder that several commands wrote,
    add to each row's name its values of the keys in which these specs differ."""
    if any(script_name(row.runs[0].plan) for row in rows):
        return list(rows)
    found = {run.batch.key for row in rows for run in row.runs if run.batch}
    differing = unnamed_differences([row.runs[0].plan for row in rows], found)
    named = []
    for row, unnamed in zip(rows, differing, strict=True):
        extra = "".join(f" · {key_name(k)}={block_name(v)}" for k, v in unnamed.items())
        name, series = row.name + extra, row.series + extra
        named.append(replace(row, name=name, series=series, unnamed=unnamed))
    return named


def _timed(runs: Sequence[RunFigures]) -> tuple[RunFigures, ...]:
    if any(run.gate == "failed" for run in runs):
        return ()
    return tuple(
        run
        for run in runs
        if run.may_tell_speed and (run.status == "finished" or run.diverged_at is not None)
    )


def _row(runs: Sequence[RunFigures]) -> Row:
    plan = runs[0].plan
    timed = _timed(runs)
    # a mean accuracy of only the repeats that did not diverge would be biased
    learnt = () if any(run.diverged_at is not None for run in timed) else timed

    rounds = [
        ((run.plan["repeat"], run.plan["seed"]), run.started.time if run.started else math.nan)
        for run in timed
    ]
    samples = min(run.val_samples for run in learnt or runs)
    metrics = metrics_of(task_of(plan))
    return Row(
        name=variant_name(plan),
        series=series_name(plan),
        strategy=strategy_name(plan),
        loader=loader_name(plan),
        work=work_name(plan),
        workers=int(plan["workers"]),
        device=str(plan["device"]),
        global_batch=_global_batch(runs),
        runs=tuple(runs),
        figures={metric.name: metric.reduce(timed, learnt, samples, rounds) for metric in metrics},
        traffic=next((run.costs.traffic for run in timed if run.costs and run.costs.traffic), None),
    )


def _global_batch(runs: Sequence[RunFigures]) -> int:
    """Number of samples in an optimiser step; for a script, the measured number, or 0 if it is
    unknown."""
    if not script_name(runs[0].plan):
        return int(runs[0].plan["global_batch"])
    measured = [run.script.samples_per_step for run in runs if run.script]
    return round(measured[0] or 0) if measured else 0


def _scaling(row: Row, rows: Sequence[Row]) -> str:
    """Scaling of a script's series: `strong` if all global batch sizes are equal, `weak` if all
    batch sizes per worker are equal, else `own`; `unknown` if the samples per step are unknown."""
    if not script_name(row.runs[0].plan):
        return ""
    series = [each for each in rows if each.series_key == row.series_key and each.throughput]
    if not all(each.global_batch for each in series):
        return "unknown"
    if len({each.global_batch for each in series}) == 1:
        return "strong"
    return "weak" if len({each.global_batch / each.workers for each in series}) == 1 else "own"


def _unequal_work(row: Row, base: Row) -> bool:
    """Whether two rows of a script train different numbers of parameters."""
    counts = [{run.script.parameters for run in each.runs if run.script} for each in (row, base)]
    return None not in counts[0] | counts[1] and len(counts[0] | counts[1]) > 1


def _own_baselines(rows: Sequence[Row], workers: int = 1) -> list[Row | None]:
    """For each row, the row of its series whose number of workers is nearest to `workers` (the
    smaller of two equally near), whether or not it has a throughput.

    A baseline that failed is not replaced by another row: the series then has no ratios.
    """
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(row.series_key, []).append(row)
    nearest: dict[str, Row | None] = {
        key: min(group, key=lambda row: (abs(row.workers - workers), row.workers))
        for key, group in series.items()
    }
    return [nearest[row.series_key] for row in rows]


def _named_baselines(rows: Sequence[Row], name: str) -> list[Row | None]:
    matches = [row for row in rows if row.name == name] or [
        row for row in rows if name.lower() in row.name.lower()
    ]
    if not matches:
        valid = "\n".join(f"  {row.name}" for row in rows)
        raise UserError(f"no row is called {name!r}; give one of these, or a part of it:\n{valid}")
    return [_nearest(row, matches) for row in rows]


def _nearest(row: Row, matches: Sequence[Row]) -> Row | None:
    same_work = [match for match in matches if match.work_key == row.work_key]

    def likeness(match: Row) -> tuple[int, bool, bool, int]:
        left, right = row.runs[0].plan["spec"], match.runs[0].plan["spec"]
        options = sum(left[key] == right[key] for key in left if key not in ("name", "seed"))
        return (options, row.loader == match.loader, row.strategy == match.strategy, -match.workers)

    # a row of another model or other images cannot be a baseline
    return max(same_work, key=likeness, default=None)


def _repeated(*rows: Row) -> bool:
    return all(row.throughput is not None and row.throughput.n > 1 for row in rows)


def _against(row: Row, base: Row | None) -> Row:
    if base is None:
        return row
    row = replace(row, baseline=base.name, is_baseline=row.key == base.key)
    if row.throughput is None or base.throughput is None:
        return row
    if _unequal_work(row, base):
        return replace(row, differs_in_work=True)
    speed_up = row.over(base)
    scales = row.is_baseline or row.workers != base.workers
    efficiency = speed_up.scaled(base.workers / row.workers) if speed_up and scales else None
    return replace(row, speed_up=speed_up, efficiency=efficiency)


def _beside(row: Row, rows: Mapping[str, Row]) -> Row:
    """Add to `row` its ratios to the row that differs only in torch.compile or the strategy's
    wrapper."""
    plan = row.runs[0].plan
    spec, strategy = dict(plan["spec"]), plan["spec"]["strategy"]
    compiled = spec["training"].get("compile", "off") != "off"
    if compiled:
        # plans omit the key if it is off
        spec["training"] = {k: v for k, v in spec["training"].items() if k != "compile"}
    elif wrapped := STRATEGY_OPTIONS[strategy["name"]].wraps:
        bare = STRATEGY_OPTIONS[wrapped]
        shared = {key: strategy[key] for key in bare.model_fields if key in strategy}
        spec["strategy"] = bare(**{**shared, "name": wrapped}).model_dump(mode="json")
    plain = rows.get(variant_key({**plan, "spec": spec}))
    if plain is None or plain.key == row.key:
        return row
    row = replace(row, beside=plain.name)
    if row.throughput is None or plain.throughput is None:
        return row
    return replace(
        row, relative=row.over(plain), break_even=_break_even(row, plain) if compiled else None
    )


def _break_even(row: Row, plain: Row) -> Ratio | None:
    """Compile seconds / seconds saved in each step, over the rounds that both rows have."""
    seconds, saved = [], []
    others = {(run.plan["repeat"], run.plan["seed"]): run.throughput for run in plain.timed}
    for run in row.timed:
        other = others.get((run.plan["repeat"], run.plan["seed"]))
        if run.throughput and other and run.compile_seconds:
            units = row.global_batch * run.epoch_units / int(run.plan["dataset"]["train_samples"])
            seconds.append(run.compile_seconds)
            saved.append(units / other - units / run.throughput)
    took, gained = summarize(seconds), summarize(saved)
    return fieller(took, gained) if took and gained else None
