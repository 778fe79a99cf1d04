"""The gate: no throughput is reported before the arithmetic is checked.

The strategy under test trains a small network for a few steps, with the run's own accumulation and
label smoothing, in fp32 and without clipping. Afterwards

1. all ranks must hold bit-equal weights, and
2. weights, logits and losses must equal those of one process that trained on the same global
   batches, up to a relative error of 1e-5.

These checks use SGD. They are repeated with the run's own optimiser (unless that is SGD with weight
decay of all parameters), with a clip norm that every step exceeds (if the run clips), and with
several reductions per step (because the small network's gradients otherwise fill only a part of one
bucket).

If the run uses bf16 or fp16, the checks are repeated in this format, with and without the clip
norm, and compared with one process in fp32. Here the bound is loose: rounding changes values by
some 1 %, a wrong loss scale by a factor of two or more. If the run has options that change the
arithmetic on purpose (compression), the strategy also takes steps with these options: rule 1
applies, and the options determine the error bound of each parameter's gradient.

See docs/explanation/gate.md for the errors that the gate finds, and those that it cannot find.
`raysuite.gate.check` offers these checks as a function for other people's code, and needs only
torch.
"""

from raysuite.gate.library import Checked, check

__all__ = ["Checked", "check"]
