"""`raysuite verify`: what is asked, what is printed, and the exit code; nothing is started."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cli.verify import _validated
from raysuite.orchestrate import torchrun as launcher
from raysuite.orchestrate.torchrun import Request
from raysuite.plan import RunPlan
from raysuite.records import GateVerdict
from raysuite.spec.strategies import STRATEGY_OPTIONS, DdpOptions, HorovodOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What would have been launched; strategies named horovod fail."""
    requests: list[Request] = []

    def ask(request: Request) -> Iterator[tuple[int, GateVerdict]]:
        requests.append(request)
        for number, options in enumerate(request.strategies):
            good = options.name != "horovod"
            yield (
                number,
                GateVerdict(
                    run_id="",
                    strategy=options.name,
                    workers=request.workers,
                    passed=good,
                    ranks_equal=good,
                    error=1e-7 if good else math.inf,
                    error_batchnorm=2e-7 if good else math.inf,
                    tolerance=1e-5,
                    network="equal to one process" if request.plans else "",
                    rule="",
                    steps=4,
                    message="" if good else "it hangs",
                ),
            )

    monkeypatch.setattr(launcher, "verify", ask)
    return requests


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["verify", *arguments])


def test_strategies_and_settings_are_handed_on(asked: list[Request]) -> None:
    given = ("--strategy", "ddp", "--strategy", "{name: deepspeed, zero_stage: 3}")
    result = invoke(*given, "--workers", "4", "--accumulate", "3", "--clip-norm", "0.5")
    assert result.exit_code == 0
    (request,) = asked
    assert [options.name for options in request.strategies] == ["ddp", "deepspeed"]
    assert request.workers == 4
    assert request.settings == {"accumulate": 3, "clip_norm": 0.5, "precision": "fp32"}
    assert "deepspeed(zero_stage=3)" in result.stdout
    assert "1.0e-07" in result.stdout
    assert "2.0e-07" in result.stdout


def test_all_that_are_installed(asked: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysuite.parts.installed", lambda part: part in ("", "deepspeed"))
    assert invoke().exit_code == 0
    names = [options.name for options in asked[0].strategies]
    assert "horovod" not in names
    assert names.count("deepspeed") == 4
    assert set(names) >= {name for name, each in STRATEGY_OPTIONS.items() if not each.part} - {
        name for name, each in STRATEGY_OPTIONS.items() if not each.verified
    }


def test_one_for_cpus_alone_is_checked_there(asked: list[Request]) -> None:
    assert invoke("--strategy", "tensorflow").exit_code == 0
    assert asked[0].device == "cpu"
    for given, device in ((["ddp"], "auto"), (["ddp", "{name: jax}"], "cpu")):
        plans = _validated(given, 2, {"accumulate": 1}, None, None)
        assert {plan.spec.resources.device for plan in plans} == {device}
    for accumulate, batch in ((1, 8), (3, 24)):  # 4 samples of each worker at a time
        (plan,) = _validated(["ddp"], 2, {"accumulate": accumulate}, None, None)
        assert (plan.micro_batch, plan.global_batch) == (4, batch)


def test_a_failure(asked: list[Request]) -> None:
    result = invoke("--strategy", "ddp", "--strategy", "horovod")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "it hangs" in result.stdout
    assert "not be reported: horovod." in result.stdout


def test_json_has_no_infinities(asked: list[Request]) -> None:
    result = invoke("--strategy", "horovod", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert found["ok"] is False
    assert found["verdicts"][0]["error"] is None
    assert found["verdicts"][0]["options"]["name"] == "horovod"


def test_ones_own_network(asked: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def dry_batch(plans: list[RunPlan], document: object) -> Iterator[Any]:
        yield lambda: None

    monkeypatch.setattr("raysuite.orchestrate.preflight.dry_batch", dry_batch)
    data = "{name: imagenet, image_size: 96}"
    result = invoke("--model", "my_module:Net", "--data", data, "--precision", "bf16")
    assert result.exit_code in (0, 1)
    (request,) = asked
    assert [plan.spec.strategy for plan in request.plans] == list(request.strategies)
    plan = request.plans[0]
    assert (plan.spec.model.name, plan.dataset.image_size) == ("my_module:Net", 96)
    assert plan.spec.training.precision == "bf16"
    assert "error network" in " ".join(result.stdout.split())


def test_a_launch_holds_horovod_once() -> None:
    strategies = [DdpOptions(), HorovodOptions(), DdpOptions(), HorovodOptions(), DdpOptions()]
    request = Request(strategies, 2, {})
    assert launcher._together(request, [0, 1, 2, 3, 4]) == [0, 1, 2]
    assert launcher._together(request, [3, 4]) == [3, 4]


def test_the_last_line_of_a_crash(tmp_path: Any) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"noise \xff\nKeyError: 'x'\nmore noise\n")
    assert launcher._last_line(log) == "KeyError: 'x'"
    log.write_text("")
    assert launcher._last_line(log) == "no output"
