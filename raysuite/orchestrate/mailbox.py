"""Messages between the driver process of a trial and the workers of its run."""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from raysuite.errors import RunError
from raysuite.orchestrate.rendezvous import awaited, serve_store, store_at


class Mailbox:
    """JSON messages, each under its own key, in a TCPStore of the trial's driver process.

    The store has no authentication: without signatures, any user who can connect could make the
    workers import other modules, or report false epochs. So each message is signed together with
    its key. The secret is passed to the workers through Ray, which requires a token. (Messages
    through Ray itself would need an actor, one more process for each trial.)
    """

    def __init__(self, store: TCPStore, host: str, secret: str) -> None:
        self._store, self._host, self._secret = store, host, secret

    @classmethod
    def serve(cls) -> Mailbox:
        """Make a mailbox in this process."""
        return cls(*serve_store(), secrets.token_hex(32))

    @classmethod
    def at(cls, host: str, port: int, secret: str) -> Mailbox:
        """Connect to the mailbox of another process, by its `address`."""
        return cls(store_at(host, port), host, secret)

    @property
    def address(self) -> tuple[str, int, str]:
        """Host, port and secret."""
        return self._host, self._store.port, self._secret

    def put(self, key: str, message: Any) -> None:
        """Store a message under a key. Raises torch's DistError if the mailbox's process ended."""
        signed = {"message": message, "signature": self._signature(key, message)}
        self._store.set(key, json.dumps(signed))

    def has(self, key: str) -> bool:
        return self._store.check([key])

    def get(self, key: str) -> Any:
        """Wait for the message under a key. Raises RunError if its signature is wrong."""
        found = awaited(self._store, key)
        message = found["message"]
        if not hmac.compare_digest(str(found["signature"]), self._signature(key, message)):
            raise RunError(
                f"the message {key} in a trial's store has a wrong signature: neither the trial's "
                "driver nor its workers wrote it"
            )
        return message

    def _signature(self, key: str, message: Any) -> str:
        content = json.dumps([key, message], sort_keys=True)
        return hmac.new(self._secret.encode(), content.encode(), "sha256").hexdigest()
