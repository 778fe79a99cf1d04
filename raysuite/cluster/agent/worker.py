"""Every node but the first: joins the head, and joins again after it was cut off."""

from __future__ import annotations

import logging
import time

from raysuite.cluster.agent.addresses import find_address
from raysuite.cluster.agent.node import NodeFailedError, ThisNode
from raysuite.cluster.agent.ray_process import answers, refuses
from raysuite.cluster.files import Head

_REJOIN_AFTER_S = 5.0
_HEAD_SILENT_S = 90.0
"""How long a head may be out of reach, after Ray has given it up, before its nodes do."""
_KNOCK_EACH_S = 5.0
_REFUSALS = 3
"""After so many in a row its host is there, and Ray's head is not."""
_NEW_HEAD_S = 20.0
"""How long a head has to answer elsewhere, before its agent is taken to be dead as well."""
log = logging.getLogger("raysuite.cluster")


class WorkerNode:
    """Runs until a signal ends it, or the head has ended. Raises NodeFailedError."""

    def __init__(self, node: ThisNode) -> None:
        self._node = node
        self._joined = ""
        """Where the head answered that this node joined last."""

    def run(self) -> None:
        node = self._node
        node.say("starting", "waiting for the head")
        attempt = 0
        while not node.signals.ended and not self._head_ended():
            head = self._find_head()
            if head is None:
                return
            if self._join(head, attempt):
                self._stay(head)
            node.end_ray()
            attempt += 1
            if not node.signals.ended and not self._head_ended():
                node.say("starting", "Ray ended here; joining again")
                node.signals.wait(_REJOIN_AFTER_S)

    def end(self) -> None:
        self._node.end()

    def _find_head(self) -> Head | None:
        """The head of this start of the step, once it can be reached; None at the end."""
        node = self._node
        timeout = _HEAD_SILENT_S
        if not self._joined:
            timeout = max(timeout, float(node.cluster.site.start_timeout_seconds))
        began = time.monotonic()
        while not node.signals.ended and not self._head_ended():
            head = node.folder.head()
            if head is not None and head.incarnation == node.place.incarnation:
                host, _, port = head.gcs.rpartition(":")
                if answers(host, int(port)):
                    node.took("head", began)
                    return head
                closed = head.gcs == self._joined and refuses(host, int(port))
                if closed and time.monotonic() - began > _NEW_HEAD_S:
                    raise NodeFailedError(f"the head {head.host} is gone: {head.gcs} is closed")
            if time.monotonic() - began > timeout:
                raise NodeFailedError(f"no head could be reached within {timeout:.0f} s")
            node.signals.wait(0.5)
        return None

    def _join(self, head: Head, attempt: int) -> bool:
        node = self._node
        began = time.monotonic()
        node.address = find_address(node.cluster.site, head.gcs.rpartition(":")[0])
        node.take_ports(attempt)
        node.start_ray(head.gcs, node.environment(head.mlflow))
        while not node.signals.ended and not node.ray_ended():
            if answers(node.address, node.ports.node_manager):
                node.took("ray", began)
                node.say("joined")
                self._joined = head.gcs
                return True
            node.signals.wait(0.5)
        return False

    def _stay(self, head: Head) -> None:
        node, knocked, refusals = self._node, time.monotonic(), 0
        host, _, port = head.gcs.rpartition(":")
        while not node.signals.ended and not node.ray_ended() and not self._head_ended():
            node.children.reap()
            node.signals.wait(1.0)
            if time.monotonic() - knocked > _KNOCK_EACH_S:
                knocked = time.monotonic()
                refusals = refusals + 1 if refuses(host, int(port)) else 0
                if refusals == _REFUSALS:
                    return

    def _head_ended(self) -> bool:
        """Whether the head of this start has ended.

        Raises NodeFailedError where it failed, or where this node itself has.
        """
        self._node.check_step()
        for other in self._node.folder.nodes():
            if other.index == 0 and other.incarnation == self._node.place.incarnation:
                if other.state == "failed":
                    raise NodeFailedError(f"the head {other.host} failed: {other.message}")
                if other.state == "ended":
                    return True
        if self._node.folder.over.exists():  # it was killed, and could not say so
            raise NodeFailedError("the head's agent has ended")
        return False
