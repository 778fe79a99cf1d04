"""Muon for matrices, AdamW for all other parameters, as one optimiser.

torch's Muon accepts only matrices. The key `matrices` of a parameter group selects Muon or AdamW.
The key is in the group, because Horovod makes its own optimiser from the groups alone.
"""

from __future__ import annotations

from typing import Any

from torch.optim import AdamW, Muon, Optimizer


class MuonWithAdamW(Optimizer):
    """torch's Muon over groups with `matrices` True, and torch's AdamW over all other groups."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        """Each group has the settings of its optimiser; for missing ones, torch's defaults hold."""
        self._rules: dict[bool, Optimizer] = {
            matrices: rule(own)
            for matrices, rule in ((True, Muon), (False, AdamW))
            if (own := [group for group in groups if group["matrices"] == matrices])
        }
        super().__init__(groups, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for matrices, rule in self._rules.items():
            # frameworks and checkpoints may have replaced groups and state
            rule.param_groups = [each for each in self.param_groups if each["matrices"] == matrices]
            rule.state = self.state
            rule.step()
