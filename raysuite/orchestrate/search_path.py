"""Where Ray's workers look for modules: for raysuite where the driver has it, then beside the spec.

Ray puts the driver's working folder at the head of its workers' search path. In a checkout of
raysuite they would import that checkout, whatever the driver runs: an image, or another version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import raysuite

if TYPE_CHECKING:
    from ray.job_config import JobConfig


def job_config() -> JobConfig:
    """For `ray.init`; Ray's own where the working folder hides nothing."""
    from ray.job_config import JobConfig

    here, ours = Path.cwd(), Path(raysuite.__file__).resolve().parents[1]
    if ours == here.resolve() or not (here / "raysuite" / "__init__.py").exists():
        return JobConfig()

    class OwnPath(JobConfig):
        """Ray adds the working folder last, and so in front, unless it was uploaded."""

        def _runtime_env_has_working_dir(self) -> bool:
            return True

    # each is put before the one above
    return OwnPath(_py_driver_sys_path=[os.fspath(here), os.fspath(ours)])
