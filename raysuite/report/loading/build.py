"""A comparison of loaders -> its page, its table and its pictures."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from raysuite.records.loading import LoadingBench, loading_rows
from raysuite.report.loading.plot import speeds
from raysuite.report.loading.tables import columns, described, diagnose, markdown, notes
from raysuite.report.page import readable, render
from raysuite.report.plot import pictures
from raysuite.report.tables import markdown_text


def build(bench: LoadingBench, folder: Path) -> None:
    """Write loaders.html, loaders.md and pictures of the plot into `folder`."""
    (folder / "loaders.html").write_text(page(bench), "utf-8")
    (folder / "loaders.md").write_text(written(bench), "utf-8")
    plot = speeds(loading_rows(bench))
    if plot is not None:
        for suffix, content in pictures(plot).items():
            (folder / f"{plot.name}{suffix}").write_bytes(content)


def written(bench: LoadingBench) -> str:
    """Summary and table as Markdown."""
    rows = loading_rows(bench)
    said = [str(diagnose(bench)), *notes(bench, rows)]
    lines = [f"# Loaders of {bench.name}", "", described(bench) + ".", ""]
    lines += [*(f"- {markdown_text(line)}" for line in said), ""]
    return "\n".join([*lines, markdown(rows)])


def page(bench: LoadingBench) -> str:
    """One page that holds all it needs, Vega included."""
    rows = loading_rows(bench)
    plots = [plot for plot in [speeds(rows)] if plot is not None]
    return render(
        "loaders.html.jinja",
        plots,
        bench=bench,
        described=described(bench),
        measured=datetime.fromtimestamp(bench.time, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        diagnosis=str(diagnose(bench)),
        notes=notes(bench, rows),
        columns=columns(rows),
        lines=[(row, "", "" if row.throughput else "dim") for row in rows],
        environment=readable(bench.environment),
    )
