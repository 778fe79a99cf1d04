"""Language models: predict the next token at each position. The loss is the cross-entropy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raysuite.errors import UserError
from raysuite.spec.datasets import IGNORED_TOKEN
from raysuite.tasks.base import Metric, Task, within


def _correct(output: Tensor, targets: Tensor) -> Tensor:
    targets = targets.long()
    return ((output.argmax(-1) == targets) & (targets != IGNORED_TOKEN)).sum().reshape(1)


class LanguageModel(Task):
    """Inputs: tokens [b, t], int64. Output: logits [b, t, vocabulary]. Targets: the next tokens [b,
    t], with IGNORED_TOKEN where there is none.

    The loss of a step is the mean over the targets of the global batch that are not
    IGNORED_TOKEN.
    """

    unit = "tokens"
    metrics = (
        Metric(
            "perplexity",
            "Perplexity",
            "exp of the mean loss per token",
            value=lambda sums, total: math.exp(min(total.loss, 700.0)),
            higher_is_better=False,
        ),
        Metric(
            "next_token",
            "Next token",
            "Share of tokens that the network predicts correctly",
            value=lambda sums, total: sums[0] / total.weight,
            sums=_correct,
            unit="share",
        ),
    )
    weighted = True

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(
            output.flatten(0, 1),
            targets.flatten().long(),
            reduction="sum",
            ignore_index=IGNORED_TOKEN,
        )

    def weight(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED_TOKEN).sum()

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor] | None:
        """Random tokens and targets. At the end of each sequence, up to half of the targets are
        ignored. Returns None for a user's own data set, whose sequences may have any length."""
        facts, device = self.dataset, generator.device
        if not facts.sequence:
            return None
        shape = (count, facts.sequence)
        tokens, targets = (
            torch.randint(facts.classes, shape, generator=generator, device=device)
            for _ in range(2)
        )
        kept = torch.randint(
            (facts.sequence + 1) // 2,
            facts.sequence + 1,
            (count, 1),
            generator=generator,
            device=device,
        )
        places = torch.arange(facts.sequence, device=device)
        return tokens, targets.masked_fill(places >= kept, IGNORED_TOKEN)

    def check(self, output: Any, targets: Tensor) -> None:
        vocabulary = self.dataset.classes or "vocabulary"
        wanted = f"expected logits as one floating-point tensor {[*targets.shape]} x {vocabulary}"
        if not isinstance(output, Tensor) or not output.is_floating_point():
            kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
            raise UserError(
                f"its output is {kind}; {wanted}; return only the logits, or set model.name to a "
                "function that wraps the network in a module with only this output"
            )
        known = self.dataset.classes or output.shape[-1]
        if output.shape != (*targets.shape, known):
            raise UserError(
                f"its output has the shape {list(output.shape)}; {wanted}: sequences, tokens, "
                "vocabulary; give its constructor a parameter num_classes, or set the size of the "
                "vocabulary in model.options"
            )
        within(targets, 0, known - 1, IGNORED_TOKEN)
