"""Messages between a trial's process and its workers reach the other side, and no others do."""

from __future__ import annotations

import json

import pytest
from torch.distributed import TCPStore

from raysuite.errors import RunError
from raysuite.orchestrate.mailbox import Mailbox


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    return Mailbox.serve()


def test_both_sides_get_what_the_other_put(mailbox: Mailbox) -> None:
    other = Mailbox.at(*mailbox.address)
    mailbox.put("job/0", {"plans": [1.5, float("inf")]})
    assert other.get("job/0") == {"plans": [1.5, float("inf")]}
    assert not mailbox.has("report/0/0")
    other.put("report/0/0", None)
    assert mailbox.has("report/0/0")
    assert mailbox.get("report/0/0") is None


def test_a_message_that_another_put_is_refused(mailbox: Mailbox) -> None:
    host, port, _ = mailbox.address
    mailbox.put("job/3", {"path": "/home/me", "plans": []})
    store = TCPStore(host, port)
    sent = json.loads(store.get("job/3"))
    Mailbox(store, host, "guessed").put("job/0", sent["message"])
    store.set("job/1", json.dumps({**sent, "message": {"path": "/tmp/theirs", "plans": []}}))
    store.set("job/2", json.dumps({**sent, "message": None}))
    store.set("job/4", json.dumps(sent))
    for number in (0, 1, 2, 4):
        with pytest.raises(RunError):
            mailbox.get(f"job/{number}")
    assert mailbox.get("job/3") == sent["message"]
