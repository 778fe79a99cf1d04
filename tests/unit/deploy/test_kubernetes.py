"""The manifest of a run on Kubernetes fits what is locked here."""

from __future__ import annotations

import re

import setup_venv as setup
import yaml


def test_the_manifest_names_the_locked_ray_and_an_experiment_that_is_here() -> None:
    manifest = yaml.safe_load((setup.ROOT / "deploy/kubernetes/rayjob.yaml").read_text("utf-8"))
    locked = (setup.REQUIREMENTS / "base.txt").read_text("utf-8")
    found = re.search(r"^ray==(\S+)", locked, re.MULTILINE)
    assert found is not None
    cluster = manifest["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == found[1]
    assert cluster["authOptions"] == {"mode": "token"}
    program, verb, spec, *_ = manifest["spec"]["entrypoint"].split()
    assert (program, verb) == ("raysuite", "run")
    assert (setup.ROOT / spec.removeprefix("/shared/")).exists()


def test_every_container_finds_data_sets_on_the_shared_volume() -> None:
    manifest = yaml.safe_load((setup.ROOT / "deploy/kubernetes/rayjob.yaml").read_text("utf-8"))
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (claimed,) = (v["name"] for v in pod["volumes"] if "persistentVolumeClaim" in v)
        (container,) = pod["containers"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        (found,) = (e["value"] for e in container["env"] if e["name"] == "RAYSUITE_DATA")
        assert found.startswith(f"{mounts[claimed]}/")
