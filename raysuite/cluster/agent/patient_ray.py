"""`ray start`, with more patience than its own half a minute for a node to register.

Ray's helpers are Python programs. Where they are read from a busy shared file system, or a node
is busy, they take longer, and `ray start` gives up ("The current node timed out during startup").
"""

from __future__ import annotations

import time
from typing import Any

PATIENCE_S = 240.0
_STEP_S = 0.5


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
            time.sleep(_STEP_S)

    services.get_node = find_patiently
    scripts.main()


if __name__ == "__main__":
    main()
