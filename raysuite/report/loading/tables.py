"""The table of a comparison of loaders, for the terminal, for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from raysuite.records import Stat, ratio_of_means
from raysuite.records.loading import LoadingBench, LoadingRow, loading_rows, stage_shares
from raysuite.records.statistics import compared
from raysuite.report import text
from raysuite.report.tables import Column, markdown_table, mean


def _cpu(row: LoadingRow) -> float | None:
    if not row.throughput or not row.cores:
        return None
    return 1000 * row.cores.mean / row.throughput.mean


COLUMNS: tuple[Column[LoadingRow], ...] = (
    Column("Loader", lambda r: r.candidate.name, lambda r: r.candidate.name, number=False),
    Column("Images/s", lambda r: text.stat(r.throughput), lambda r: mean(r.throughput)),
    Column(
        "Of decoding",
        lambda r: text.ratio(r.of_decoding),
        lambda r: r.of_decoding.value if r.of_decoding else None,
    ),
    Column("Cores busy", lambda r: text.mean(r.cores), lambda r: mean(r.cores)),
    Column(
        "CPU ms/image",
        lambda r: text.NONE if _cpu(r) is None else text.number(_cpu(r) or 0.0),
        _cpu,
    ),
    Column(
        "Start",
        lambda r: text.mean(r.start_seconds, text.seconds),
        lambda r: mean(r.start_seconds),
    ),
)


WHY: Column[LoadingRow] = Column("Why not", lambda r: r.failure, lambda r: r.failure, number=False)


def columns(rows: Sequence[LoadingRow]) -> tuple[Column[LoadingRow], ...]:
    """The columns; why there are no figures is said where a row has none."""
    return (*COLUMNS, WHY) if any(row.failure for row in rows) else COLUMNS


def terminal_table(rows: Sequence[LoadingRow]) -> Table:
    """The rows for a terminal; limits are dim, what failed is yellow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = columns(rows)
    for column in shown:  # a name is folded sooner than a figure
        justify: JustifyMethod = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, no_wrap=column.number)
    for row in rows:
        limit = row.candidate.kind != "loader"
        style = "yellow" if row.throughput is None else "dim" if limit else ""
        table.add_row(*(Text(column.write(row)) for column in shown), style=style)
    return table


def markdown(rows: Sequence[LoadingRow]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(columns(rows), rows)


def described(bench: LoadingBench) -> str:
    """What was timed and how, in a sentence."""
    plan, facts = bench.plan, bench.plan["facts"]
    length = f"{plan['images']:,} images" if plan["images"] else f"{plan['seconds']:g} s"
    train = plan["split"] == "train" and bench.material
    drawn = f", augmentation {bench.material.augment}" if train and bench.material else ""
    return (
        f"{plan['split']} split, {facts['image_size']} pixels{drawn}, batches of {plan['batch']} "
        f"on the {plan['device'].upper()}; {text.count(plan['repeats'], 'round')} of "
        f"{length} each"
    )


def notes(bench: LoadingBench, rows: Sequence[LoadingRow]) -> list[str]:
    """What to read the figures with."""
    said = []
    if not bench.complete:
        said.append("It was interrupted: the figures are of what had been measured by then.")
    others = [r.others.mean for r in rows if r.others]
    if others and max(others) > 0.1:
        said.append(
            f"Other programs kept {min(others):.1f} to {max(others):.1f} cores busy meanwhile."
        )
    material = bench.material
    if material and not material.read_before:
        said.append(
            "The set is larger than the page cache is sure to hold: files come from the disk in "
            "part, and speeds may change from round to round."
        )
    elif material:
        said.append("All files were read once before: speeds are those from the page cache.")
    return said


NEAR = 0.8
"""A loader that reaches this share of `synthetic`, which loads nothing, is not bound by loading."""


@dataclass(frozen=True)
class Diagnosis:
    """The fastest loader, and whether loading bounds it."""

    best: str
    """The candidate's name; empty where no loader delivered anything."""
    rivals: tuple[str, ...]
    """Loaders that are not shown to be slower than the best."""
    bound: Literal["loading", "hand-over"] | None
    """`hand-over`: `synthetic` is as fast, within NEAR; None where it was not measured."""
    because: str
    """The figures: images/s, shares of the limits, cores busy; or why nothing was delivered."""

    def __str__(self) -> str:
        if not self.best:
            why = f": {self.because}" if self.because else ""
            return f"No loader delivered anything{why}."
        bound = f", bound by {self.bound}" if self.bound else ""
        line = f"Fastest: {self.best}{bound}: {self.because}."
        if self.rivals:
            line += f" Not shown to be slower: {text.listed(list(self.rivals))}."
        return line


def diagnose(bench: LoadingBench) -> Diagnosis:
    """The fastest loader by its mean throughput, and what bounds it."""
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
    stages = stage_shares(bench) if best.candidate.options.get("name") == "native" else {}
    if total := sum(stages.values()):
        parts = (f"{stage} {text.percent(each / total)}" for stage, each in stages.items())
        figures.append(f"time of one thread by stage: {', '.join(parts)}")
    bound: Literal["loading", "hand-over"] | None = None
    if share is not None:
        bound = "hand-over" if share.value >= NEAR else "loading"
    rivals = _rivals(rate, [(row.candidate.name, stat) for row, stat in loaders[1:]])
    return Diagnosis(best.candidate.name, rivals, bound, "; ".join(figures))


def _rivals(best: Stat, others: Sequence[tuple[str, Stat]]) -> tuple[str, ...]:
    """Loaders that the intervals do not separate from the best, which was picked after the fact:
    all pairs hold together."""
    stats = [stat for stat in (best, *(stat for _, stat in others)) if stat.n > 1]
    slower: set[Stat] = set()
    if best in stats and len(stats) > 1:
        ratios, reaches = compared(stats)
        lows = (ratios - reaches)[0]
        slower = {stat for stat, low in zip(stats, lows, strict=True) if low > 0}
    return tuple(name for name, stat in others if stat not in slower)
