"""Compare a study with another study or with a paper's published values, or a sweep with another
sweep. The comparison consists of lines, which become tables."""

from __future__ import annotations

import csv
import difflib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from pydantic.dataclasses import dataclass as pydantic_dataclass

from raysuite.errors import UserError
from raysuite.records import Ratio, Results, Row, Stat, make_rows, ratio_of_means, results_figures
from raysuite.records.metrics import Unit, metrics_of
from raysuite.records.names import current_spec, dotted, work_key
from raysuite.records.run_costs import PROJECTED_EPOCHS
from raysuite.records.sweep import best
from raysuite.report import text
from raysuite.report.sweep.study import Study, study, trial_name
from raysuite.report.sweep.sweep_summary import accuracy_interval
from raysuite.report.tables import Sheet, sheet_from
from raysuite.spec.search import QUALITY, TIMES, Goal
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts

Basis = Literal["both", "ours", "none"]
"""The studies whose spread is part of a ratio's interval: both, only this study, or none."""
Side = Literal["ours", "theirs"]


@dataclass(frozen=True)
class Quantity:
    title: str
    unit: Unit
    write: text.Writer | None = None
    """Formats a value. If None, a table uses one multiple of the unit for all values."""


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


_QUANTITIES = {
    "throughput_over_native": Quantity("Throughput over native", "", "{:.2f}".format),
    "speed_up": Quantity("Speed-up", "", _short),
    "efficiency": Quantity("Efficiency", "", "{:.2f}".format),
    "training_s": Quantity("Training, 90 epochs", "s"),
    "data_loading_s": Quantity("Data loading", "s"),
    "worker_seconds": Quantity("Worker-seconds", "s", text.number),
    "epochs_trained": Quantity("Epochs trained", "", "{:,.0f}".format),
    "trials": Quantity("Trials", "", "{:,.0f}".format),
    "trials_stopped_early": Quantity("Trials stopped early", "", "{:,.0f}".format),
}
"""The quantities that can be compared for every task."""


@cache
def quantities(task: TaskFacts = CLASSIFICATION) -> dict[str, Quantity]:
    """The quantities to compare for runs of a task, by name."""
    metrics = metrics_of(task)
    best = next(metric for metric in metrics if metric.name == f"best_{task.primary}")
    own = {
        metric.compared: Quantity(
            metric.title if metric.name != "throughput" else "Throughput", metric.unit
        )
        for metric in metrics
        if metric.compared
    }
    return own | {best.name: Quantity(best.title, best.unit)} | _QUANTITIES


@dataclass(frozen=True)
class Measured:
    """A value with its 95 % interval; `low` and `high` are None without an interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, figure: Stat | Ratio, scale: float = 1.0) -> Measured:
        """The mean or ratio `figure`, with its interval, multiplied by `scale`, an exact number."""
        figure = Ratio(figure.value, figure.low, figure.high).scaled(scale)
        return cls(figure.value, figure.low, figure.high)


@dataclass(frozen=True)
class Line:
    """A quantity's value in this study (`ours`), and in the other study or paper (`theirs`)."""

    quantity: str
    """A key of the task's `quantities`."""
    ours_name: str
    ours: Measured
    theirs_name: str
    theirs: Measured
    bound: str = ""
    """The word before the value in the paper, if any: `over`, `under`, `about` or `up to`."""
    ratio: Ratio | None = None
    """Our value divided by theirs."""
    basis: Basis = "none"
    source: str = ""
    notes: tuple[str, ...] = ()
    task: TaskFacts = CLASSIFICATION

    @property
    def about(self) -> Quantity:
        return quantities(self.task)[self.quantity]

    def data(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "unit": self.about.unit,
            "ours": self.ours_name,
            **{f"ours_{name}": each for name, each in asdict(self.ours).items()},
            "theirs": self.theirs_name,
            "theirs_bound": self.bound,
            **{f"theirs_{name}": each for name, each in asdict(self.theirs).items()},
            "ratio": self.ratio and self.ratio.value,
            "ratio_low": self.ratio and self.ratio.low,
            "ratio_high": self.ratio and self.ratio.high,
            "interval_of": self.basis,
            "source": self.source,
            "notes": "; ".join(self.notes),
        }


@dataclass(frozen=True)
class Unmatched:
    """A row or value that only one of the two studies has."""

    side: Side
    name: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """The comparison of a study with another study or with a paper."""

    asked: str
    """The value of `--against`."""
    title: str
    lines: tuple[Line, ...]
    unmatched: tuple[Unmatched, ...] = ()
    remarks: tuple[str, ...] = ()
    published: bool = False

    def data(self) -> dict[str, Any]:
        return {
            "format": 1,
            "against": self.asked,
            "title": self.title,
            "lines": [line.data() for line in self.lines],
            "unmatched": [asdict(each) for each in self.unmatched],
            "remarks": list(self.remarks),
        }

    @property
    def note(self) -> str:
        figures = text.count(len(self.lines), "figure")
        return f"{figures} side by side; {len(self.unmatched)} without a counterpart."


PREFIX = "published:"


def compare(rows: Sequence[Row], asked: str, baseline: str | None = None) -> Comparison:
    """Compare the rows with a paper, if `asked` is `published:PAPER`, or with the results folder
    `asked`. `baseline` names the baseline for the rows of that folder.

    Raises UserError, with the valid values, if the paper, the folder or the baseline does not
    exist.
    """
    if asked.startswith(PREFIX):
        return against_published(rows, published(asked.removeprefix(PREFIX)))
    if not Path(asked).is_dir():
        papers = ", ".join(f"{PREFIX}{paper}" for paper in PAPERS)
        raise UserError(f"there is no folder {asked}; --against takes a results folder or {papers}")
    other = Results.open(Path(asked))
    try:
        others = make_rows(results_figures(other), baseline)
    except UserError as error:
        raise UserError(f"in {asked}: {error}") from error
    return against_study(rows, others, asked)


def _title(asked: str) -> str:
    folder = Path(asked).resolve()
    return f"{folder.parent.name}/{folder.name}"


MOST_DIFFERENCES = 4
"""Largest number of differing options that a note names."""


def _differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Options in which two sides differ, with the values of both."""
    found = [
        f"{key} {json.dumps(left.get(key))}, theirs {json.dumps(right.get(key))}"
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
    ]
    more = len(found) - MOST_DIFFERENCES
    return [*found[:MOST_DIFFERENCES], *([f"{more} more options differ"] if more > 0 else [])]


def _options(spec: dict[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    spec = current_spec(spec)
    return dict(dotted({key: value for key, value in spec.items() if key not in left_out}))


# Another study.


def row_figures(row: Row) -> dict[str, Stat | Ratio | None]:
    """The figures of a row that can be compared. For a baseline, speed-up and efficiency are None,
    because they are 1 by definition."""
    return {
        "speed_up": None if row.is_baseline else row.speed_up,
        "efficiency": None if row.is_baseline else row.efficiency,
        **{each.compared: row.figures[each.name] for each in row.metrics if each.compared},
    }


def against_study(rows: Sequence[Row], others: Sequence[Row], asked: str) -> Comparison:
    """Compare the rows of one study with those of another.

    Variants match if they have the same task, strategy, loader, model with its options, data set
    and number of workers. Each variant is paired with at most one match: pairs with the fewest
    differences in other options are formed first. Each line notes the differences.
    """
    pairs, left, right = _pairs(rows, others)
    unmatched = [Unmatched("ours", r.name, "the other study has no such variant") for r in left]
    unmatched += [Unmatched("theirs", r.name, "this study has no such variant") for r in right]
    lines = []
    for ours, theirs in pairs:
        found = list(_row_lines(ours, theirs, _same_baseline(ours, theirs, rows, others)))
        lines += found
        if not found:
            unmatched.append(Unmatched("ours", ours.name, "one side has no figures"))
    return Comparison(asked, _title(asked), tuple(lines), tuple(unmatched))


def _pairs(
    rows: Sequence[Row], others: Sequence[Row]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    options = [[_row_options(row) for row in side] for side in (rows, others)]

    def apart(i: int, j: int) -> int:
        left, right = options[0][i], options[1][j]
        return sum(left.get(key) != right.get(key) for key in {*left, *right})

    scored = sorted(
        (apart(i, j), i, j)
        for i, ours in enumerate(rows)
        for j, theirs in enumerate(others)
        if _key(ours) == _key(theirs)
    )
    matched: dict[int, int] = {}
    for _, i, j in scored:
        if i not in matched and j not in matched.values():
            matched[i] = j
    pairs = [(rows[i], others[j]) for i, j in sorted(matched.items())]
    left = [row for i, row in enumerate(rows) if i not in matched]
    right = [row for j, row in enumerate(others) if j not in matched.values()]
    return pairs, left, right


def _key(row: Row) -> tuple[str, str, str, str, str, int]:
    spec = row.runs[0].plan["spec"]
    model = json.dumps(spec["model"], sort_keys=True)
    strategy, loader = spec["strategy"]["name"], spec["loader"]["name"]
    return row.task.name, strategy, loader, model, row.work, row.workers


def _row_options(row: Row) -> dict[str, Any]:
    left_out = ("name", "description", "seed", "repeats", "matrix", "track")
    return _options(row.runs[0].plan["spec"], left_out) | {"device": row.device}


def _same_baseline(ours: Row, theirs: Row, rows: Sequence[Row], others: Sequence[Row]) -> bool:
    """Whether the baselines of both rows match, so that their speed-ups are comparable."""
    left = [_key(row) for row in rows if row.name == ours.baseline]
    right = [_key(row) for row in others if row.name == theirs.baseline]
    return bool(left) and left == right


def _row_lines(ours: Row, theirs: Row, same_baseline: bool) -> Iterator[Line]:
    differ = _differences(_row_options(ours), _row_options(theirs))
    apart = f"baseline {ours.baseline}, theirs {theirs.baseline}"
    for quantity, left in row_figures(ours).items():
        right = row_figures(theirs)[quantity]
        if left is None or right is None:
            continue
        ratio, comparable = None, same_baseline or isinstance(left, Stat)
        if isinstance(left, Stat) and isinstance(right, Stat):
            ratio = ratio_of_means(left, right)
        elif isinstance(left, Ratio) and isinstance(right, Ratio) and same_baseline:
            ratio = ratio_of_ratios(left, right)
        yield Line(
            quantity=quantity,
            ours_name=ours.name,
            ours=Measured.of(left),
            theirs_name=theirs.name,
            theirs=Measured.of(right),
            ratio=ratio,
            basis="none" if ratio is None or ratio.low is None else "both",
            notes=tuple(differ) if comparable else (apart, *differ),
            task=ours.task,
        )


def ratio_of_ratios(above: Ratio, below: Ratio) -> Ratio | None:
    """The ratio of two independent ratios, with an interval computed from their intervals.

    On a logarithmic scale, the distance of each end of the interval from the ratio is the root of
    the sum of the squares of such a distance in the two given ratios (MOVER: Zou and Donner 2008,
    Statistics in Medicine 27:1693, equations 3 and 4). None if undefined.
    """
    if above.value <= 0 or below.value <= 0:
        return None
    value = above.value / below.value
    ends = (above.low, above.high, below.low, below.high)
    if None in ends:
        return Ratio(value, None, None)
    low_above, high_above, low_below, high_below = (float(end or 0.0) for end in ends)
    if min(low_above, low_below) <= 0 or math.isinf(max(high_above, high_below)):
        return Ratio(value, 0.0, math.inf)
    down = math.hypot(math.log(above.value / low_above), math.log(high_below / below.value))
    up = math.hypot(math.log(high_above / above.value), math.log(below.value / low_below))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


# Papers.

FOLDER = Path(__file__).parent / "published"


@pydantic_dataclass(frozen=True)
class Published:
    """One value of a paper; fields that the paper does not state are empty or None."""

    quantity: str
    """Name of the quantity. Names of times end in `_s`; accuracies and shares are in [0, 1]."""
    value: float
    source: str
    """The figure, table or text of the paper that states the value."""
    high: float | None = None
    """Upper end of a range that begins at `value`."""
    bound: Literal["", "about", "over", "under", "up to"] = ""
    model: str = ""
    data: str = ""
    framework: str = ""
    loader: str = ""
    """`native`, `dali-cpu`, `dali-gpu`, or `dali` if the paper does not state which."""
    workers: int | None = None
    base_workers: int | None = None
    """Number of workers to which a speed-up or an efficiency is relative."""
    schedule: str = ""
    global_batch: int | None = None
    note: str = ""

    @property
    def place(self) -> str:
        workers = "" if self.workers is None else f"{self.workers} workers"
        batch = "" if self.global_batch is None else f"global batch {self.global_batch}"
        parts = (self.framework, self.loader, self.model, self.schedule, batch, workers)
        return " · ".join(filter(None, parts)) or "any"


@dataclass(frozen=True)
class Paper:
    name: str
    title: str
    remarks: tuple[str, ...]
    values: tuple[Published, ...]


PAPERS: dict[str, tuple[str, ...]] = {
    "aach2023": (
        "Aach et al. 2023, Journal of Big Data 10:96, doi 10.1186/s40537-023-00765-w",
        "Efficiency is normalised to 4 GPUs: E = (T_4 / T_G) * (4 / G).",
        "The paper's speed-up of 234 from 4 to 1024 GPUs corresponds to an efficiency of 0.91, but "
        "Fig. 4 shows 0.76; for the native loader on 512 GPUs, the text states an efficiency under "
        "0.24, and the summary 0.45.",
        "The shares of Table 2 come from the first 10 epochs and do not add up to 100 %.",
        "For ResNet-101, Table 2 has the same shares of I/O and computation with DALI on 1024 GPUs "
        "as with the native loader on 512 GPUs.",
    ),
    "mahon2020": (
        "Mahon et al. 2020, CCGRID 2020, pp. 760-766",
        "The paper lists throughput together with accuracy; this report combines both in the time "
        "to accuracy.",
    ),
    "ddlbench2020": (
        "Jansen, Codreanu and Varbanescu 2020, DDLBench",
        "DDLBench's code has no warm-up and no repeats, and counts a partial batch as a full one.",
    ),
    "torchgpipe2020": (
        "Kim et al. 2020, torchgpipe, arXiv:2004.09910, and the values of GPipe quoted there",
        "Speed-ups are relative to one GPU without a pipeline; GPipe was measured on other "
        "hardware and software than torchgpipe.",
    ),
}
"""Name of a paper -> its title, and remarks on its values."""


def published(name: str) -> Paper:
    """A paper's values. Raises UserError, with the valid names, if there is no such paper."""
    if name not in PAPERS:
        near = difflib.get_close_matches(name, PAPERS)
        hint = f"did you mean {near[0]}? " if near else ""
        valid = ", ".join(f"{PREFIX}{paper}" for paper in PAPERS)
        raise UserError(f"no published tables are called {name!r}; {hint}valid: {valid}")
    title, *remarks = PAPERS[name]
    values = [Published(**line) for line in _csv_lines(FOLDER / f"{name}.csv")]
    if name == "aach2023":
        values += _shares(FOLDER / "aach2023_table2.csv")
    return Paper(name, title, tuple(remarks), tuple(values))


def _csv_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The non-empty cells of each line, by column."""
    with file.open(encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            yield {key: value for key, value in line.items() if value}


def _shares(file: Path) -> Iterator[Published]:
    """The shares of time in Table 2 of Aach et al., in [0, 1], by model, GPUs and loader."""
    for line in _csv_lines(file):
        for share in ("communication", "io", "computation"):
            yield Published(
                quantity=f"share_{share}",
                model=line["model"],
                data="imagenet",
                loader=line["loader"],
                workers=int(line["gpus"]),
                value=float(line[f"{share}_percent"]) / 100,
                source="Table 2",
            )


SAME_DATA = ("training_s", "accuracy")
"""Quantities that can be compared only on the same data set."""


def against_published(rows: Sequence[Row], paper: Paper) -> Comparison:
    """Compare the rows with a paper's values for the same framework, model, loader, schedule,
    global batch size and number of workers.

    If a paper does not state one of these for a value, the value is compared with each row that
    has the stated ones.
    """
    lines: list[Line] = []
    alone: dict[tuple[str, str], list[str]] = {}
    met: set[str] = set()
    for value in paper.values:
        matches, reason = _matches(rows, value)
        found = [line for row in matches if (line := _line(row, rows, value)) is not None]
        lines += found
        met |= {line.ours_name for line in found}
        if not found:
            where = f"{value.place}, {value.source}"
            titles = alone.setdefault((where, reason or "this study has no such figure"), [])
            titles.append(quantities()[value.quantity].title)
    unmatched = [
        Unmatched("theirs", f"{', '.join(titles)}: {where}", reason)
        for (where, reason), titles in alone.items()
    ]
    left = (row.name for row in rows if row.name not in met)
    unmatched += [Unmatched("ours", name, "the paper has no such value") for name in left]
    asked = f"{PREFIX}{paper.name}"
    return Comparison(asked, paper.title, tuple(lines), tuple(unmatched), paper.remarks, True)


def _matches(rows: Sequence[Row], value: Published) -> tuple[list[Row], str]:
    """The rows with which a value can be compared; if there are none, the reason."""
    known = [row for row in rows if row.task == CLASSIFICATION]
    for key in ("framework", "model", "loader", "schedule", "global_batch", "workers", "data"):
        want = getattr(value, key)
        if want in ("", None) or (key == "data" and value.quantity not in SAME_DATA):
            continue
        known = [row for row in known if want in _facts(row)[key]]
        if not known:
            return [], f"no run with {key.replace('_', ' ')} {want}"
    return known, ""


def _facts(row: Row) -> dict[str, tuple[object, ...]]:
    spec = row.runs[0].plan["spec"]
    loader = spec["loader"]["name"]
    return {
        "framework": (spec["strategy"]["name"], spec["strategy"].get("schedule")),
        "model": (spec["model"]["name"],),
        "loader": (loader, f"{loader}-{spec['loader'].get('device')}"),
        "schedule": (spec["schedule"]["name"],),
        "global_batch": (row.global_batch,),
        "workers": (row.workers,),
        "data": (spec["data"]["name"],),
    }


def _line(row: Row, rows: Sequence[Row], value: Published) -> Line | None:
    ours = _figure(row, rows, value)
    if ours is None:
        return None
    line = Line(
        quantity=value.quantity,
        ours_name=row.name,
        ours=Measured.of(ours, PROJECTED_EPOCHS if value.quantity == "training_s" else 1.0),
        theirs_name=value.place,
        theirs=Measured(value.value, high=value.high),
        bound=value.bound,
        source=value.source,
        notes=tuple(_notes(row, value)),
    )
    if value.high is not None or value.bound in ("over", "under"):
        return line
    measured = line.ours
    ratio = Ratio(measured.value, measured.low, measured.high).scaled(1 / value.value)
    return replace(line, ratio=ratio, basis="none" if ratio.low is None else "ours")


def _figure(row: Row, rows: Sequence[Row], value: Published) -> Stat | Ratio | None:
    if value.quantity in ("speed_up", "efficiency"):
        ratio = _over_workers(row, rows, value.base_workers)
        if ratio is None or value.quantity == "speed_up" or value.base_workers is None:
            return ratio
        return ratio.scaled(value.base_workers / row.workers)
    if value.quantity == "throughput_over_native":
        return _over_native(row, rows)
    return row_figures(row).get("epoch_s" if value.quantity == "training_s" else value.quantity)


def _over_workers(row: Row, rows: Sequence[Row], workers: int | None) -> Ratio | None:
    """Speed-up relative to the same variant on `workers` workers, not to the report's baseline."""
    same = (each for each in rows if each.series_key == row.series_key and each.workers == workers)
    return _throughput_ratio(row, next(same, None))


def _over_native(row: Row, rows: Sequence[Row]) -> Ratio | None:
    """Throughput relative to the row with the loader `native` and otherwise the same options. If
    there is no such row, a row that also differs in the image format is used."""
    if row.runs[0].plan["spec"]["loader"]["name"] == "native":
        return None
    native = [row for row in rows if row.runs[0].plan["spec"]["loader"]["name"] == "native"]
    same = (
        each
        for other_form in (False, True)
        for each in native
        if _but_loader(each, other_form) == _but_loader(row, other_form)
    )
    return _throughput_ratio(row, next(same, None))


def _but_loader(row: Row, other_form: bool) -> tuple[object, ...]:
    """A row's options without the loader and, with `other_form`, without the image format."""
    plan = row.runs[0].plan
    spec = {key: value for key, value in plan["spec"].items() if key not in ("seed", "loader")}
    if other_form:
        spec["data"] = {key: value for key, value in spec["data"].items() if key != "format"}
    return spec, work_key(plan), row.device, row.global_batch


def _throughput_ratio(row: Row, base: Row | None) -> Ratio | None:
    return None if base is None or base is row else row.over(base)


def _notes(row: Row, value: Published) -> Iterator[str]:
    data = row.runs[0].plan["spec"]["data"]["name"]
    if value.data and data != value.data:
        yield f"ours on {data}, theirs on {value.data}"
    if row.device != "gpu":
        yield f"ours on {row.device}, theirs on GPUs"
    if value.quantity == "training_s":
        yield f"ours is a projection: {PROJECTED_EPOCHS} x the mean epoch time, without validation"
    if value.note:
        yield value.note


# Another sweep.


def other_sweep(asked: str) -> Study:
    """The sweep in the folder that `--against` names. Raises UserError if it holds no sweep."""
    folder = Path(asked)
    found = study(Results.open(folder)) if folder.is_dir() else None
    if found is None:
        raise UserError(
            f"{asked} is not a results folder of a sweep; a sweep's report takes another sweep's "
            "folder after --against"
        )
    return found


def against_sweep(ours: Study, theirs: Study, asked: str) -> Comparison:
    """Compare worker-seconds, epochs, trials and, for goals of both sweeps, the best results."""
    lines, remarks = tuple(_sweep_lines(ours, theirs)), tuple(_remarks(ours, theirs))
    return Comparison(asked, _title(asked), lines, remarks=remarks)


def _sweep_lines(ours: Study, theirs: Study) -> Iterator[Line]:
    pair = (ours, theirs)
    left, right = (f"{each.name} ({each.scheduler})" for each in pair)

    def line(quantity: str, a: float, b: float, *, names: tuple[str, str] = (left, right)) -> Line:
        ratio = Ratio(a / b, None, None) if b > 0 else None
        sides = names[0], Measured(a), names[1], Measured(b)
        return Line(quantity, *sides, ratio=ratio, task=ours.task)

    yield line("worker_seconds", *(each.worker_seconds for each in pair))
    yield line("epochs_trained", *(sum(t.epochs for t in each.trials) for each in pair))
    yield line("trials", *(len(each.trials) for each in pair))
    yield line("trials_stopped_early", *(len(each.of("pruned")) for each in pair))
    alike = ours.task == theirs.task
    for goal in (goal for goal in ours.goals if goal in theirs.goals and alike):
        a, b = (best(each.trials, goal) for each in pair)
        if a is None or b is None:
            continue
        names = f"{left}, {trial_name(a)}", f"{right}, {trial_name(b)}"
        first, second = (cast(float, trial.goals[goal]) for trial in (a, b))
        found = line(_quantity(goal, ours.task), first, second, names=names)
        if goal == "accuracy":
            mine, other = (Measured(x, *accuracy_interval(t)) for x, t in ((first, a), (second, b)))
            found = replace(found, ours=mine, theirs=other)
        yield found
        epochs = (a.figures.epochs_to_accuracy, b.figures.epochs_to_accuracy)
        if goal in TIMES and epochs[0] and epochs[1]:
            yield line(goal.replace("time", "epochs"), epochs[0], epochs[1], names=names)


def _quantity(goal: Goal, task: TaskFacts) -> str:
    if goal in QUALITY:
        return f"best_{task.primary}"
    return f"{goal}_s" if goal in TIMES else goal


def _remarks(ours: Study, theirs: Study) -> Iterator[str]:
    left, right = (
        _options(each.base, ("search", "name", "description", "track"))
        | dict(dotted(each.search, "search."))
        for each in (ours, theirs)
    )
    if differ := _differences(left, right):
        yield f"The sweeps differ in {'; '.join(differ)}."
    first, second = (
        sorted(json.dumps(trial.values, sort_keys=True) for trial in each.trials)
        for each in (ours, theirs)
    )
    yield (
        "Both sweeps tried the same values."
        if first == second
        else "The sweeps did not try the same values."
    )
    if ours.hosts != theirs.hosts:
        yield "The sweeps ran in different environments: their times may not be comparable."
    if "accuracy" in ours.goals:
        yield "Intervals of accuracies reflect only the validation set's size (Wilson)."
    yield "Each side is a single sweep, so neither has a spread over seeds."


# Tables.

_BASIS_NOTES: dict[Basis, str] = {
    "both": "Intervals of ratios are 95 % confidence intervals from the spread of both sides.",
    "ours": "A published value has no spread: the ratio's interval reflects only our spread.",
    "none": "There is no interval if a side has n = 1, a paper states a bound or a range, or the "
    "baselines of two speed-ups or efficiencies differ.",
}


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    """The non-empty tables of a comparison: its lines, and values without a counterpart."""
    writers = {
        each.about: each.about.write
        or text.writer(
            each.about.unit, (one.ours.value for one in comparison.lines if one.about == each.about)
        )
        for each in comparison.lines
    }
    bases = dict.fromkeys(line.basis for line in comparison.lines)
    lines = sheet_from(
        "against",
        f"Ours against {comparison.title}",
        [_cells(line, writers[line.about]) for line in comparison.lines],
        ("Our value", "Their value", "Ours / theirs"),
        (*(_BASIS_NOTES[basis] for basis in bases), *comparison.remarks),
    )
    unmatched = [
        {"What": each.name, "Side": each.side, "Why": each.reason} for each in comparison.unmatched
    ]
    sheets = (lines, sheet_from("against-unmatched", "Without a counterpart", unmatched))
    return [sheet for sheet in sheets if sheet.cells]


def _cells(line: Line, write: text.Writer) -> dict[str, str]:
    single = " (n = 1)" if line.ratio and line.ratio.low is None else ""
    return {
        "Ours": line.ours_name,
        "Quantity": line.about.title,
        "Our value": _written(line.ours, write),
        "Their value": f"{line.bound} {_written(line.theirs, write)}".strip(),
        "Ours / theirs": text.ratio(line.ratio) + single,
        "Interval of": line.basis,
        "Theirs": ", ".join(filter(None, (line.theirs_name, line.source))),
        "Notes": "; ".join(line.notes),
    }


def _written(value: Measured, write: text.Writer) -> str:
    if value.high is None:
        return write(value.value)
    if value.low is None:  # a paper's range
        return f"{write(value.value)} to {write(value.high)}"
    return f"{write(value.value)} [{write(value.low)}, {write(value.high)}]"
