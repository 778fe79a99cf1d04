"""report.html: one page that contains its scripts, including Vega, and loads no other file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from raysuite import __version__
from raysuite.files import write_whole
from raysuite.records import STATUS_WORDS, Row, RunFigures
from raysuite.report import text
from raysuite.report.against import comparison_sheets
from raysuite.report.collect import Report
from raysuite.report.plot import CONFIG, Plot
from raysuite.report.provenance import provenance_sheets
from raysuite.report.raw_data import finite
from raysuite.report.tables import Sheet, gate_sheet, rows_sheet, sheet_from
from raysuite.spec.datasets import cache_dir

OPEN_UP_TO = 24
"""A table with more lines than this is collapsed when the page opens, has its own scroll bar, or
both, depending on the table."""


def page(report: Report) -> str:
    """The whole report as HTML. Every name and message is escaped."""
    environments = report.provenance["environments"]
    counts = Counter(run["environment"] for run in report.provenance["runs"])
    return render(
        "page.html.jinja" if report.sweep is None else "sweep.html.jinja",
        report.plots,
        report=report,
        sweep=None if report.sweep is None else report.sweep.context(),
        names=report.names,
        variants=rows_sheet(report.rows),
        gate=gate_sheet(report.runs, report.names),
        environments=[(as_yaml(each), counts[n]) for n, each in enumerate(environments)],
        failures=[run for run in report.runs if run.status != "finished"],
        status_words=STATUS_WORDS,
        baselines=_baselines(report.rows),
        resolved=as_yaml(report.runs[0].plan["spec"]) if report.runs else "",
        measured=_measured(report.runs),
        sheets=report.sheets,
        provenance_sheets=provenance_sheets(report.provenance),
        comparison_sheets=comparison_sheets(report.comparison) if report.comparison else [],
    )


def render(template: str, plots: Sequence[Plot], **context: Any) -> str:
    """Render a template with the script and data of its plots."""
    drawn = {"config": CONFIG, "plots": {plot.name: plot.data() for plot in plots}}
    written: str = (
        templates()
        .get_template(template)
        .render(
            figures=Markup(script_json(drawn)),
            vega=Markup(_vega()),
            plots=plots,
            version=__version__,
            **context,
        )
    )
    return written


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script, cached because bundling takes a second."""
    import vl_convert

    kept = cache_dir() / f"vega-of-vl-convert-{version('vl-convert-python')}.js"
    with suppress(OSError):
        return kept.read_text("utf-8")
    # a literal </script in the data would end the page's script element
    script = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    script = script.replace("</script", "<\\/script")
    with suppress(OSError):  # if the cache cannot be written, each page bundles again
        write_whole(kept, script.encode())
    return script


def script_json(data: Any) -> str:
    """JSON that is safe inside a script element: it can neither begin nor end a tag."""
    written = json.dumps(_rounded(finite(data)), ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written


def _rounded(data: Any) -> Any:
    """Round numbers to six significant digits, which are more than a screen can show. This halves
    the size of the page's data."""
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_rounded(value) for value in data]
    return float(f"{data:.6g}") if isinstance(data, float) else data


@cache
def templates() -> jinja2.Environment:
    """The templates of the pages, by their path below `raysuite/report`. All values are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("raysuite.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tied"] = text.tied
    environment.filters["paired"] = text.paired
    environment.globals["open_up_to"] = OPEN_UP_TO
    return environment


def _baselines(rows: Iterable[Row]) -> Sheet:
    against: dict[str, list[str]] = {}
    for row in rows:
        if row.baseline is not None:
            names = against.setdefault(row.baseline, [])
            names += [] if row.is_baseline else [row.name]
    lines = [
        {"Baseline": base, "Measured against it": "; ".join(names) or "itself alone"}
        for base, names in against.items()
    ]
    return sheet_from("baselines", "Baselines", lines)


def as_yaml(data: dict[str, Any]) -> str:
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _measured(runs: Iterable[RunFigures]) -> str:
    """The time of the last Record (not the present time), so that pages can be reproduced."""
    times = [
        record.time
        for run in runs
        for record in (run.started, run.end, *run.epochs)
        if record is not None
    ]
    if not times:
        return "nothing so far"
    return datetime.fromtimestamp(max(times), UTC).strftime("%Y-%m-%d %H:%M UTC")
