"""Time shares with a known truth: what sleeps says itself how long, in the same run.

Truth and finding are of the same steps, so that both change on a busy machine.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.launches import found_by
from tests.contract.shares_worker import PER_RANK, SLEEP, STEPS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

POINTS = 0.05
"""How far a share may be from the truth, of the window."""
OURS = "tests.strategies.sleeping"
SLEEPY = {"seconds": SLEEP / PER_RANK}


def custom(name: str, **options: float) -> dict[str, Any]:
    return {"name": "custom", "target": f"{OURS}:{name}", "options": options}


STRAGGLER: dict[str, Any] = {"data": {**SLEEPY, "sleepy": [1]}}
REQUESTS: dict[str, dict[str, Any]] = {
    "ddp": {
        "loader": {"strategy": custom("Noting"), "data": SLEEPY},
        "hook": {"strategy": custom("SleepingHook", seconds=SLEEP), "data": {}},
        "by hand": {"strategy": custom("ByHand", seconds=SLEEP), "data": {}},
        "straggler": {"strategy": {"name": "ddp"}, **STRAGGLER},
    },
    "horovod": {"straggler": {"strategy": {"name": "horovod"}, **STRAGGLER}},
    "deepspeed": {"straggler": {"strategy": {"name": "deepspeed"}, **STRAGGLER}},
}


def launched(framework: str, requests: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """By rank: request -> what was found."""
    return found_by(framework, 2, "shares_worker", requests or REQUESTS[framework])


def share(found: dict[str, Any], part: str, rank: int) -> float:
    profile = found["profile"]
    value: float = profile[f"{part}_seconds"][rank] / profile["window_seconds"][rank]
    return value


def outside(request: str, part: str, truth: str, rank: int) -> str:
    """How far a share is from the truth: between what slept and the time around it.

    A machine that stands still for a tenth of a second puts that anywhere: once more then.
    """
    for requests in (None, {request: REQUESTS["ddp"][request]}):
        found = launched("ddp", requests)[rank][request]
        least, most = (seconds / found["window"] for seconds in found[truth])
        assert least * found["window"] >= STEPS * SLEEP
        value = share(found, part, rank)
        if least - POINTS <= value <= most + POINTS:
            return ""
    return f"{value:.3f} is not within {least:.3f} to {most:.3f}"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("part", ["data", "data_exposed"])
def test_a_loader_that_sleeps_is_loading(part: str, rank: int) -> None:
    assert outside("loader", part, "loading", rank) == ""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("part", ["communication", "communication_exposed"])
@pytest.mark.parametrize("request_", ["hook", "by hand"])
def test_an_all_reduce_that_sleeps_is_exposed(request_: str, part: str, rank: int) -> None:
    assert outside(request_, part, "synchronising", rank) == ""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("request_", ["loader", "hook", "by hand"])
def test_the_window_is_its_steps(request_: str, rank: int) -> None:
    found = launched("ddp")[rank][request_]
    assert found["profile"]["steps"] == STEPS
    assert found["profile"]["window_seconds"][rank] == pytest.approx(found["window"], rel=POINTS)


def test_what_does_not_sleep_is_told_by_its_seconds() -> None:
    """Sleep adds to its own part: the seconds of the other stay far below it."""
    loader, hook = (launched("ddp")[0][name] for name in ("loader", "hook"))
    assert hook["profile"]["data_seconds"][0] < loader["profile"]["data_seconds"][0] / 2
    exposed = "communication_exposed_seconds"
    assert loader["profile"]["data_seconds"][0] > STEPS * SLEEP
    assert hook["profile"][exposed][0] > STEPS * SLEEP


@pytest.mark.parametrize("framework", ["ddp", "horovod", "deepspeed"])
def test_who_waits_for_a_straggler_communicates(framework: str) -> None:
    """Rank 1 sleeps in its loader, and rank 0 in the collective that rank 1 comes late to."""
    found = launched(framework)[0]["straggler"]
    profile = found["profile"]
    assert profile["data_seconds"][1] >= STEPS * SLEEP
    assert profile["data_seconds"][0] < STEPS * SLEEP / 2
    assert profile["communication_exposed_seconds"][0] > STEPS * SLEEP / 2
    assert found["slowest"] == 1
    sources = {"horovod": ["timeline", "waits"]}
    assert set(profile["sources"]) >= set(sources.get(framework, ["torch.distributed"]))


@pytest.mark.parametrize("framework", ["ddp", "horovod", "deepspeed"])
def test_a_profile_is_beside_the_training(framework: str) -> None:
    found = launched(framework)[0]["straggler"]
    assert found["kinds"].count("time_shares") == 1
    assert found["kinds"][-2:] == ["time_shares", "run_finished"]
    assert found["images"] == [32]
    assert found["profile"]["seconds"] > found["profile"]["window_seconds"][0]
    assert found["profile"]["trace"] in found["files"]
    assert found["traced"]["raysuite::step"] >= STEPS
    assert found["traced"]["aten::conv2d"] >= STEPS
    assert ("horovod-timeline.json" in found["files"]) == (framework == "horovod")
    for rank in (0, 1):
        parts = ("computation", "communication_exposed", "data_exposed")
        assert sum(share(found, part, rank) for part in parts) <= 1 + 1e-9
