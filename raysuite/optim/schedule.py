"""Learning-rate schedules as a pure function of the step.

Aach et al. 2023, "Large scale performance analysis of distributed deep learning frameworks for
convolutional neural networks" (doi 10.1186/s40537-023-00765-w), compare step, cosine and
exponential decay after a linear warm-up. You et al. 2017, "Large Batch Training of Convolutional
Networks" (arXiv:1708.03888), use the polynomial schedule.
"""

from __future__ import annotations

import math

from raysuite.spec.optimizers import (
    ConstantOptions,
    CosineOptions,
    ExponentialOptions,
    PolynomialOptions,
    ScheduleOptions,
    StepOptions,
)


def factor(options: ScheduleOptions, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """The learning rate of an optimiser step, relative to the full rate: in [0, 1].

    `step` counts from 0 over the whole run of `total_steps`. With s = step and E = steps_per_epoch,
    warm-up takes W = round(warmup_epochs * E) steps, and t = s - W:

        warm-up, s < W   (s + 1) / W                          the last step has the full rate
        constant         1
        step             factor ^ (number of milestones m with s >= round(m * E))
                         milestones count from the start of the run, warm-up included
        cosine           min + (1 - min) / 2 * (1 + cos(pi * t / (total_steps - W)))
        exponential      gamma ^ floor(t / E)                 changes once an epoch
        polynomial       min + (1 - min) * (1 - t / (total_steps - W)) ^ power

    Cosine and polynomial change at every step. They would reach `min_factor` at step `total_steps`,
    which is one step after the last.
    """
    step = min(step, total_steps)
    warmup = warmup_steps(options, steps_per_epoch)
    if step < warmup:
        return (step + 1) / warmup
    since = step - warmup
    progress = since / max(1, total_steps - warmup)
    match options:
        case ConstantOptions():
            return 1.0
        case StepOptions():
            passed = sum(step >= round(m * steps_per_epoch) for m in options.milestones)
            return float(options.factor**passed)
        case CosineOptions():
            low = options.min_factor
            return low + (1 - low) / 2 * (1 + math.cos(math.pi * progress))
        case ExponentialOptions():
            return float(options.gamma ** (since // steps_per_epoch))
        case PolynomialOptions():
            low = options.min_factor
            return float(low + (1 - low) * (1 - progress) ** options.power)


def warmup_steps(options: ScheduleOptions, steps_per_epoch: int) -> int:
    """Number of optimiser steps in the linear warm-up."""
    return round(options.warmup_epochs * steps_per_epoch)
