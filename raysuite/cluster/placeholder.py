"""A program that only waits until the process that started it ends. It is started
in place of Ray's dashboard agent, which raysuite does not need: a raylet does not start without
such a process."""

import os
import time

parent = os.getppid()
while os.getppid() == parent:
    time.sleep(1.0)
