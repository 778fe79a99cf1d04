"""Check that an image works and contains what its JSON file lists: the image's own %test.

`python -m raysuite.images.selftest` imports the required parts of raysuite and every part that
/etc/raysuite-image.json lists, and prints their versions.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from raysuite.images.recipe import FACTS
from raysuite.parts import PARTS, part

ALWAYS = (*(part.module for part in PARTS if part.required), "raysuite.cli")


def failures(facts: dict[str, Any]) -> list[str]:
    """A message for each part that is missing or broken. Prints the parts that work."""
    wrong = []
    for name in (*ALWAYS, *(part(extra).module for extra in facts["extras"])):
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a broken library may raise any exception
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        print(f"{name} {getattr(module, '__version__', '')}".rstrip(), flush=True)
    if Path("/.singularity.d/libs/libcuda.so.1").exists():  # only with --nv; a build has no GPU
        tried = [sys.executable, "-m", "raysuite.orchestrate.part_trials", "gpu"]
        done = subprocess.run(tried, stderr=subprocess.PIPE, text=True, check=False)
        wrong += [f"GPU: {done.stderr.strip()}"] if done.returncode else []
    return wrong + (_horovod(facts) if "horovod" in facts["extras"] else [])


def _horovod(facts: dict[str, Any]) -> list[str]:
    try:
        import horovod.torch as hvd
    except Exception:
        return []  # `failures` has reported it
    wanted = {"gloo": hvd.gloo_built()}
    if facts["variant"] != "cpu":
        wanted["nccl"] = hvd.nccl_built()
    return [f"horovod is built without {name}" for name, built in wanted.items() if not built]


if __name__ == "__main__":
    found = failures(json.loads(Path(FACTS).read_text("utf-8")))
    sys.exit("\n".join(found) or None)
