from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.orchestrate import part_trials
from raysuite.orchestrate.part_trials import Finding, State


def finding(name: str, state: State, *, required: bool = True) -> Finding:
    return Finding(name, "1.0", state, "a [note]", "make setup", required, seconds=0.1)


def run(monkeypatch: pytest.MonkeyPatch, *findings: Finding, words: tuple[str, ...] = ()) -> Result:
    monkeypatch.setattr(part_trials, "try_parts", lambda: iter(findings))
    return CliRunner().invoke(app, ["doctor", *words])


@pytest.mark.parametrize(
    ("other", "code", "said"),
    [
        (finding("torch", State.WORKS), 0, "Everything works."),
        (finding("GPU", State.MISSING, required=False), 0, "missing optional parts: GPU"),
        (finding("torch", State.MISSING), 1, "To fix: torch."),
        (finding("torch", State.SLOW), 1, "To fix: torch."),
        (finding("horovod", State.BROKEN, required=False), 1, "To fix: horovod."),
    ],
)
def test_a_fault_exits_with_1_and_is_named(
    monkeypatch: pytest.MonkeyPatch, other: Finding, code: int, said: str
) -> None:
    done = run(monkeypatch, finding("ray", State.WORKS), other)
    assert (done.exit_code, done.stdout.count("a [note]")) == (code, 2)
    assert said in done.stdout


def test_json_is_all_that_stdout_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, finding("ray", State.BROKEN), words=("--json",))
    data = json.loads(done.stdout)
    assert (done.exit_code, data["ok"]) == (1, False)
    assert (data["parts"][0]["state"], data["parts"][0]["fix"]) == ("broken", "make setup")
