"""SVG and PNG of a plot: complete, the same each time, and with its text as text."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from raysuite.report import collect
from raysuite.report.pictures import pictures
from raysuite.report.plot import Plot
from tests.fake_studies import write_study


def texts(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


def drawn_paths(svg: bytes) -> int:
    return sum(1 for _ in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"))


@pytest.fixture(scope="module")
def plots(tmp_path_factory) -> dict[str, Plot]:
    report = collect(write_study(tmp_path_factory.mktemp("throughput"), "throughput", repeats=2))
    return {plot.name: plot for plot in report.plots}


@pytest.mark.parametrize("name", ["efficiency", "shares", "throughput", "speed-up-works"])
def test_a_picture_says_what_the_plot_says(plots, name):
    plot = plots[name]
    made = pictures(plot)
    said = texts(made[".svg"])
    assert plot.title in said
    for panel in plot.layout.get("meta", {}).get("panels", ()):
        assert panel in said
    assert {trace["name"] for trace in plot.traces} <= set(said)
    image = Image.open(io.BytesIO(made[".png"]))
    assert image.width >= 1000
    assert len(image.convert("RGB").getcolors(2**24)) > 50


def test_the_same_plot_gives_the_same_bytes(plots):
    assert pictures(plots["speed-up"]) == pictures(plots["speed-up"])


def test_every_line_is_drawn(plots):
    plot = plots["speed-up"]
    lines = [trace for trace in plot.traces if trace["name"] != "ideal"]
    fewer = Plot(plot.name, plot.title, plot.note, "", [plot.traces[0], *lines[:-6]], plot.layout)
    assert drawn_paths(pictures(plot)[".svg"]) > drawn_paths(pictures(fewer)[".svg"])


def test_markup_and_formulas_in_names_stay_text():
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "a &lt;b&gt; $x_1$",
        "x": [1, 2],
        "y": [1.0, float("nan")],
        "error_y": {"visible": True, "array": [0.1, float("inf")], "arrayminus": [0.1, 0.1]},
    }
    plot = Plot("p", "a $title$", "", "", [trace, {**trace, "name": "語"}], {"height": 300})
    said = texts(pictures(plot)[".svg"])
    assert {"a <b> $x_1$", "a $title$", "語"} <= set(said)
