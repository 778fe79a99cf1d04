"""`raysuite scale`: each of its options is a key of the spec."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raysuite.cli import app, driver
from raysuite.cli.request import RunRequest
from raysuite.cli.scale import _name

OPTIONS: dict[str, tuple[str, Any]] = {
    "--name own": ("name", "own"),
    "--samples-per-step 96": ("script.samples_per_step", "96"),
    "--warmup-steps 3": ("measure.warmup_steps", 3),
    "--check": ("script.check", 10),
    "--profile": ("measure.profile", "torch"),
    "--cpus-per-worker 2": ("resources.cpus_per_worker", 2),
    "--device cpu": ("resources.device", "cpu"),
    "--stall 77": ("script.stall_s", 77),
    "--placement spread": ("resources.placement", "spread"),
}
DEFAULTS = {
    "name": "my-train",
    "script.samples_per_step": None,
    "measure.warmup_steps": 10,
    "script.check": None,
    "measure.profile": "off",
    "resources.cpus_per_worker": 1,
    "resources.device": "auto",
    "script.stall_s": 1800,
    "resources.placement": "pack",
}


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my train.py").touch()


def planned(*options: str) -> list[dict[str, Any]]:
    """The plans of a dry run."""
    words = ["--", "my train.py", "--lr", "{0.1 * workers}"]
    done = CliRunner().invoke(app, ["scale", "--dry-run", "--json", *options, *words])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def values(plan: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for key in DEFAULTS:
        value = plan["spec"]
        for part in key.split("."):
            value = value.get(part)
        found[key] = value
    return found


def test_without_options_it_has_the_documented_defaults() -> None:
    plans = planned()
    made = sorted((plan["repeat"], plan["workers"]) for plan in plans)
    assert made == [*itertools.product(range(3), (1, 2))]
    assert values(plans[0]) == DEFAULTS
    assert plans[0]["spec"]["script"]["command"] == ["my train.py", "--lr", "{0.1 * workers}"]


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_is_that_key_of_the_spec_alone(words: str) -> None:
    key, value = OPTIONS[words]
    (plan,) = planned("--workers", "4", "--repeats", "1", *words.split())
    assert values(plan) == {**DEFAULTS, key: value}
    assert plan["workers"] == 4


@pytest.mark.parametrize(
    "words", [[*OPTIONS], ["--workers 1,2,4", "--repeats 2"], ["--resume", "--retry-failed"]]
)
def test_the_recorded_command_has_the_options_of_its_runs(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunRequest] = []
    monkeypatch.setattr(driver, "run_suite", lambda request, dry_run: asked.append(request))
    given = [part for each in words for part in each.split()]
    command = ["scale", *given, "--quiet", "--", "my train.py", "--lr", "{0.1 * workers}"]
    assert CliRunner().invoke(app, command).exit_code == 0
    recorded = shlex.split(asked[0].command())
    assert recorded[:2] == ["raysuite", "scale"]
    assert "--quiet" not in recorded
    assert CliRunner().invoke(app, recorded[1:]).exit_code == 0
    first, again = asked
    assert first.document is not None
    assert again.document is not None
    assert again.document.data == first.document.data
    assert (again.resume, again.retry_failed) == (first.resume, first.retry_failed)
    assert again.command() == first.command()


def test_results_are_named_by_the_script_or_module() -> None:
    names = {("../a b.py", "-m"): "a-b", ("-m", "package.train", "x"): "package.train"}
    names |= {("-m",): "m", ("_.py",): "script"}
    assert {words: _name(list(words)) for words in names} == names


def test_a_mistake_of_a_script_is_reported_without_a_network_that_it_does_not_have() -> None:
    done = CliRunner().invoke(app, ["scale", "--dry-run", "--", "my train.py", "{64 // wrkers}"])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: 1 mistake\n"), done.stderr
    assert "  command line: script.command: " in done.stderr  # which has no lines
    assert "wrkers" in done.stderr


@pytest.mark.parametrize("words", [[], ["--deep"], ["--deep", "--gpus", "4"]])
def test_the_spec_of_a_script_is_planned_without_a_network(words: list[str]) -> None:
    Path("spec.yaml").write_text("name: own\nscript: {command: ['my train.py']}\n")
    done = CliRunner().invoke(app, ["plan", "spec.yaml", *words])
    assert done.exit_code == 0, done.output
    assert "my train.py · 1 worker" in done.stdout
