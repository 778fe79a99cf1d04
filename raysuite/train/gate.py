"""The gate: no speed is reported before the arithmetic is right.

A small network is trained for a few steps by the strategy under test, with the run's own
accumulation and label smoothing, in fp32 and without clipping. Afterwards

1. all ranks must hold bit-equal weights, and
2. weights, logits and losses must equal those of one process that trained on the same global
   batches, to a relative error of 1e-5.

That is done with SGD, and where the run has another optimiser, or spares some parameters its weight
decay, once more with the run's own. Where the run clips, it is done once more with a norm that
clips every step. Where it uses 16 bits, or options that change the arithmetic on purpose
(compression, Adasum), it is done once more as the run does it: rule 1 holds, and how far that leads
away is reported, not judged.

See docs/gate.md for what this finds and what it cannot.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import Any

import torch

from raysuite.parallel import make_strategy
from raysuite.parallel.base import StepSettings, Strategy, World
from raysuite.parallel.comm import Comm
from raysuite.plan import RunPlan
from raysuite.records import GateVerdict
from raysuite.spec.optimizers import OptimizerOptions
from raysuite.spec.strategies import StrategyOptions
from raysuite.train.examination import RATES, Comparison, comm_fault, compare, make_engine
from raysuite.train.verdicts import cache_file, known_pass, places

TOLERANCE = 1e-5
"""Largest relative error: some 100 roundings of fp32."""

_BITING_CLIP = 0.05
"""A gradient norm that the small network exceeds in every step."""


def check(plan: RunPlan, world: World, strategy: Strategy, facts: dict[str, Any]) -> GateVerdict:
    """The verdict on the plan's strategy at this world size, from the cache if it is known there.

    `facts` are `measure.environment()`'s: a verdict holds for the versions and the machines on
    which it was reached. Only passes are kept, and none of strategies whose code is not ours.
    All ranks must call it; rank 0's cache counts.
    """
    training, options = plan.spec.training, plan.spec.strategy
    settings = StepSettings(
        plan.micro_batch,
        plan.accumulate,
        training.clip_norm,
        training.precision,
        training.label_smoothing,
    )
    own = _own(plan.spec.optimizer)
    if options.name == "custom":
        return examine(options, world, strategy, settings, plan.run_id, own)
    engine = make_engine(strategy, world, settings)
    comm = engine.comm
    reachable = not comm_fault(comm, world)
    file = cache_file(options, world, settings, places(comm, facts) if reachable else [], own)
    known = known_pass(file) if reachable and world.rank == 0 else None
    found = reachable and _told_by_rank_0(comm, known is not None)
    engine.close()
    if found:
        verdict = known or known_pass(file) or _unread(options, world)
        return verdict.model_copy(
            update={"run_id": plan.run_id, "cached": True, "time": time.time()}
        )
    verdict = examine(options, world, strategy, settings, plan.run_id, own)
    if verdict.passed and world.rank == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(verdict.model_dump_json())
        partial.replace(file)
    return verdict


def examine(
    options: StrategyOptions,
    world: World,
    strategy: Strategy,
    settings: StepSettings | None = None,
    run_id: str = "",
    optimizer: OptimizerOptions | None = None,
) -> GateVerdict:
    """Train the small networks and judge. All ranks must call it, and get the same verdict.

    Of `settings`, the size of the micro-batch has no influence. With `optimizer`, the strategy is
    examined by that one too.
    """
    settings = settings or StepSettings(1)
    exact, judged = strategy, True
    if strategy.lossy:
        plain_options = without_loss(options)
        judged = plain_options is not None
        if plain_options is not None:
            exact = make_strategy(plain_options)
            exact.start(world)
    pure = replace(settings, precision="fp32", clip_norm=None)
    plain = [compare(exact, world, pure)]
    if plain[0].fault:
        return _verdict(options, world, run_id, message=plain[0].fault)
    if settings.clip_norm is not None:
        plain.append(compare(exact, world, replace(pure, clip_norm=_BITING_CLIP)))
    if optimizer is not None:
        plain.append(compare(exact, world, pure, optimizer=optimizer))
    batch_norm = compare(exact, world, pure, batch_norm=True)
    all_of_them = [*plain, batch_norm]
    rule = "ranks bit-equal; equal to one process on the same global batch"
    if optimizer is not None:
        rule += f", by {optimizer.name} too"
    remarks = []
    if (strategy.lossy and judged) or settings.precision != "fp32":
        own = compare(strategy, world, settings)
        all_of_them.append(own)
        how = " and ".join(
            [settings.precision] * (settings.precision != "fp32")
            + ["lossy options"] * strategy.lossy
        )
        rule += f"; with {how}: ranks bit-equal, distance reported and not judged"
        remarks.append(f"with {how} the weights differ by {own.weights:.1e}")
    if not judged:
        rule = "ranks bit-equal; lossy throughout, so the distance is reported and not judged"
    faults = _faults(all_of_them, [*plain, batch_norm] if judged else [])
    return _verdict(
        options,
        world,
        run_id,
        passed=not faults,
        ranks_equal=all(each.ranks_equal for each in all_of_them),
        error=max(each.error for each in plain),
        error_batchnorm=batch_norm.error,
        tolerance=TOLERANCE if judged else None,
        rule=rule,
        message="; ".join([*faults, *remarks]),
    )


def _own(optimizer: OptimizerOptions) -> OptimizerOptions | None:
    """A run's optimiser, without its rates; None where it is as the one of every examination."""
    if optimizer.name == "sgd" and optimizer.decay_bias_and_norm:
        return None
    return optimizer.model_copy(
        update={"lr": 1.0, "lr_reference_batch": None, "lr_scaling": "linear"}
    )


def _faults(compared: list[Comparison], judged: list[Comparison]) -> list[str]:
    """What is wrong, the gravest first."""
    faults = []
    if not all(each.ranks_equal for each in compared):
        faults.append("the ranks hold different weights: gradients are not synchronised")
    if any(math.isinf(each.error) for each in compared):
        faults.append("weights, logits or losses are not finite, or are not the network's")
    worst = max(judged, key=lambda each: each.error, default=None)
    if worst is not None and TOLERANCE < worst.error < math.inf:
        faults.append(
            f"its {worst.subject} differ by {worst.error:.1e} from one process on the same "
            f"global batch; at most {TOLERANCE:.0e} is rounding"
        )
    return faults


def _verdict(options: StrategyOptions, world: World, run_id: str, **found: Any) -> GateVerdict:
    failed = {
        "passed": False,
        "ranks_equal": False,
        "error": math.inf,
        "error_batchnorm": math.inf,
        "tolerance": TOLERANCE,
        "rule": "the strategy's collectives reach all ranks",
    }
    return GateVerdict(
        run_id=run_id,
        strategy=options.name,
        workers=world.size,
        steps=len(RATES),
        **{**failed, **found},
    )


def without_loss(options: StrategyOptions) -> StrategyOptions | None:
    """The same options without those that change the arithmetic; None where there are no such."""
    if options.name == "ddp":
        return options.model_copy(update={"compression": "none"})
    if options.name == "horovod":
        return options.model_copy(update={"compression": "none", "adasum": False})
    return None


def _told_by_rank_0(comm: Comm, known: bool) -> bool:
    return comm.all_reduce(torch.tensor([float(known)]), "max").item() > 0


def _unread(options: StrategyOptions, world: World) -> GateVerdict:
    """What a rank says that cannot see rank 0's cache; only rank 0's Records are written."""
    return _verdict(
        options,
        world,
        "",
        passed=True,
        ranks_equal=True,
        error=0.0,
        error_batchnorm=0.0,
        rule="known to rank 0",
    )
