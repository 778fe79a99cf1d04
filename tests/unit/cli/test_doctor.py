from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from raysuite.cli.doctor import doctor
from raysuite.orchestrate import part_trials
from raysuite.orchestrate.part_trials import Finding, State


def finding(name: str, state: State, *, required: bool = True) -> Finding:
    fix = "" if state is State.WORKS else "make setup"
    return Finding(name, "1.0", state, "a [note]", fix, required, seconds=0.1)


def run(monkeypatch: pytest.MonkeyPatch, *findings: Finding, json: bool = False) -> tuple[int, str]:
    def found() -> Iterator[Finding]:
        yield from findings

    monkeypatch.setattr(part_trials, "try_parts", found)
    app = typer.Typer()
    app.command()(doctor)
    result = CliRunner().invoke(app, ["--json"] if json else [])
    return result.exit_code, result.stdout


def test_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = run(monkeypatch, finding("ray", State.WORKS))
    assert code == 0
    assert "Everything works." in text
    assert "a [note]" in text


def test_a_missing_option_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = finding("GPU", State.MISSING, required=False)
    code, text = run(monkeypatch, finding("ray", State.WORKS), gpu)
    assert code == 0
    assert "optional and missing: GPU" in text


@pytest.mark.parametrize(
    "bad",
    [
        finding("ray", State.MISSING),
        finding("ray", State.BROKEN),
        finding("horovod", State.BROKEN, required=False),
    ],
)
def test_a_fault_exits_with_one(monkeypatch: pytest.MonkeyPatch, bad: Finding) -> None:
    code, text = run(monkeypatch, bad)
    assert code == 1
    assert f"To fix: {bad.name}." in text


def test_json_is_all_that_stdout_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = run(monkeypatch, finding("ray", State.BROKEN), json=True)
    data = json.loads(text)
    assert code == 1
    assert data["ok"] is False
    assert data["parts"][0]["state"] == "broken"
    assert data["parts"][0]["fix"] == "make setup"
