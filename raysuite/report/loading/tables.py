"""The table of a comparison of loaders, for the terminal, for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from raysuite.records.loading import LoadingBench, LoadingRow
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
