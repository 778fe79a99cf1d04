"""A program that only waits until the process that started it ends. It replaces Ray's dashboard
agent, because a raylet does not start without that agent."""

import os
import time

parent = os.getppid()
while os.getppid() == parent:
    time.sleep(1.0)
