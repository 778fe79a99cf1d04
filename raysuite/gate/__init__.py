"""The gate: no speed is reported before the arithmetic is right.

A small network is trained for a few steps by the strategy under test, with the run's own
accumulation and label smoothing, in fp32 and without clipping. Afterwards

1. all ranks must hold bit-equal weights, and
2. weights, logits and losses must equal those of one process that trained on the same global
   batches, to a relative error of 1e-5.

That is done with SGD, and where the run has another optimiser, or spares some parameters its weight
decay, once more with the run's own. Where the run clips, it is done once more with a norm that
clips every step. It is done once more with several reductions a step: the small network fills a
part of one bucket otherwise.

Where the run uses 16 bits, it is done in them too, with and without that norm, against one process
in fp32, to a loose bound: a wrong loss scale is wrong by a factor, and rounding by some 1 %.
Where it has options that change the arithmetic on purpose (compression), steps are made with them
too: rule 1 holds, and each parameter's gradient is held to a bound that follows from the options.

See docs/explanation/gate.md for what this finds and what it cannot. `raysuite.gate.check` is the
same idea as a function for other people's code, which needs torch alone.
"""

from raysuite.gate.library import Checked, check

__all__ = ["Checked", "check"]
