"""How a group of processes ends."""

from __future__ import annotations

import select
import subprocess
import sys

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


def test_a_process_ends_after_its_threads_and_exit_handlers_with_all_its_output() -> None:
    code = """if True:
        import atexit, sys, threading, time
        from raysuite.ending import end_process
        atexit.register(lambda: sys.stderr.write("handler "))
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread", end=" "))).start()
        atexit.register(print, "late", end="")
        end_process(3)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "thread late", "handler ")
