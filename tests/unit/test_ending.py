"""How a group of processes ends."""

from __future__ import annotations

import select
import subprocess

from raysuite.ending import end_group

FAMILY = """\
(trap '' TERM; echo ready; exec sleep 8) &
wait
"""


def test_a_child_that_ignores_sigterm_ends_with_its_group() -> None:
    words = ["/bin/sh", "-c", FAMILY]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        end_group(process, 5.0)
        # it closes once no process of the group holds it any more
        assert select.select([process.stdout], [], [], 2.0)[0]
        assert process.stdout.read() == ""
