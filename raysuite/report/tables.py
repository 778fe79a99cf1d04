"""The tables of a report: the class of a table, its formats (terminal, Markdown, CSV, LaTeX), and
the tables of variants, costs and the gate."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from rich import box
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from raysuite.records import Ratio, Row, RunFigures, Stat
from raysuite.records.metrics import Metric, metrics_of
from raysuite.records.names import script_name
from raysuite.records.statistics import LEVEL
from raysuite.report import text
from raysuite.report.facets import shared, telling, written
from raysuite.report.summary import repeats_note
from raysuite.spec.tasks import CLASSIFICATION

Line = TypeVar("Line")
Style = Literal["", "bad", "dim"]


@dataclass(frozen=True)
class Sheet:
    """A table whose cells are formatted, including units."""

    name: str
    """Part of file names and labels: letters, digits and dashes."""
    title: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    """One tuple per line, as long as the header; the first cell is the line's name."""
    numbers: frozenset[str] = frozenset()
    """Titles of the right-aligned columns."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: the baseline, n, the origin of the intervals."""
    values: tuple[tuple[float | str | None, ...], ...] = ()
    """Sort key of each cell; empty if the table cannot be sorted."""
    styles: tuple[Style, ...] = ()
    """Style of each line: `bad` for an error, `dim` for a line without figures."""
    main: frozenset[str] = frozenset()
    """Titles of the columns that a narrow screen (a phone) shows; empty: all columns."""

    @property
    def classes(self) -> list[str]:
        """CSS classes of each column on a page."""
        return [
            ("number " if title in self.numbers else "")
            + ("extra" if self.main and title not in self.main else "")
            for title in self.header
        ]


@dataclass(frozen=True)
class Column(Generic[Line]):
    """One column: its title, and functions that return the text and the sort key of a line's cell.
    If `value` is None, the text is the sort key."""

    title: str
    write: Callable[[Line], str]
    value: Callable[[Line], Stat | Ratio | float | None] | None = None
    left: bool = False
    """Whether the column is left-aligned although it has a sort key."""

    @property
    def number(self) -> bool:
        """Whether the column is right-aligned."""
        return self.value is not None and not self.left

    def sorted_by(self, line: Line) -> float | str | None:
        found = self.value(line) if self.value else self.write(line)
        return found.value if isinstance(found, Stat | Ratio) else found


def sheet_of(
    name: str,
    title: str,
    columns: Sequence[Column[Line]],
    lines: Sequence[Line],
    notes: tuple[str, ...] = (),
    style: Callable[[Line], Style] = lambda line: "",
) -> Sheet:
    return Sheet(
        name,
        title,
        header=tuple(column.title for column in columns),
        cells=tuple(tuple(column.write(line) for column in columns) for line in lines),
        numbers=frozenset(column.title for column in columns if column.number),
        notes=notes,
        values=tuple(tuple(column.sorted_by(line) for column in columns) for line in lines),
        styles=tuple(map(style, lines)),
    )


def sheet_from(
    name: str,
    title: str,
    lines: Sequence[Mapping[str, str]],
    numbers: Collection[str] = (),
    notes: tuple[str, ...] = (),
) -> Sheet:
    """Make a table of lines; each line maps the title of a column to its cell."""
    header = tuple(lines[0]) if lines else ()
    cells = tuple(tuple(line.values()) for line in lines)
    return Sheet(name, title, header, cells, frozenset(numbers), notes)


# Formats of a table.


def terminal_sheet(sheet: Sheet, without: Collection[str] = ()) -> Table:
    """The table for a terminal, without the columns titled `without`."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    shown = [place for place, title in enumerate(sheet.header) if title not in without]
    for title in (sheet.header[place] for place in shown):
        side: JustifyMethod = "right" if title in sheet.numbers else "left"
        table.add_column(title, justify=side, overflow="fold")
    for place, cells in enumerate(sheet.cells):
        style = {"bad": "red", "dim": "yellow"}.get(sheet.styles[place]) if sheet.styles else None
        # as Text: brackets in a name are not markup
        table.add_row(*(Text(cells[each]) for each in shown), style=style)
    return table


def markdown_table(sheet: Sheet) -> str:
    """The table in Markdown, without title and notes."""
    marks = ["---:" if title in sheet.numbers else "---" for title in sheet.header]
    lines = [map(markdown_text, sheet.header), marks]
    lines += [map(markdown_text, cells) for cells in sheet.cells]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def markdown_sheet(sheet: Sheet) -> str:
    """The table in Markdown below its title, followed by the notes."""
    notes = [f"- {markdown_text(note)}" for note in sheet.notes]
    return "\n".join([f"## {markdown_text(sheet.title)}", "", markdown_table(sheet), *notes, ""])


def markdown_text(content: str) -> str:
    """Escape text, so that Markdown shows it literally in a table or a line."""
    for character, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        content = content.replace(character, safe)
    return content


def csv_sheet(sheet: Sheet) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([sheet.header, *sheet.cells])
    return stream.getvalue()


def sheet_files(sheet: Sheet) -> dict[str, str]:
    """Path -> content of a table's files: CSV, Markdown and LaTeX."""
    return {
        f"tables/{sheet.name}.csv": csv_sheet(sheet),
        f"tables/{sheet.name}.md": markdown_sheet(sheet),
        f"tables/{sheet.name}.tex": latex(sheet),
    }


_SAFE = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # after \\, LaTeX would read these as options
    **{character: f"{{{character}}}" for character in "[]*"},
    "\0": "{}",
    "\n": " ",
    "\u00a0": "~",
    "–": "--",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "²": r"\textsuperscript{2}",
    "µ": r"\textmu{}",
}


def latex_text(content: str) -> str:
    """Escape text, so that LaTeX prints it literally; letters beyond ASCII are kept as UTF-8."""
    content = content.replace("--", "-\0-")  # two hyphens would become a dash
    return "".join(_SAFE.get(character, character) for character in content)


def latex(sheet: Sheet) -> str:
    """The whole table as a LaTeX float. The document needs `booktabs` and, for quotes, T1 fonts."""
    return _float(
        r"\usepackage{booktabs}  \usepackage[T1]{fontenc}",
        r"\centering",
        sheet.title,
        sheet.name,
        "".join("r" if title in sheet.numbers else "l" for title in sheet.header),
        [" & ".join(map(latex_text, cells)) for cells in (sheet.header, *sheet.cells)],
        r"\footnotesize",
        sheet.notes,
    )


def _float(
    packages: str,
    setting: str,
    title: str,
    label: str,
    columns: str,
    lines: Sequence[str],
    size: str,
    notes: Sequence[str],
) -> str:
    """A LaTeX table of `lines`, with the notes below. The first line is the header."""
    head, *body = (rf"    {line} \\" for line in lines)
    below = [
        rf"  \par\medskip{size}\raggedright",
        *(rf"  {latex_text(note)}\par" for note in notes),
    ]
    return "\n".join(
        [
            f"% {packages}",
            r"\begin{table}",
            f"  {setting}",
            rf"  \caption{{{latex_text(title)}}}",
            rf"  \label{{tab:{label}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            head,
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            *(below if notes else []),
            r"\end{table}",
            "",
        ]
    )


# Variants.


def mean(figure: Stat | None) -> float | None:
    """The mean as the sort key of a column; None without a figure."""
    return None if figure is None else figure.mean


def _gate(row: Row) -> str:
    if row.status == "finished" or (row.gate == "failed" and len(row.runs) == 1):
        return row.gate
    if row.gate == "not checked" and row.status == "missing":
        return row.status
    return f"{row.gate}; run {row.status}" if len(row.runs) == 1 else f"{row.gate}; {row.status}"


def _time_to_accuracy(row: Row, write: text.Writer) -> str:
    if row.time_to_accuracy is None and row.counted and row.counted[0].target is not None:
        return f"met by {row.target_met} of {len(row.counted)}"
    if row.time_to_accuracy is None or row.epochs_to_accuracy is None:
        return text.NONE
    # a time's resolution is one epoch: the number of epochs shows its precision
    return f"{text.stat(row.time_to_accuracy, write)}, {row.epochs_to_accuracy.mean:.3g} epochs"


def all_metrics(rows: Sequence[Row]) -> tuple[Metric, ...]:
    """The metrics of the rows in the order of tables; without rows, those of classification."""
    of_tasks = {row.task: row.metrics for row in rows}
    found = dict.fromkeys(metric for metrics in of_tasks.values() for metric in metrics)
    return tuple(found) or metrics_of()


def metric_named(name: str, rows: Sequence[Row]) -> Metric:
    """The metric with this name among the metrics of the rows' tasks."""
    return next(metric for metric in all_metrics(rows) if metric.name == name)


def primary(rows: Sequence[Row]) -> Metric:
    """The rows' primary metric after the last epoch."""
    task = rows[0].task if rows else CLASSIFICATION
    return metric_named(f"final_{task.primary}", rows)


def rate_title(rows: Sequence[Row]) -> str:
    """The title of the throughput's column, such as `Images/s`."""
    return metric_named("throughput", rows).title


def goal(rows: Sequence[Row]) -> str:
    """The word after "Time to" in titles: `accuracy`, or `target`."""
    return metric_named("time_to_accuracy", rows).title.removeprefix("Time to ")


_SPECIAL: dict[str, Callable[[Row, text.Writer], str]] = {
    "throughput": lambda r, w: text.stat(r.throughput, w) + (" (diverged)" if r.diverged else ""),
    "time_to_accuracy": _time_to_accuracy,
}
"""Metric -> function that writes its cell, for cells that contain more than the metric's value."""


def metric_column(metric: Metric, rows: Sequence[Row]) -> Column[Row]:
    """A metric's column, in a unit that suits all rows."""
    name = metric.name
    unit = text.writer(metric.unit, (mean(row.figures.get(name)) for row in rows))

    def write(row: Row) -> str:
        special = _SPECIAL.get(metric.name)
        return special(row, unit) if special else text.stat(row.figures.get(name), unit, "")

    return Column(metric.title, write, lambda row: row.figures.get(name))


def _efficiency(row: Row) -> str:
    if row.is_baseline and row.efficiency:
        return "1"
    return text.ratio(row.efficiency) + (" (above 1)" if row.superlinear else "")


_NAMES: tuple[Column[Row], ...] = (Column("Variant", lambda row: row.name), Column("Gate", _gate))
_SPEED_UP: Column[Row] = Column(
    "Speed-up",
    lambda r: "baseline" if r.is_baseline and r.speed_up else text.ratio(r.speed_up),
    lambda r: r.speed_up,
)
_EFFICIENCY: Column[Row] = Column("Efficiency", _efficiency, lambda r: r.efficiency)
_TO_BEST: Column[Row] = Column(
    "Against the best",
    lambda r: "best" if r.is_best else text.ratio(r.to_best),
    lambda r: r.to_best,
)


def ratios(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """The column of the speed-up and, if any row has another number of workers than its baseline,
    the column of the efficiency. If every row is its own baseline, instead the column of the ratio
    to the best row with the same work and number of workers."""
    measured = [row for row in rows if row.speed_up and not row.is_baseline]
    if not measured and any(row.to_best for row in rows):
        return (_TO_BEST,)
    scaled = not measured or any(row.efficiency for row in measured)
    return (_SPEED_UP, _EFFICIENCY) if scaled else (_SPEED_UP,)


def columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """The columns that have content for these rows: on CPUs no device memory, for example."""
    scripts = all(script_name(row.runs[0].plan) for row in rows)
    optional = {
        "epoch_seconds": not scripts,
        "final_accuracy": not scripts,
        "peak_device_bytes": any(row.peak_device_bytes for row in rows),
        "time_to_accuracy": any(run.target is not None for row in rows for run in row.runs),
    }
    made = list(_NAMES)
    for metric in all_metrics(rows):
        if metric.table == "variants" and optional.get(metric.name, True):
            made.append(metric_column(metric, rows))
            made += ratios(rows) if metric.name == "throughput" else ()
    return made


def _row_style(row: Row) -> Style:
    return "bad" if row.gate == "failed" else "dim" if row.throughput is None else ""


def rows_sheet(rows: Sequence[Row]) -> Sheet:
    note = (
        f"One line per variant. {rate_title(rows)} over all workers, warm-up excluded. Time to "
        f"{goal(rows)} starts before the first sample is loaded. Memory: peak of the worker "
        "with the highest peak."
    )
    if ratios(rows) == (_TO_BEST,):
        note += (
            " Against the best: throughput / the highest mean throughput with the same network, "
            "data and number of workers."
        )
    if any(row.throughput and row.throughput.n > 1 for row in rows):
        note += f" Intervals of ratios: {TOGETHER}."
    main = frozenset(
        (_NAMES[0].title, rate_title(rows), ratios(rows)[0].title, primary(rows).title)
    )
    sheet = sheet_of("variants", "Variants", columns(rows), rows, (note,), _row_style)
    return replace(sheet, main=main)


NARROW = 140
"""Width in characters; a narrower terminal shows only the most important columns of the table."""

TOGETHER = "the 95 % level holds for all rows together, also for the row selected as the best"
"""An explanation of the intervals of ratios (`raysuite.records.rows.Ratios`)."""


def _point(ratio: Ratio | None, baseline: str | None) -> str:
    return text.NONE if ratio is None else baseline or f"{ratio.value:.2f}"


_SHORT: dict[str, Callable[[Row], str]] = {
    "Speed-up": lambda r: _point(r.speed_up, "baseline" if r.is_baseline else None),
    "Efficiency": lambda r: _point(r.efficiency, "1" if r.is_baseline else None),
    "Against the best": lambda r: _point(r.to_best, "best" if r.is_best else None),
}


def terminal_table(rows: Sequence[Row], width: int = NARROW) -> Table:
    """The table of variants for a terminal of `width` characters; errors are red. A narrow
    terminal shows only main columns; if these are too wide, only the throughput has intervals."""
    if width >= NARROW:
        return terminal_sheet(rows_sheet(rows))
    every, main = columns(rows), primary(rows)
    shortened = {
        rate_title(rows): lambda r: text.stat(r.throughput),
        **_SHORT,
        main.title: lambda r: text.mean(r.final, text.writer(main.unit, ())),
    }
    kept = [each for each in every if each in _NAMES or each.title in shortened]
    table = terminal_sheet(sheet_of("variants", "", kept, rows, style=_row_style))
    hidden = ", ".join(column.title for column in every if column not in kept)
    notes = [f"hidden below {NARROW} columns: {hidden}"] if hidden else []
    console = Console(width=width)
    if Measurement.get(console, console.options.update(width=10 * NARROW), table).maximum > width:
        short = [replace(c, write=shortened.get(c.title, c.write)) for c in kept]
        table = terminal_sheet(sheet_of("variants", "", short, rows, style=_row_style))
        bare = [
            column.title
            for column, full in zip(short, kept, strict=True)
            if any("[" in full.write(row) and "[" not in column.write(row) for row in rows)
        ]
        if bare:
            notes.append(f"intervals only in the report or a wider terminal: {', '.join(bare)}")
    table.caption = "\n".join(notes) or None
    return table


MOST_BASELINES = 4
"""Largest number of baselines that a note lists."""


def rows_latex(rows: Sequence[Row]) -> str:
    """The table of variants in LaTeX for a column of a paper: selected figures, with the ends of
    their 95 % intervals as subscript and superscript. Names omit the parts that all rows share."""
    names = [name for name in telling(rows) if name != "workers"]
    main, rate = primary(rows), rate_title(rows)
    percent = r"\,/\,\%" if main.unit == "share" else ""
    short = "Acc." if main.name == "final_accuracy" else main.title
    of_rows = ratios(rows)
    heads = " & ".join(_SYMBOLS[column][0] for column in of_rows)
    lines = [rf"Variant & W & {rate} & {heads} & {short}{percent}"]
    for row in rows:
        figures = (
            text.stat(row.throughput, single=""),
            *(_plain_ratio(column, row) for column in of_rows),
            text.stat(row.final, text.writer(main.unit, ()), "").removesuffix(" %"),
        )
        name = written(row, names) or shared([row], ("strategy", "loader"))
        lines.append(" & ".join((latex_text(name), str(row.workers), *map(_scripts, figures))))
    meant = "; ".join(": ".join(_SYMBOLS[column]) for column in of_rows)
    notes = (
        f"W: workers; {meant}; {short}: validation "
        f"{main.title.lower()} after the last epoch. Subscript and superscript: the ends of "
        "the 95 % confidence interval.",
        f"{rate} over all workers, warm-up excluded. " + repeats_note(rows).partition(";")[0] + ".",
        *_baselines(rows),
    )
    return _float(
        r"\usepackage{booktabs}  \usepackage{array}  \usepackage[T1]{fontenc}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        "Means over the repeats of each variant",
        "rows",
        rf"@{{}}>{{\raggedright\arraybackslash}}p{{0.27\columnwidth}}{'r' * len(of_rows)}rrr@{{}}",
        lines,
        r"\scriptsize",
        notes,
    )


_SYMBOLS = {
    _SPEED_UP: ("S", "speed-up"),
    _EFFICIENCY: ("E", "parallel efficiency"),
    _TO_BEST: ("R", "throughput / highest throughput with the same network, data and workers"),
}
"""Column of ratios -> its symbol in a paper, and the symbol's meaning."""


def _plain_ratio(column: Column[Row], row: Row) -> str:
    """A ratio with its interval; a dash for a row relative to itself."""
    own = row.is_best if column is _TO_BEST else row.is_baseline
    return text.NONE if own else column.write(row).removesuffix(" (above 1)")


def _scripts(written: str) -> str:
    """Format `1.87 [1.80, 1.94]` as `$1.87_{1.80}^{1.94}$`; a remark in parentheses stays text."""
    if written == text.NONE:
        return "--"
    figure, bracket, remark = written.partition(" (")
    found = re.sub(r" \[(.+), (.+)\]$", r"_{\1}^{\2}", figure)
    for character, safe in ((",", "{,}"), ("∞", r"\infty"), ("inf", r"\infty")):
        found = found.replace(character, safe)
    return f"${found}${bracket}{remark}"


def _baselines(rows: Sequence[Row]) -> list[str]:
    names = list(dict.fromkeys(row.baseline for row in rows if row.baseline))
    if not names or ratios(rows) == (_TO_BEST,):
        return []
    against = f"relative to {text.listed(names)}"
    if len(names) > MOST_BASELINES:
        against = "relative to the baseline of each series, which has a dash instead"
    efficiency = "efficiency = speed-up * workers of the baseline / workers"
    scaling = " and ".join(sorted({f"{row.scaling} scaling" for row in rows}))
    return [f"Speed-up is {against}; {efficiency}; {scaling}."]


# Costs and the gate.

_BYTES = "Bytes a step"


def costs_sheet(rows: Sequence[Row]) -> Sheet | None:
    """The table of costs: steps, operations, bytes, energy. Empty columns are left out."""
    shown = [
        metric
        for metric in all_metrics(rows)
        if metric.table == "costs" and any(row.figures.get(metric.name) for row in rows)
    ]
    if not shown:
        return None
    made = [_NAMES[0], *(metric_column(metric, rows) for metric in shown)]
    sent = any(row.traffic is not None for row in rows)
    if sent:
        size = text.writer("bytes", (r.traffic.total for r in rows if r.traffic is not None))
        made.append(
            Column(
                _BYTES,
                lambda r: text.NONE if r.traffic is None else size(r.traffic.total),
                lambda r: None if r.traffic is None else r.traffic.total,
            )
        )
    notes = (*(metric.note for metric in shown), *_costs_notes(rows, shown, sent))
    return sheet_of("costs", "Costs", made, rows, notes)


def _costs_notes(rows: Sequence[Row], shown: Sequence[Metric], sent: bool) -> Iterator[str]:
    counted = [
        run.costs.counted
        for row in rows
        for run in row.counted
        if run.costs is not None and run.costs.counted is not None
    ]
    peaks = {
        (each.device, each.peak_format, each.peak_flops, each.peak_source)
        for each in counted
        if each.peak_flops is not None
    }
    for device, number_format, flops, source in sorted(peaks):
        rate = text.WRITERS["FLOP/s"](flops)
        yield f"MFU is relative to {rate} of each {device} in {number_format} ({source})."
    if counted and not all(each.peak_flops is not None for each in counted):
        yield "MFU is not given if the device's peak rate is not known, for example on CPUs."
    for message in sorted({each.message for each in counted if each.message}):
        yield f"Parameters or operations of a model could not be counted: {message}"
    if sent:
        yield (
            f"{_BYTES}: size of the whole buffers that a worker's collectives reduce or gather in "
            "an optimiser step, computed from what each framework does, not measured."
        )
    if any(stat.low is not None for row in rows for m in shown if (stat := row.figures[m.name])):
        yield (
            f"Intervals are {100 * LEVEL:.0f} % confidence intervals over repeats "
            "(docs/explanation/method.md)."
        )


def overheads_sheet(rows: Sequence[Row]) -> Sheet | None:
    """Rows with a wrapper or torch.compile, each compared with the otherwise equal row without it;
    None if there are no such rows."""
    shown = [row for row in rows if row.beside is not None]
    if not shown:
        return None
    made = [
        _NAMES[0],
        Column[Row]("Beside", lambda r: r.beside or ""),
        Column[Row](
            f"{rate_title(shown)} relative to it",
            lambda r: text.ratio(r.relative),
            lambda r: r.relative,
        ),
        metric_column(metric_named("compile_seconds", shown), shown),
        Column[Row](
            "Break-even step",
            lambda r: text.ratio(r.break_even, text.number),
            lambda r: r.break_even,
        ),
    ]
    notes = (
        "Beside: the variant that is equal except for torch.compile or the wrapper. "
        f"Intervals of the ratio: {TOGETHER}.",
        "Break-even step: compile seconds divided by the seconds saved per step, with Fieller's "
        "interval; none if steps are not shorter.",
    )
    return sheet_of("overheads", "Wrappers and compilers", made, shown, notes)


def gate_sheet(runs: Sequence[RunFigures], names: Mapping[str, str]) -> Sheet:
    """The gate's results, one line per run; `names`: run id -> name."""
    errors = ("Error", "With BatchNorm", "16 bits", "Tolerance")
    return Sheet(
        name="gate",
        title="Verdicts of the gate",
        header=("Run", "Seed", "Verdict", *errors, "Rule"),
        cells=tuple(_verdict(run, names[run.run_id]) for run in runs),
        numbers=frozenset(("Seed", *errors)),
        notes=(
            "Errors are relative to one process, without unit. Columns Error and With BatchNorm: "
            "the largest error of a weight tensor. Column 16 bits: the largest error of updates, "
            "logits and losses.",
        ),
        styles=tuple("bad" if run.gate == "failed" else "" for run in runs),
    )


def _verdict(run: RunFigures, name: str) -> tuple[str, ...]:
    verdict = run.verdict
    begin = (name, str(run.plan["seed"]), run.gate)
    if verdict is None:
        return (*begin, *(text.NONE,) * 5)
    bound = text.NONE if verdict.tolerance is None else f"{verdict.tolerance:.2g}"
    errors = (f"{verdict.error:.2g}", f"{verdict.error_batchnorm:.2g}")
    short = text.NONE if verdict.error_16_bits is None else f"{verdict.error_16_bits:.2g}"
    earlier = "checked earlier on an equal machine" if verdict.cached else ""
    rule = "; ".join(filter(None, (verdict.rule, verdict.message, earlier)))
    return (*begin, *errors, short, bound, rule)
