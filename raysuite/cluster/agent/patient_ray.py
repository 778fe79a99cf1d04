"""`ray start`, with more patience than its own half a minute for a node to register.

Ray's helpers are Python programs. Where they are read from a busy shared file system, or a node
is busy, they take longer, and `ray start` gives up ("The current node timed out during startup").
Where the raylet has died meanwhile there is nothing to wait for: it ends, and shows why.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psutil

PATIENCE_S = 240.0
_STEP_S = 0.5
_LOGS = ("raylet.err", "runtime_env_agent.err", "dashboard_agent.err", "raylet.out")
_TAIL = 1500


def main() -> None:
    """As `ray` on the command line."""
    from ray._private import services
    from ray.exceptions import RaySystemError
    from ray.scripts import scripts

    find = services.get_node

    def find_patiently(*arguments: Any, **named: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return find(*arguments, **named)
            except (RuntimeError, RaySystemError):  # not there yet; the GCS is silent
                if time.monotonic() > deadline:
                    raise
            if not raylet_lives():
                sys.exit(f"the raylet died while it started\n{tails(temp_folder(sys.argv))}")
            time.sleep(_STEP_S)

    services.get_node = find_patiently
    scripts.main()


def raylet_lives() -> bool:
    """Whether this process has a raylet; Ray asks for its node when it has started one."""
    for child in psutil.Process().children():
        try:
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            continue
    return False


def temp_folder(words: list[str]) -> Path:
    """What a command line of ours gives Ray as its folder."""
    option = "--temp-dir="
    return Path(next(word.removeprefix(option) for word in words if word.startswith(option)))


def tails(temp: Path) -> str:
    """The ends of the logs that show why a raylet ended."""
    logs = temp / "session_latest" / "logs"
    found = ((name, logs / name) for name in _LOGS)
    texts = ((name, file.read_text("utf-8", "replace")) for name, file in found if file.exists())
    return "\n".join(f"--- {name}\n{text[-_TAIL:].strip()}" for name, text in texts if text)


if __name__ == "__main__":
    main()
