"""Fit a calibration (the costs of one machine) to the journals of runs, and store it as YAML."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from raysuite import __version__
from raysuite.errors import UserError, some
from raysuite.files import write_whole
from raysuite.perf.costs import (
    Work,
    epoch_terms,
    joules_terms,
    loader_kind,
    memory_terms,
    strategy_kind,
    work_name,
)
from raysuite.records import EpochFinished, RunFigures, RunFinished
from raysuite.records.names import Plan, run_name, variant_key
from raysuite.records.predicted import Interval
from raysuite.records.statistics import t_quantile
from raysuite.spec.base import Strict
from raysuite.spec.strategies import STRATEGY_OPTIONS

LEVEL = 0.9
"""Confidence level of every prediction interval."""
_LEAST_RUNS = 4


class Errors(Strict):
    """Relative errors |predicted / measured - 1| over runs."""

    median: float
    p90: float
    largest: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> Errors:
        """Median, 90th percentile and largest error. Raises ValueError if there are no errors."""
        import numpy as np

        values = np.abs(np.fromiter(errors, float))
        return cls(
            median=round(float(np.median(values)), 4),
            p90=round(float(np.quantile(values, 0.9)), 4),
            largest=round(float(values.max()), 4),
        )


class Residual(Strict):
    """Measured and fitted value of one run of a calibration, in seconds, bytes or joules."""

    run: str
    measured: float
    fitted: float
    without_it: float | None
    """The run's prediction by a fit to the runs with other batch sizes; None if one of the run's
    terms occurs in none of those runs."""


class Model(Strict):
    """A sum of terms that is fitted to runs."""

    costs: dict[str, float]
    """Term -> its cost: seconds, bytes or joules per unit of the term's quantity."""
    spread: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Covariance of the costs that are not zero, divided by `sigma` squared."""
    sigma: float
    """Root mean square of the logarithm of predicted / measured, where each run is predicted by a
    fit to all other runs; 1 if no run can be predicted from the others."""
    freedom: int
    """Degrees of freedom: number of runs minus number of costs that are not zero; at least 1."""
    fit: Errors
    left_out: Errors | None
    """Errors of the predictions for runs whose batch size was left out of the fit; None if no run
    can be predicted from other batch sizes."""
    residuals: tuple[Residual, ...] = ()

    def parts(self, terms: Mapping[str, float]) -> dict[str, float]:
        """The value of each term, in seconds, bytes or joules; 0 for a term that the calibration
        lacks, for example because an older version wrote the file."""
        return {term: self.costs.get(term, 0.0) * amount for term, amount in terms.items()}

    def value(self, terms: Mapping[str, float]) -> float:
        """The sum of the terms."""
        return sum(self.parts(terms).values())

    def relative_half_width(self, terms: Mapping[str, float]) -> float:
        """Half-width of the prediction interval at LEVEL, on the log scale, from the spread of runs
        and the uncertainty of costs (Seber and Lee 2003, "Linear Regression Analysis", 5.3)."""
        value = self.value(terms)
        amounts = {term: terms.get(term, 0.0) / value for term in self.spread}
        lever = sum(
            amounts[a] * amounts[b] * each
            for a, row in self.spread.items()
            for b, each in row.items()
        )
        quantile = float(t_quantile((1 + LEVEL) / 2, self.freedom))
        return quantile * self.sigma * math.sqrt(1 + max(0.0, lever))


class Range(Strict):
    """The smallest and the largest measured value."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


class Simulated(Strict):
    """Measured steps of pipelines, compared with steps simulated from the costs of other runs."""

    runs: int
    factor: float
    """Geometric mean of measured / simulated."""
    sigma: float
    """Standard deviation of the logarithm of measured / simulated, over runs."""
    errors: Errors
    """Errors of the simulations before they are multiplied by `factor`."""

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Simulated | None:
        """Summarise the ratios measured / simulated; None if there are fewer than _LEAST_RUNS."""
        logs = [math.log(each) for each in ratios]
        if len(logs) < _LEAST_RUNS:
            return None
        return cls(
            runs=len(logs),
            factor=math.exp(statistics.mean(logs)),
            sigma=statistics.stdev(logs),
            errors=Errors.of(1 / each - 1 for each in ratios),
        )

    def interval(self, seconds: float) -> Interval:
        """Prediction interval of a pipeline whose simulated time is `seconds`."""
        width = float(t_quantile((1 + LEVEL) / 2, self.runs - 1)) * self.sigma
        reach = math.exp(width * math.sqrt(1 + 1 / self.runs))
        value = seconds * self.factor
        return Interval(value, value / reach, value * reach)


class Calibration(Strict):
    """Result of `raysuite calibrate` for one machine."""

    format: Literal[2] = 2
    raysuite: str = __version__
    machine: dict[str, Any]
    """Processor, devices, and fingerprint of the software, from the first run."""
    sources: tuple[str, ...]
    runs: int
    workers_per_node: int
    works: dict[str, Work]
    ranges: dict[str, dict[str, Range]]
    """Network or strategy -> quantity -> range of the measured values."""
    seconds: Model
    """The fitted model of the training time of an epoch, in seconds."""
    bytes: Model | None
    """The fitted model of a worker's largest peak memory, in bytes; None if too few runs measured
    the memory."""
    resident: float = 0.0
    """Bytes that a worker's process holds before a run, for example from earlier runs; median over
    runs. 0 if device memory was measured, and in a calibration of an older version."""
    joules: Model | None = None
    """The fitted model of the energy of an epoch, in joules: the sum over devices and hosts, or one
    of them if only this one was measured in every run; None if neither was."""
    start: Interval
    """Seconds of a run that are spent on neither training nor validation: median, 5th and 95th
    percentile."""
    repeats: Errors | None = None
    """Relative errors of runs from the mean over all repeats of the same variant; predictions
    cannot be expected to have smaller errors. None without repeats."""
    blocks: dict[str, tuple[tuple[float, float], ...]] = Field(default_factory=dict)
    """Network -> (forward, backward) seconds of each block, if a run with pipeline stages measured
    them."""
    operation: float = 0.0
    """Additional seconds of each pass of a micro-batch through a stage, compared with the stage's
    share of a pass through the whole network. One value for all schedules; 0 without pipelines."""
    operations: dict[str, float] = Field(default_factory=dict)
    """Schedule -> `operation` for that schedule, if the calibration has enough pipelines with it.
    Schedules differ: PipeDream updates weights after fewer micro-batches than GPipe, and copies
    weights that are still needed."""
    pipelines: Simulated | None = None
    """Errors of simulated steps of pipelines. None if the calibration has too few pipelines; it
    then predicts no pipelines."""

    @property
    def processors(self) -> int:
        """Number of processors of a node."""
        return int(self.machine.get("cpu", {}).get("logical_cores") or self.workers_per_node)

    @property
    def gpus(self) -> int:
        """Number of GPUs that plans may use: 2^21, in practice no limit, if the machine has GPUs;
        else 0."""
        return 2**21 if self.machine.get("gpus") else 0

    @property
    def works_with_one_batch(self) -> list[str]:
        """Networks whose runs all have the same micro-batch size. For these, the cost of a sample
        cannot be separated from the cost of a pass and of an update."""
        return [
            work
            for work in self.works
            if (each := self.ranges[work]["micro_batch"]).low == each.high
        ]

    def with_pipelines(
        self,
        runs: Iterable[RunFigures],
        simulated: Callable[[Plan, Calibration], float],
        most_other_cores: float = math.inf,
    ) -> Calibration:
        """Return this calibration with `operation`, `operations` and `pipelines`, fitted to the
        pipelines among `runs`.

        With the fitted cost of an operation, measured and simulated steps agree in the geometric
        mean. The cost is 0 if simulated steps are too long even without it. If the calibration
        lacks the cost of a byte, because no run had several workers, pipelines are not used.
        Pipelines over several nodes are not used either. `most_other_cores`: see `observed`.
        """
        from scipy.optimize import brentq

        known = any(term.startswith("byte/") for term in self.seconds.costs)
        schedules: dict[str, list[tuple[Plan, float]]] = {}
        for run in runs:
            if (
                known
                and run.status == "finished"
                and run.throughput is not None
                and run.plan["spec"]["strategy"].get("stages")
                and run.workers <= self.workers_per_node
                and work_name(run.plan) in self.works
                and f"load/{loader_kind(run.plan)}" in self.seconds.costs
                and (quiet := _quiet(run, most_other_cores))
            ):
                took = run.plan["global_batch"] * _pace(run, quiet)
                name = run.plan["spec"]["strategy"]["schedule"]
                schedules.setdefault(name, []).append((run.plan, took))
        every = [each for group in schedules.values() for each in group]

        def with_costs(operation: float, operations: Mapping[str, float]) -> Calibration:
            return self.model_copy(update={"operation": operation, "operations": operations})

        def cost(measured: Sequence[tuple[Plan, float]]) -> float:
            def excess(operation: float) -> float:
                found = with_costs(operation, {})
                return sum(math.log(took / simulated(plan, found)) for plan, took in measured)

            if not measured or excess(0.0) <= 0:
                return 0.0
            # an upper bound: with this cost of an operation, all simulated steps are too long
            longest = max(took for _, took in measured)
            return float(brentq(excess, 0.0, longest, rtol=1e-6))

        own = {key: cost(group) for key, group in schedules.items() if len(group) >= _LEAST_RUNS}
        found = with_costs(cost(every), own)
        ratios = [took / simulated(plan, found) for plan, took in every]
        return found.model_copy(update={"pipelines": Simulated.of(ratios)})

    def unseen(self, plan: Plan) -> list[str]:
        """Parts of a plan (network, loader, strategy) that no run of the calibration had. For a
        plan with pipeline stages, the list also has a text if the calibration has too few such
        runs. A plan can be predicted only if the list is empty."""
        known = {term.partition("/")[2] for term in self.seconds.costs}
        wanted = [work_name(plan), loader_kind(plan)]
        strategy = plan["spec"]["strategy"]
        if STRATEGY_OPTIONS[strategy["name"]].distributed and not strategy.get("stages"):
            wanted.append(strategy_kind(plan))
        missing = [each for each in wanted if each not in known]
        few = strategy.get("stages") and self.pipelines is None
        return [*missing, f"pipeline stages (or fewer than {_LEAST_RUNS})"] if few else missing

    def outside(self, plan: Plan) -> list[str]:
        """The quantities of a plan that are outside of the measured ranges."""
        return [
            f"{name} {value:g}, measured with {what}: {each}"
            for what, values in quantities(plan).items()
            for name, value in values.items()
            if (each := self.ranges.get(what, {}).get(name)) and not each.holds(value)
        ]

    def write(self, file: Path) -> None:
        """Write the calibration as YAML."""
        data = self.model_dump(mode="json")
        data["works"] = {name: vars(work) for name, work in self.works.items()}
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
        head = "# Written by `raysuite calibrate`; times in seconds, memory in bytes.\n"
        write_whole(file, f"{head}{text}".encode())

    @classmethod
    def read(cls, file: Path) -> Calibration:
        """Read a calibration. Raises UserError if the file is not a calibration."""
        try:
            data = yaml.load(file.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            return cls.model_validate(data)
        except (OSError, yaml.YAMLError, ValueError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
            if isinstance(error, ValidationError):
                wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
                why = some(wrong, 3)
            raise UserError(
                f"{file} is not a calibration: {why}; make one with `raysuite calibrate RESULTS`, "
                "and give the file that it wrote"
            ) from error


def quantities(plan: Plan) -> dict[str, dict[str, float]]:
    """Network or strategy -> quantity -> its value in this plan, for `Calibration.ranges`."""
    workers = int(plan["workers"])
    return {
        work_name(plan): {
            "workers": workers,
            "samples per worker and step": plan["global_batch"] / workers,
            "micro_batch": plan["micro_batch"],
        },
        strategy_kind(plan): {"workers": workers},
    }


@dataclass(frozen=True)
class Observed:
    """One measured run, ready to be fitted."""

    run: RunFigures
    work: Work
    quiet: tuple[EpochFinished, ...]
    """The epochs that are used for the fit."""

    @property
    def seconds(self) -> float:
        """Seconds of an epoch, if all its steps were as fast as its steady steps."""
        return _pace(self.run, self.quiet) * float(self.run.plan["dataset"]["train_samples"])

    @property
    def batch(self) -> str:
        """A key that is equal for runs with the same global batch size and number of micro-batches;
        cross-validation leaves these runs out together."""
        return str((self.run.plan["global_batch"], self.run.plan["accumulate"]))


def _quiet(run: RunFigures, most_other_cores: float) -> tuple[EpochFinished, ...]:
    """The epochs that have steps after the warm-up, and during which other programs kept at most
    `most_other_cores` cores busy."""
    return tuple(
        epoch
        for epoch in run.epochs
        if epoch.steady_images and max(epoch.other_cores, default=0.0) <= most_other_cores
    )


def _pace(run: RunFigures, epochs: Sequence[EpochFinished]) -> float:
    """Seconds per sample in steady steps."""
    each = run.epoch_units / int(run.plan["dataset"]["train_samples"])
    seconds = sum(epoch.steady_seconds for epoch in epochs)
    return each * seconds / sum(epoch.steady_images for epoch in epochs)


def observed(runs: Iterable[RunFigures], most_other_cores: float = math.inf) -> list[Observed]:
    """The runs to which a calibration is fitted: runs that finished, passed the gate check, have no
    pipeline stages, and in which the network's costs were counted. Epochs in which other programs
    kept more than `most_other_cores` cores busy are not used; a run in which no epoch remains is
    left out."""
    found = []
    for run in runs:
        counted = run.costs.counted if run.costs else None
        if (
            run.status != "finished"
            or run.throughput is None
            or run.plan["spec"]["strategy"].get("stages")
        ):
            continue
        if counted is None or counted.parameters is None:
            continue
        work = Work(
            counted.parameters,
            counted.gradient_bytes or 0,
            counted.forward_flops,
            counted.small_parameters,
        )
        if quiet := _quiet(run, most_other_cores):
            found.append(Observed(run, work, quiet))
    return found


def calibrate(
    runs: Sequence[RunFigures],
    sources: Sequence[str],
    workers_per_node: int | None = None,
    most_other_cores: float = math.inf,
) -> Calibration:
    """Fit costs to the runs that `observed` selects. Raises UserError if these runs are too few."""
    seen = observed(runs, most_other_cores)
    if len(seen) < _LEAST_RUNS:
        busy = len(observed(runs)) - len(seen)
        more = (
            f"; {busy} more ran while other programs kept more cores busy than --most-other-cores"
            if busy
            else ""
        )
        raise UserError(
            f"{len(seen)} of {len(runs)} runs can be used (finished, with a throughput and "
            f"counted costs, without pipeline stages){more}; at least {_LEAST_RUNS} are needed: "
            "run experiments/calibration.yaml, or a matrix of your own over batch sizes, "
            "strategies and numbers of workers"
        )
    most = max(run.workers for run in runs if run.status == "finished")
    beside = workers_per_node or most
    ranges: dict[str, dict[str, Range]] = {}
    for each in seen:
        for what, values in quantities(each.run.plan).items():
            own = ranges.setdefault(what, {})
            for key, value in values.items():
                before = own.get(key, Range(low=value, high=value))
                own[key] = Range(low=min(before.low, value), high=max(before.high, value))
    started = next((each.run.started for each in seen if each.run.started), None)
    finished = [each for each in seen if each.run.peak_process_bytes]
    rests = [
        end.seconds - sum(epoch.seconds + epoch.validation_seconds for epoch in each.run.epochs)
        for each in finished
        if each.run.attempts <= 1  # `end.seconds` covers only the last attempt
        and isinstance(end := each.run.end, RunFinished)
    ]
    rows, free = _separable([epoch_terms(each.run.plan, each.work, beside) for each in seen])
    model = _fit_runs(seen, rows, [each.seconds for each in seen])
    costs = {**model.costs, **free}
    works = {work_name(each.run.plan): each.work for each in seen}
    environment = started.environment if started else {}
    described = ("platform", "cpu", "memory_bytes", "gpus", "fingerprint")
    return Calibration(
        machine={name: environment[name] for name in described if name in environment},
        sources=tuple(sources),
        runs=len(seen),
        workers_per_node=beside,
        works=works,
        ranges=ranges,
        seconds=model.model_copy(update={"costs": costs | neighbours(costs, works, ranges)}),
        bytes=_fit_runs(
            finished,
            [memory_terms(e.run.plan, e.work, resident_before(e.run)) for e in finished],
            [memory_of(each.run) for each in finished],
        )
        if len(finished) >= _LEAST_RUNS
        else None,
        resident=statistics.median([resident_before(each.run) for each in finished] or [0.0]),
        joules=_fit_joules(seen, beside),
        start=_middle(rests),
        repeats=_repeats(seen),
        blocks={
            work_name(run.plan): tuple(run.stages.block_seconds)
            for run in runs
            if run.stages is not None and run.stages.block_seconds
        },
    )


def _fit_runs(
    seen: Sequence[Observed], rows: Sequence[Mapping[str, float]], measured: Sequence[float]
) -> Model:
    names = [run_name(each.run.plan) for each in seen]
    return fit(rows, measured, [each.batch for each in seen], names)


def _fit_joules(seen: Sequence[Observed], beside: int) -> Model | None:
    """Fit the sum of the energies (of devices, of hosts) that were measured in every run."""
    costs = [each.run.costs for each in seen]
    kinds = (
        [each.device_joules if each else None for each in costs],
        [each.host_joules if each else None for each in costs],
    )
    known = [[each for each in kind if each] for kind in kinds if all(kind)]
    if not known:
        return None
    images = [each.run.plan["dataset"]["train_samples"] for each in seen]
    whole = [n * sum(each) for n, each in zip(images, zip(*known, strict=True), strict=True)]
    rows = [joules_terms(each.run.plan, each.seconds, beside) for each in seen]
    return _fit_runs(seen, rows, whole)


def _middle(values: Sequence[float]) -> Interval:
    import numpy as np

    low, middle, high = np.quantile(values or [0.0], (0.05, 0.5, 0.95))
    return Interval(round(float(middle), 3), round(float(low), 3), round(float(high), 3))


def _separable(rows: Sequence[dict[str, float]]) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Remove the terms whose cost cannot be separated from the computation of an image: the
    loader's term if all rows have the same loader, and the epoch's term if all rows have the same
    number of images in an epoch. Return the other terms, and the cost 0 for each removed term."""
    loaders = {term for row in rows for term in row if term.startswith("load/")}
    gone = loaders if len(loaders) == 1 else set()
    images = {each for row in rows for term, each in row.items() if term.startswith("image/")}
    if len(images) == 1:
        gone |= {"epoch/all"}
    kept = [{term: each for term, each in row.items() if term not in gone} for row in rows]
    return kept, dict.fromkeys(sorted(gone), 0.0)


def neighbours(
    costs: Mapping[str, float], works: Iterable[str], ranges: Mapping[str, Mapping[str, Range]]
) -> dict[str, float]:
    """Term -> cost, for networks that were measured only on one worker: the cost that other workers
    on the same node add to an image (`neighbour`). It is estimated as the network's cost of an
    image, times the median of (cost of `neighbour`) / (cost of an image) over the networks that
    were measured on several workers."""
    shared = {work for work in works if ranges[work]["workers"].high > 1}
    shares = [
        costs[f"neighbour/{work}"] / costs[f"image/{work}"]
        for work in shared
        if f"neighbour/{work}" in costs and costs[f"image/{work}"] > 0
    ]
    if not shares:
        return {}
    share = statistics.median(shares)
    return {
        f"neighbour/{work}": share * costs[f"image/{work}"]
        for work in works
        if work not in shared and f"neighbour/{work}" in costs
    }


def memory_of(run: RunFigures) -> float:
    """Largest peak memory of a worker, in bytes: of its device, or on a CPU, of its process."""
    return float(run.peak_device_bytes or run.peak_process_bytes or 0)


def resident_before(run: RunFigures) -> float:
    """Bytes that the worker's process held before the run; 0 if device memory was measured instead,
    or if the process's memory is unknown."""
    if run.peak_device_bytes or run.peak_process_bytes is None or run.grown_process_bytes is None:
        return 0.0
    return float(run.peak_process_bytes - run.grown_process_bytes)


def _repeats(seen: Sequence[Observed]) -> Errors | None:
    groups: dict[str, list[float]] = {}
    for each in seen:
        groups.setdefault(variant_key(each.run.plan), []).append(each.seconds)
    apart = [
        value / (sum(group) / len(group)) - 1
        for group in groups.values()
        if len(group) > 1
        for value in group
    ]
    return Errors.of(apart) if apart else None


def fit(
    rows: Sequence[Mapping[str, float]],
    measured: Sequence[float],
    groups: Sequence[str],
    names: Sequence[str],
) -> Model:
    """Fit costs by non-negative least squares of relative errors.

    `rows` has the quantity of each term, for each run. Cross-validation leaves out all runs of one
    group at a time, and predicts each of them from the runs of the other groups if all of its terms
    occur there.
    """
    import numpy as np
    from scipy.optimize import nnls

    terms = sorted({term for row in rows for term in row})
    target = np.array(measured)
    amounts = np.array([[row.get(term, 0.0) for term in terms] for row in rows]) / target[:, None]
    scale = np.maximum(np.linalg.norm(amounts, axis=0), 1e-300)

    def solved(which: Any) -> Any:
        found, _ = nnls(amounts[which] / scale, np.ones(int(which.sum())), maxiter=100 * len(terms))
        return found / scale

    every = np.ones(len(rows), bool)
    costs = solved(every)
    fitted = amounts @ costs

    def predicted(labels: Sequence[Any]) -> Any:
        """Each run's prediction by a fit to the runs with other labels; NaN if one of the run's
        terms occurs in none of those runs."""
        found = np.full(len(rows), math.nan)
        for label in set(labels):
            inside = np.array([each == label for each in labels])
            lacking = ~amounts[~inside].any(axis=0)
            able = inside & ~amounts[:, lacking].any(axis=1)
            if able.any():
                found[able] = amounts[able] @ solved(~inside)
        return found

    without, alone = predicted(groups), predicted(range(len(rows)))
    logs = np.log(np.maximum(alone[~np.isnan(alone)], 1e-9))
    active = costs > 0
    freedom = max(1, len(rows) - int(active.sum()))
    chosen = amounts[:, active] / scale[active]
    inverse = np.linalg.pinv(chosen.T @ chosen) / np.outer(scale[active], scale[active])
    used = [term for term, on in zip(terms, active, strict=True) if on]
    return Model(
        costs={term: float(cost) for term, cost in zip(terms, costs, strict=True)},
        spread={
            a: {b: float(inverse[i, j]) for j, b in enumerate(used)} for i, a in enumerate(used)
        },
        sigma=float(np.sqrt(np.mean(logs**2))) if logs.size else 1.0,
        freedom=freedom,
        fit=Errors.of(fitted - 1),
        left_out=Errors.of(known - 1) if (known := without[~np.isnan(without)]).size else None,
        residuals=tuple(
            Residual(
                run=name,
                measured=float(f"{value:.6g}"),
                fitted=float(f"{value * own:.6g}"),
                without_it=None if math.isnan(apart) else float(f"{value * apart:.6g}"),
            )
            for name, value, own, apart in zip(names, measured, fitted, without, strict=True)
        ),
    )
