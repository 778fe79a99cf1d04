"""The gate: no throughput is reported before the arithmetic is checked.

The strategy under test trains a small network for a few steps, with the run's own accumulation and
label smoothing, in fp32 and without clipping. Afterwards

1. all ranks must hold bit-equal weights, and
2. weights, logits and losses must equal those of one process that trained on the same global
   batches, up to a relative error of 1e-5.

This is done with SGD. It is repeated with the run's own optimiser, if that is not SGD or does not
decay all parameters; with a norm that clips every step, if the run clips; and with several
reductions per step, as the small network otherwise fills only a part of one bucket.

If the run uses 16 bits, it is also repeated in 16 bits, with and without that norm, against one
process in fp32, to a loose bound: a wrong loss scale changes values by a factor, and rounding by
some 1 %. If the run has options that change the arithmetic on purpose (compression), steps are also
taken with them: rule 1 applies, and they determine the error bound of each parameter's gradient.

See docs/explanation/gate.md for the errors that the gate finds, and those that it cannot find.
`raysuite.gate.check` offers these checks as a function for other people's code, and needs only
torch.
"""

from raysuite.gate.library import Checked, check

__all__ = ["Checked", "check"]
