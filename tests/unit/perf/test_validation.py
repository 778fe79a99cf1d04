"""What is printed of a prediction's error, beside the pages of benchmarks/results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raysuite.perf import validation
from raysuite.perf.validation import (
    NOT_VALIDATED,
    VALIDATIONS,
    Kind,
    of_plan,
    of_rate,
    of_scaling,
    words,
)

PAGES = Path(validation.__file__).parents[2] / "benchmarks" / "results"
LINES: dict[Kind, str] = {
    "one machine": r"\| ours \| (.*?)% \| (.*?)%",
    "pipelines": r"steps: median (.*?)%, 90th percentile (.*?)%",
    "from one": r"from the rate of one GPU\n.*?\| raysuite \| (.*?)% \| (.*?)%",
    **{
        kind: rf"Aach[^\n]*from at most {most}\n.*?\| raysuite \| (.*?)% \| (.*?)%"
        for kind, most in (("from 64", 64), ("from at most 16", 16), ("from at most 8", 8))
    },
}


@pytest.mark.parametrize("kind", VALIDATIONS)
def test_what_is_printed_is_what_the_page_has(kind: Kind) -> None:
    known = VALIDATIONS[kind]
    text = (PAGES / known.page).read_text("utf-8")
    found = re.search(LINES[kind], text, re.DOTALL)
    assert found is not None
    assert [float(each) / 100 for each in found.groups()] == pytest.approx(
        [known.median, known.p90]
    )
    assert f"{known.median:.1%}" in words(kind)


def test_predictions_that_were_not_held_against_measurements_are_named() -> None:
    plan = {"device": "cpu", "spec": {"strategy": {"name": "ddp"}}}
    assert of_plan(plan) == "one machine"
    assert of_plan({**plan, "spec": {"strategy": {"name": "pipeline", "stages": 2}}}) == "pipelines"
    assert of_plan({**plan, "device": "gpu"}) is None
    assert of_plan({**plan, "task": {}}) is None
    assert of_rate({**plan, "device": "gpu"}) == "from one"
    assert of_rate({**plan, "device": "gpu", "task": {}}) is of_rate(plan) is None
    assert [of_scaling(each) for each in (4, 8, 15, 16, 64, 512)] == [
        None,
        "from at most 8",
        "from at most 8",
        "from at most 16",
        "from 64",
        "from 64",
    ]
    assert words(None) == NOT_VALIDATED
