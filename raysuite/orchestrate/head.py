"""Whether an error of a trainer is the end of the cluster's head.

Its processes end one after the other, and the driver, which is one of the last, hears of it as an
actor that is unavailable.
"""

from __future__ import annotations

import socket
import time

from raysuite.errors import HeadLostError

PATIENCE_S = 10.0
"""How long the head may take to end after the first of its processes."""
_KNOCK_S = 3.0


def check_head() -> None:
    """Raise HeadLostError where Ray's head is ending, or has ended."""
    import ray

    knock(ray.get_runtime_context().gcs_address, PATIENCE_S)


def knock(address: str, patience_s: float) -> None:
    """Raise HeadLostError where HOST:PORT is closed, or closes within some seconds."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + patience_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()
        except OSError as error:
            raise HeadLostError(
                f"Ray's head at {address} is gone ({error}); the suite goes on when the cluster's "
                "head is started again, or with `raysuite run --resume-from RESULTS`"
            ) from error
        if time.monotonic() > end:
            return
        time.sleep(0.5)
