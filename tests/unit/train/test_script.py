"""A script that is observed runs as it does by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import neighbour
class Local: pass
print(json.dumps([__name__, __file__, sys.argv, sys.path[0], Local.__module__, neighbour.X]))
print("of stderr", file=sys.stderr)
import pickle
assert isinstance(pickle.loads(pickle.dumps(Local())), Local)
"""


def test_a_script_runs_as_it_does_by_itself_and_all_its_output_is_sent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("X = 1")
    output, own = tmp_path / "output", [str(tmp_path / "train.py"), "--a", "b"]
    output.touch()
    code = f"""
import pathlib, sys
from raysuite.train import script
script._redirect(pathlib.Path({str(output)!r}))
script.run_script(sys.argv[1:])
"""
    alone, _ = (
        subprocess.check_output([sys.executable, *words], stderr=subprocess.STDOUT)
        for words in (["-u", *own], ["-c", code, *own])
    )
    assert output.read_bytes() == alone
    assert alone.endswith(b", 1]\nof stderr\n")
