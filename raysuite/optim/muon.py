"""Muon for matrices, AdamW for all other parameters, as one optimiser.

torch's Muon accepts only matrices. The key `matrices` of a parameter group selects Muon or AdamW.
The key is in the group, because Horovod makes its own optimiser from the groups alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import AdamW, Muon, Optimizer


class MuonWithAdamW(Optimizer):
    """torch's Muon over groups with `matrices` True, and torch's AdamW over all other groups."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        adjust_lr: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        """A group's own settings take precedence over these arguments."""
        rules: dict[bool, Callable[..., Optimizer]] = {
            True: partial(Muon, momentum=momentum, nesterov=nesterov, adjust_lr_fn=adjust_lr),
            False: partial(AdamW, betas=betas, eps=eps),
        }
        self._rules: dict[bool, Optimizer] = {
            matrices: rule(own, lr=lr, weight_decay=weight_decay)
            for matrices, rule in rules.items()
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
