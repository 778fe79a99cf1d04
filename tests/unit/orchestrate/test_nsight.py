"""nsys around the workers: what Ray is told, by Ray's own reading, and what is refused before."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.orchestrate.groups import runtime_env
from raysuite.orchestrate.preflight import lacking
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import parse_document


def plan_of(profile: str) -> RunPlan:
    text = (
        "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 64}\n"
        f"measure: {{profile: {profile}}}\n"
    )
    return make_plans(parse_document(text, "x.yaml"), gpus=1)[0]


def test_rays_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.runtime_env.nsight import parse_nsight_config
    from ray.runtime_env import RuntimeEnv

    plan = plan_of("nsight")
    monkeypatch.setenv("RAYSUITE_INTERFACE", "ib0")
    found = runtime_env(plan, tmp_path / "with space")
    assert found["env_vars"]["NCCL_SOCKET_IFNAME"] == "ib0"
    config = RuntimeEnv(**found).nsight()
    assert isinstance(config, dict)
    command = parse_nsight_config(config)
    assert command[:2] == ["nsys", "profile"]
    assert "--capture-range=cudaProfilerApi" in command
    assert "--capture-range-end=stop" in command, "the process lives on"
    folder = tmp_path / "with space" / "runs" / plan.run_id
    assert command[command.index("-o") + 1] == f"'{folder / 'nsight-%p'}'"
    assert folder.is_dir()


@pytest.mark.parametrize("profile", ["off", "torch"])
def test_others_run_as_they_are(tmp_path: Path, profile: str) -> None:
    assert runtime_env(plan_of(profile), tmp_path) == {}


def test_it_needs_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (mistake,) = lacking(plan_of("nsight"))
    assert mistake.key == "measure.profile"
    assert "install Nsight Systems, or set measure.profile to torch or off" in mistake.message
    assert lacking(plan_of("torch")) == []
    (tmp_path / "nsys").touch(mode=0o755)
    assert lacking(plan_of("nsight")) == []
