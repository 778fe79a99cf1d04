"""Of unit tests: local time is not UTC, as where most users are, so that one in place of the other
is found."""

from __future__ import annotations

import os
import time

os.environ["TZ"] = "IST-5:30"  # in words of POSIX: ahead of UTC; no list of time zones is needed
time.tzset()
