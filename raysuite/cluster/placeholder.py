"""A program that only waits, for as long as the process that started it lives.

It takes the place of Ray's dashboard agent, without which a raylet does not start.
"""

import os
import time

parent = os.getppid()
while os.getppid() == parent:
    time.sleep(1.0)
