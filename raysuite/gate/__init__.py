"""The gate: no throughput is reported before the arithmetic of the strategy is checked.

docs/explanation/gate.md describes what is checked, the bounds, and the errors that the gate cannot
find. `raysuite.gate.check` offers the checks as a function for other people's code; it needs only
torch.
"""

from raysuite.gate.library import Checked, check

__all__ = ["Checked", "check"]
