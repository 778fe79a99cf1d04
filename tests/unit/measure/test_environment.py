"""The environment: complete, cheap, and without secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import raysuite
from raysuite.measure import environment as environment_module
from raysuite.measure.environment import (
    IMAGE_FACTS,
    cuda_mistake,
    driver_version,
    environment,
    fingerprint,
    torch_built_with,
)


def test_it_is_plain_data_and_names_hardware_and_versions():
    found = json.loads(json.dumps(environment()))
    assert found["cpu"]["model"]
    assert found["cpu"]["logical_cores"] >= 1
    assert found["memory_bytes"] > 2**20
    assert isinstance(found["gpus"], list)
    assert found["versions"]["raysuite"]
    assert found["fingerprint"] == fingerprint(found)


def test_no_secret_of_the_environment_is_written(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "hush-hush-token")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush-hush-password")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = environment()
    assert "hush-hush" not in json.dumps(found)
    assert found["variables"]["OMP_NUM_THREADS"] == "3"


def test_the_fingerprint_follows_hardware_and_versions_alone():
    base = environment()
    same = {**base, "hostname": "other", "time": 0, "git": None, "slurm_job_id": "7"}
    same |= {"memory_bytes": 1, "cpu": {**base["cpu"], "logical_cores": 1, "usable_cores": 1}}
    same["versions"] = dict(reversed(base["versions"].items()))
    assert fingerprint(same) == base["fingerprint"]
    for change in (
        {"gpus": [{"name": "other"}]},
        {"versions": {"torch": "0"}},
        {"python": "0"},
        {"cpu": {**base["cpu"], "model": "other"}},
        {"cpu": {**base["cpu"], "architecture": "other"}},
    ):
        assert fingerprint({**base, **change}) != base["fingerprint"]


def test_gpus_are_listed_and_no_driver_means_none(monkeypatch):
    pynvml = pytest.importorskip("pynvml")

    class Memory:
        total = 80 * 2**30

    def broken() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", broken)
    assert environment()["gpus"] == []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "550.1")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: f"Made-up GPU {handle}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: Memory)
    assert environment()["gpus"] == [
        {"name": f"Made-up GPU {number}", "memory_bytes": 80 * 2**30, "driver": "550.1"}
        for number in (0, 1)
    ]


def test_amds_gpus_are_listed_where_there_are_none_of_nvidia(monkeypatch):
    class Smi:  # answers of AMD SMI's documentation; no such GPU is here
        AmdSmiException = OSError
        AmdSmiMemoryType = SimpleNamespace(VRAM="vram")
        is_broken, left = False, 0

        def amdsmi_get_processor_handles(self):
            return ["a", "b"]

        def amdsmi_get_gpu_asic_info(self, handle):
            if self.is_broken:
                raise OSError
            return {"market_name": f"GPU {handle}"}

        def amdsmi_get_gpu_memory_total(self, handle, kind):
            return {"vram": 2**30}[kind]

        def amdsmi_get_gpu_driver_info(self, handle):
            return {"driver_version": "6.1"}

        def amdsmi_shut_down(self):
            self.left += 1

    smi = Smi()
    monkeypatch.setattr(environment_module, "nvml", lambda: None)
    monkeypatch.setattr(environment_module, "amdsmi", lambda: smi)
    assert environment_module.gpus() == [
        {"name": f"GPU {handle}", "memory_bytes": 2**30, "driver": "6.1"} for handle in "ab"
    ]
    smi.is_broken = True
    assert environment_module.gpus() == []
    assert smi.left == 2


def test_the_job_the_container_and_the_usable_cores_are_those_of_this_process(monkeypatch):
    names = ("SLURM_JOB_ID", "SINGULARITY_CONTAINER", "APPTAINER_CONTAINER")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        found = environment(commits=False)
    finally:
        os.sched_setaffinity(0, before)
    assert (found["cpu"]["usable_cores"], found["slurm_job_id"], found["git"]) == (1, None, None)
    assert found["cpu"]["logical_cores"] == psutil.cpu_count()
    for name in names:
        monkeypatch.setenv(name, f"of {name}")
        found = environment(commits=False)
        assert found["slurm_job_id"] == "of SLURM_JOB_ID"
        assert name == "SLURM_JOB_ID" or found["container"] == f"of {name}"


def commit(file: Path) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for arguments in (["init", "-q"], ["add", str(file)], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *arguments], check=True)


def test_commit_and_dirty_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert environment()["git"] is None
    (tmp_path / "file").write_text("one")
    commit(tmp_path / "file")
    clean = environment()["git"]
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("two")
    assert environment()["git"] == {**clean, "dirty": True}


def test_a_checkout_around_an_installed_package_is_not_its_source(tmp_path, monkeypatch):
    """An environment `.venv` in the user's own repository."""
    installed = tmp_path / ".venv" / "site-packages" / "raysuite" / "__init__.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(raysuite, "__file__", str(installed))
    monkeypatch.chdir(tmp_path)
    assert environment()["source"] is None
    (tmp_path / "train.py").touch()
    commit(tmp_path / "train.py")
    found = environment()
    assert len(found["git"]["commit"]) == 40
    assert found["source"] is None
    commit(installed)
    found = environment()
    assert found["source"] == found["git"]
    assert environment(commits=False)["source"] is None


def test_it_is_cheap_and_imports_nothing_heavy():
    code = (
        "import sys; from raysuite.measure.environment import environment; environment();"
        "print([m for m in ('torch', 'ray', 'mlflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    seconds = []
    for _ in range(3):
        begin = time.process_time()  # other programs do not change it
        environment()
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.3


def test_an_image_is_known_by_what_its_build_left_in_it(monkeypatch, tmp_path):
    facts = tmp_path / "facts.json"
    monkeypatch.setattr("raysuite.measure.environment.IMAGE_FACTS", facts)
    assert environment()["image"] is None
    known = {"digest": "ab12", "variant": "cpu", "arch": "amd64", "commit": "c0", "built": "now"}
    facts.write_text(json.dumps({**known, "versions": {"torch": "2"}}))
    assert environment()["image"] == known
    facts.write_text("{")
    assert environment()["image"] is None


def test_the_image_and_its_reader_agree_on_the_file():
    from raysuite.images import recipe

    assert str(IMAGE_FACTS) == recipe.FACTS


@pytest.mark.parametrize(
    ("built", "offered", "driver", "words"),
    [
        ("13.2", 12020, "535.129.03", ("535.129.03", "CUDA 12.2", "driver 580", "cuda12")),
        ("12.8", 11040, "470.82.01", ("CUDA 11.4", "driver 525")),
        ("13.2", None, "535.129.03", ("libcuda.so.1", "--nv")),
        ("13.2", None, "", ("no NVIDIA driver", "driver 580")),
        (None, 13000, "580.65.06", ("without CUDA", "make setup")),
        ("13.2", 13000, "580.65.06", ()),
        ("12.8", 12020, "535.129.03", ()),
        ("12.8", 13020, "595.10", ()),
        ("13.2", 13020, "535.129.03", ()),  # by cuda-compat
    ],
)
def test_gpus_that_torch_can_and_cannot_use(
    built: str | None, offered: int | None, driver: str, words: tuple[str, ...]
) -> None:
    found = cuda_mistake(built, offered, driver)
    assert [word for word in words if word not in found] == []
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    "kind", ["NVIDIA UNIX x86_64 Kernel Module", "Open Kernel Module for x86_64"]
)
def test_the_kernels_driver(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(environment_module, "DRIVER_FILE", file)
    assert driver_version() == ""
    file.write_text(f"NVRM version: NVIDIA {kind}  535.129.03  Thu Oct 19\nGCC version: 12.3.0\n")
    assert driver_version() == "535.129.03"


def test_torchs_cuda_is_read_without_torch() -> None:
    import torch

    assert torch_built_with("cuda") == torch.version.cuda
