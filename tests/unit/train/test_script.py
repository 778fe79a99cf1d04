"""A script that is observed runs as it does by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import neighbour
class Local: pass
print(json.dumps([__name__, __file__, sys.argv, sys.path[0], Local.__module__, neighbour.X]))
import pickle
assert isinstance(pickle.loads(pickle.dumps(Local())), Local)
"""


def test_a_script_runs_as_it_does_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("X = 1")
    alone = [sys.executable, str(tmp_path / "train.py"), "--a", "b"]
    code = "import sys; from raysuite.train.script import run_script; run_script(sys.argv[1:])"
    observed = [sys.executable, "-c", code, *alone[1:]]
    outputs = [
        json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        for words in (alone, observed)
    ]
    assert outputs[0] == outputs[1]
