"""The gate as a function for other people's code: `raysuite.gate.check`."""

from raysuite.gate.library import Checked, check

__all__ = ["Checked", "check"]
