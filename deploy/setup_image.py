"""Make the Python environment of an image, from the files that its build copied into it.

Standard library only; runs as root inside the image that is being built. Its folder also has the
locked requirements, raysuite's wheel, and facts.json, the image's description.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

LENT = Path("/mnt")
"""Settings and a cache of the building machine, bound here during the build only."""
FACTS = Path("/etc/raysuite-image.json")
SHOWN = {"torch", "torchvision", "ray", "horovod", "deepspeed", "timm", "mlflow", "numpy"}
SHOWN |= {"nvidia-dali-cuda120", "nvidia-nccl-cu13"}


def environment() -> dict[str, str]:
    """The variables of the build: the building machine's settings, and the folders of caches."""
    lent = LENT / "settings.json"
    settings: dict[str, str] = json.loads(lent.read_text()) if lent.exists() else {}
    cache = LENT / "cache" if (LENT / "cache").is_dir() else Path("/var/tmp/raysuite-cache")
    settings |= {"RAYSUITE_CACHE": str(cache), "UV_CACHE_DIR": str(cache / "uv")}
    return settings | {"UV_LINK_MODE": "copy", "PYTHONNOUSERSITE": "1", "PIP_NO_CACHE_DIR": "1"}


def set_up(facts: dict[str, object]) -> None:
    """Install the environment in the image, and write the image's description."""
    import setup_venv as setup  # reads the variables set below

    uv = setup.private_uv()
    env = setup.uv_environment(uv)
    setup.run(uv, "venv", "--quiet", "--python", sys.executable, setup.VENV, env=env)
    extras = [str(name) for name in facts["extras"]]  # type: ignore[attr-defined]
    setup.say(f"installing the locked packages: base {' '.join(extras)}")
    install = (uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", setup.PYTHON)
    files = [setup.REQUIREMENTS / f"{name}.txt" for name in ("base", "tools", *extras)]
    if facts["variant"] == "cuda12":
        files[0].write_text(for_cuda12(files[0].read_text()))
        files.append(setup.REQUIREMENTS / "cuda12.txt")
    setup.run(*install, "--require-hashes", *(f"--requirement={path}" for path in files), env=env)
    if "horovod" in extras:
        setup.install_horovod(uv, env, setup.build_horovod(uv, env))
    (wheel,) = (setup.ROOT / "dist").glob("raysuite-*.whl")
    setup.run(*install, "--no-deps", wheel, env=env)
    setup.say("recording what the image holds")
    record(facts, setup.PYTHON)
    setup.LOG.unlink(missing_ok=True)
    shutil.rmtree("/var/tmp/raysuite-cache", ignore_errors=True)
    setup.say("the environment is complete")


def for_cuda12(base: str) -> str:
    """The requirements with cuda12.txt in place of torch and CUDA 13."""
    replaced = re.compile(
        r"(torch|torchvision|triton|cuda-[a-z0-9-]+|nvidia-(?!ml-py)[a-z0-9-]+)=="
    )
    kept, keep = [], True
    for line in base.splitlines(keepends=True):
        if not line[0].isspace():  # a requirement; the lines of its hashes follow
            keep = not replaced.match(line)
        kept += [line] if keep else []
    return "".join(kept)


def record(facts: dict[str, object], python: Path) -> None:
    """Write the image's description, and its labels for Apptainer."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name.lower(): d.version "
    code += "for d in m.distributions()}))"
    installed = json.loads(subprocess.check_output((python, "-c", code)))
    versions = {name: installed[name] for name in sorted(SHOWN & installed.keys())}
    built = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts |= {"built": built, "python": platform.python_version(), "versions": versions}
    FACTS.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
    labels = {"raysuite.digest": facts["digest"], "raysuite.version": facts["raysuite"]}
    labels |= {"raysuite.commit": facts["commit"] or "unknown", "raysuite.arch": facts["arch"]}
    labels |= {f"raysuite.{name}": version for name, version in versions.items()}
    if collected := os.environ.get("APPTAINER_LABELS"):
        with open(collected, "a") as file:
            file.writelines(f"{name} {value}\n" for name, value in labels.items())


if __name__ == "__main__":
    os.environ.update(environment())
    import horovod_wheel
    import setup_venv

    try:
        set_up(json.loads((setup_venv.ROOT / "facts.json").read_text()))
    except (setup_venv.SetupError, horovod_wheel.HorovodError) as error:
        sys.exit(f"setup: {error}")
