"""The page, table and plot of a comparison of loaders, and a sentence that names the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from raysuite.records import Stat, ratio_of_means
from raysuite.records.loader_rates import LoadingBench, LoadingRow, loading_rows
from raysuite.records.statistics import compared
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.page import as_yaml, render
from raysuite.report.plot import Plot, Style, Trace
from raysuite.report.summary import NO_INTERVAL, Sentence
from raysuite.report.tables import Column, Sheet, markdown_table, markdown_text, mean, sheet_of


def build(bench: LoadingBench, folder: Path) -> None:
    """Write loaders.html, loaders.md and pictures of the plot. After Ctrl-C the pictures are left
    out, because they take time."""
    (folder / "loaders.html").write_text(page(bench), "utf-8")
    (folder / "loaders.md").write_text(markdown(bench), "utf-8")
    if bench.complete and (plot := speeds(loading_rows(bench))) is not None:
        for suffix, content in p.pictures(plot).items():
            (folder / f"{plot.name}{suffix}").write_bytes(content)


def markdown(bench: LoadingBench) -> str:
    rows = loading_rows(bench)
    summary = [each.text for each in summarize_loaders(bench, rows)]
    lines = [f"# Loaders of {bench.name}", "", described(bench) + ".", ""]
    lines += [*(f"- {markdown_text(line)}" for line in summary), ""]
    return "\n".join([*lines, markdown_table(loaders_sheet(rows))])


def page(bench: LoadingBench) -> str:
    rows = loading_rows(bench)
    plot = speeds(rows)
    return render(
        "loaders.html.jinja",
        [] if plot is None else [plot],
        bench=bench,
        described=described(bench),
        measured=datetime.fromtimestamp(bench.time, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        said=summarize_loaders(bench, rows),
        sheet=loaders_sheet(rows),
        environments=[(as_yaml(bench.environment), 0)],
    )


def _cpu_ms(row: LoadingRow) -> float | None:
    if not row.throughput or not row.cores:
        return None
    return 1000 * row.cores.mean / row.throughput.mean


def loaders_sheet(rows: Sequence[LoadingRow]) -> Sheet:
    """The table of loaders; if a row has no figures, a column gives the reason."""
    start = text.writer("s", (mean(row.start_seconds) for row in rows))
    columns: list[Column[LoadingRow]] = [
        Column("Loader", lambda r: r.candidate.name),
        Column("Images/s", lambda r: text.stat(r.throughput), lambda r: r.throughput),
        Column("Of decoding", lambda r: text.ratio(r.of_decoding), lambda r: r.of_decoding),
        Column("Cores busy", lambda r: text.mean(r.cores), lambda r: r.cores),
        Column("CPU ms/image", lambda r: text.optional(_cpu_ms(r)), _cpu_ms),
        Column("Start", lambda r: text.mean(r.start_seconds, start), lambda r: r.start_seconds),
    ]
    if any(row.failure for row in rows):
        columns.append(Column("Why not", lambda r: r.failure))
    note = (
        f"{_meaning(rows)} Of decoding: images/s of the loader divided by images/s of decoding "
        "alone with the same number of threads. "
        "Start: time until the first batch is ready, including imports."
    )
    return sheet_of(
        "loaders", "Loaders", columns, rows, (note,), lambda row: "" if row.throughput else "dim"
    )


def described(bench: LoadingBench) -> str:
    """The data set and method of the comparison, in a sentence."""
    plan, facts = bench.plan, bench.plan["facts"]
    length = f"{plan['images']:,} images" if plan["images"] else f"{plan['seconds']:g} s"
    material = bench.material if plan["split"] == "train" else None
    drawn = f", augmentation {material.augment}" if material else ""
    return (
        f"{plan['split']} split, {facts['image_size']} pixels{drawn}, batches of {plan['batch']} "
        f"on the {plan['device'].upper()}; {text.count(plan['repeats'], 'round')} of {length} each"
    )


def summarize_loaders(bench: LoadingBench, rows: Sequence[LoadingRow]) -> list[Sentence]:
    """The result, the candidates that were not measured, and caveats."""
    said = [Sentence("result", str(diagnose(bench)))]
    if not bench.complete:
        lacking = [row for row in rows if not row.throughput and not row.failure]
        ends = f": {text.count(len(lacking), 'candidate')} of {len(rows)} not measured"
        said.append(
            Sentence("problem", f"The measurement was interrupted{ends if lacking else ''}.")
        )
    return said + [Sentence("caveat", each) for each in _caveats(bench, rows)]


def _meaning(rows: Sequence[LoadingRow]) -> str:
    """How figures were averaged, and whether they have intervals."""
    if {row.throughput.n for row in rows if row.throughput} == {1}:
        return "One round each: no intervals."
    return "Means over rounds, with 95 % intervals."


def _caveats(bench: LoadingBench, rows: Sequence[LoadingRow]) -> list[str]:
    found = []
    others = [r.others.mean for r in rows if r.others]
    if others and max(others) > 0.1:
        found.append(f"Other programs kept {min(others):.1f} to {max(others):.1f} cores busy.")
    material = bench.material
    if material and not material.read_before:
        found.append(
            "The data set may be larger than the page cache: some files are read from disk, and "
            "speeds may change from round to round."
        )
    elif material:
        found.append(
            "All files were read once before the timings, so the speeds are those of reading from "
            "the page cache."
        )
    return found


NEAR = 0.8
"""A loader with at least this share of the throughput of `synthetic` is not bound by loading."""


@dataclass(frozen=True)
class Diagnosis:
    """The fastest loader, and its bottleneck."""

    best: str
    """The candidate's name; empty if no loader delivered anything."""
    rivals: tuple[str, ...]
    """Loaders that are not significantly slower than the best; without repeats, all others."""
    bound: Literal["loading", "hand-over"] | None
    """What limits the best loader: `hand-over` (passing batches to the loop) if `best` reaches the
    share NEAR of the throughput of `synthetic`, else `loading`. None if `synthetic` was not
    measured."""
    because: str
    """The figures of the best loader: images/s, shares of the limits, busy cores. If there is no
    best loader, why candidates have no figures."""
    repeated: bool = True
    """Whether any loader was timed several times, so that there are intervals."""

    def __str__(self) -> str:
        if not self.best:
            why = f": {self.because}" if self.because else ""
            return f"No loader delivered anything{why}."
        bound = f", bound by {self.bound}" if self.bound else ""
        line = f"Fastest: {self.best}{bound}: {self.because}."
        if self.rivals and not self.repeated:
            line += f" {NO_INTERVAL}"
        elif self.rivals:
            line += f" Not significantly slower than the fastest: {text.listed(list(self.rivals))}."
        return line


def diagnose(bench: LoadingBench) -> Diagnosis:
    """The fastest loader by its mean throughput, and its bottleneck."""
    rows = loading_rows(bench)
    loaders = [
        (row, row.throughput)
        for row in rows
        if row.candidate.kind == "loader" and row.candidate.width > 0 and row.throughput
    ]
    if not loaders:
        reasons = text.listed([f"{r.candidate.name}: {r.failure}" for r in rows if r.failure])
        return Diagnosis("", (), None, reasons)
    loaders.sort(key=lambda each: each[1].mean, reverse=True)
    best, rate = loaders[0]
    ceiling = next((row.throughput for row in rows if row.candidate.series == "synthetic"), None)
    share = ratio_of_means(rate, ceiling) if ceiling else None
    figures = [f"{text.stat(rate)} images/s"]
    limits = {
        "synthetic": share,
        "decoding alone": best.of_decoding,
        "reading alone": best.of_reading,
    }
    figures += [f"{text.ratio(ratio)} of {name}" for name, ratio in limits.items() if ratio]
    cpus = (bench.environment.get("cpu") or {}).get("usable_cores")
    if best.cores:
        figures.append(f"{best.cores.mean:.1f}{f' of {cpus}' if cpus else ''} cores busy")
    bound: Literal["loading", "hand-over"] | None = None
    if share is not None:
        bound = "hand-over" if share.value >= NEAR else "loading"
    rivals = _rivals(rate, [(row.candidate.name, stat) for row, stat in loaders[1:]])
    repeated = any(stat.n > 1 for _, stat in loaders)
    return Diagnosis(best.candidate.name, rivals, bound, "; ".join(figures), repeated)


def _rivals(best: Stat, others: Sequence[tuple[str, Stat]]) -> tuple[str, ...]:
    """Loaders that are not significantly slower than the best loader. The intervals hold for all
    pairs simultaneously, because the best was selected after the measurement."""
    stats = [stat for stat in (best, *(stat for _, stat in others)) if stat.n > 1]
    slower: set[Stat] = set()
    if best in stats and len(stats) > 1:
        ratios, reaches = compared(stats)
        lows = (ratios - reaches)[0]
        slower = {stat for stat, low in zip(stats, lows, strict=True) if low > 0}
    return tuple(name for name, stat in others if stat not in slower)


FARTHEST = 3.0
"""Limits with more than this multiple of the fastest loader's images/s are not drawn, because the
other bars would be too short."""


def speeds(rows: Sequence[LoadingRow]) -> Plot | None:
    """Images/s of each candidate, coloured by number of threads; None if nothing was measured."""
    measured = [row for row in rows if row.throughput]
    if not measured:
        return None
    ruling = [row for row in measured if not _is_limit(row)] or measured
    bound = FARTHEST * max(map(_rate, ruling))
    shown = [row for row in measured if _rate(row) <= bound]
    beyond = list(dict.fromkeys(row.candidate.series for row in measured if row not in shown))
    left_out = f" Much faster, so shown only in the table: {text.listed(beyond)}." if beyond else ""
    widths = sorted({row.candidate.width for row in shown})
    styles = {
        f"{width} at work" if width else "nothing loaded": Style(
            p.SHADES[place % len(p.SHADES)] if width else p.NEUTRAL
        )
        for place, width in enumerate(widths)
    }
    best = max(shown, key=_rate)
    return Plot(
        name="loaders",
        title="Images per second",
        note=_meaning(rows) + left_out,
        description=f"Bars per loader and number of threads; the longest is {best.candidate.name} "
        f"with {text.number(_rate(best))} images/s.",
        traces=[
            _bars([row for row in shown if row.candidate.width == width], series)
            for width, series in zip(widths, styles, strict=True)
        ],
        layers=p.bars(),
        x=p.quantity("images per second"),
        y=p.labels(dict.fromkeys(row.candidate.series for row in shown)),
        styles=styles,
        height=p.BAR_PX,
        bars_per_label=len(widths),
        wide=True,
    )


def _bars(rows: Sequence[LoadingRow], series: str) -> Trace:
    bars = [
        {
            "y": row.candidate.series,
            "x": _rate(row),
            "low": row.throughput and row.throughput.low,
            "high": row.throughput and row.throughput.high,
            "tip": f"{row.candidate.name}\n{text.stat(row.throughput)} images/s\n"
            f"{text.ratio(row.of_decoding)} of decoding alone",
        }
        for row in rows
    ]
    return p.trace("bar", bars, series=series)


def _is_limit(row: LoadingRow) -> bool:
    """Whether the row's candidate loads nothing (`synthetic`), or reads without decoding."""
    return row.candidate.width == 0 or row.candidate.kind == "reading"


def _rate(row: LoadingRow) -> float:
    return mean(row.throughput) or 0.0
