"""Every locked package has a wheel for aarch64, apart from those that are built everywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import setup_venv as setup

BUILT = {"deepspeed", "horovod-source"}
"""Files whose package has no wheel for any processor: pip builds it from its source."""
FILES = sorted(setup.REQUIREMENTS.glob("*.txt"))


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_locked_packages_have_wheels_for_aarch64(file: Path) -> None:
    uv = setup.private_uv()
    words = [uv, "pip", "compile", file, "--quiet", "--no-deps", "--python-version", "3.11"]
    words += ["--python-platform", "aarch64-unknown-linux-gnu", "--only-binary", ":all:"]
    done = subprocess.run(words, env=setup.uv_environment(uv), capture_output=True, text=True)
    assert (done.returncode != 0) == (file.stem in BUILT), done.stderr
    if done.returncode:
        assert "no usable wheels" in done.stderr
