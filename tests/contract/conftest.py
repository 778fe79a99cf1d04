"""A Ray for the loader that needs one."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def running_ray() -> Iterator[None]:
    """A local Ray with one CPU, for this folder's tests of ray_data: other tests start their own.

    Its start, and the imports of its workers, take longer than all that these tests ask of it.
    """
    import ray
    from ray.data import DataContext

    temporary = tempfile.mkdtemp(prefix="rs", dir="/tmp")  # short: sockets lie below it
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fields that Ray deprecates, and sets here itself
        DataContext.get_current()
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=200 * 2**20,
            _temp_dir=temporary,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(path)}},
        )
    yield
    ray.shutdown()
    shutil.rmtree(temporary, ignore_errors=True)
