"""Of all tests: no property fails because the machine is busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("raysuite", deadline=None)
settings.load_profile("raysuite")
