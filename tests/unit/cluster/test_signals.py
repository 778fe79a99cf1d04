"""What ends an agent: a signal, or the file that `cluster down` leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AGENT = """
import sys, time
from pathlib import Path
from raysuite.cluster.agent.node import Signals
signals = Signals(Path(sys.argv[1]))
signals.mark = Path(sys.argv[2])
began = time.monotonic()
signals.wait(0.05)
assert time.monotonic() - began >= 0.05
assert not signals.ended
print("waiting", flush=True)
while not signals.ended:
    signals.wait(1000)
print("warned" if signals.take_warning() else "ended", flush=True)
"""


@pytest.mark.parametrize("how", ["file", "TERM"])
def test_an_agent_hears_of_its_end(how: str, tmp_path: Path) -> None:
    end = tmp_path / "end"
    mark = tmp_path / "ending"
    command = [sys.executable, "-c", AGENT, str(end), str(mark)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "waiting\n"
        if how == "file":
            end.touch()
        else:
            agent.terminate()
        assert agent.stdout.readline() == "ended\n"
    assert agent.returncode == 0
    assert mark.exists() == (how == "TERM")
