"""Check a strategy with a run's settings, and decide whether it passes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from raysuite import models
from raysuite.gate import own_network, small_network
from raysuite.gate.gradients import Gradients, compare_gradients
from raysuite.gate.rebuilt_network import TOLERANCE_REBUILT, compare_rebuilt
from raysuite.gate.small_network import RATES, TOLERANCE, Comparison, comm_fault, make_engine
from raysuite.gate.verdict_cache import VerdictCache, places
from raysuite.parallel import make_strategy
from raysuite.parallel.base import StepSettings, Strategy, World
from raysuite.parallel.comm import Comm
from raysuite.plan import RunPlan
from raysuite.records import GateVerdict
from raysuite.spec.optimizers import OptimizerOptions
from raysuite.spec.strategies import Lossy, StrategyOptions
from raysuite.train.building import build_model, step_settings

TOLERANCE_COMPILED = 1e-4
"""Largest allowed relative error with compiled networks. torch.compile fuses and reorders sums,
which changes the rounding, and the difference grows with each step."""

TOLERANCE_BF16_UPDATES = 1e-3
"""Largest allowed relative error with an optimiser that computes updates in bf16. A difference in
the last bit of fp32 sometimes becomes a difference in the last bit of bf16. Of 300 correct training
runs with Muon, five had an error above 1e-5, and one had 1.6e-4."""

TOLERANCE_16_BITS = 0.2
"""Largest allowed relative error of the updates, logits and losses in bf16 and fp16. In 84 correct
training runs per format, with ranks * micro-batches from 1 to 64, errors were at most 0.12 in bf16
and 0.03 in fp16."""
_TENSOR_16_BITS = 0.5
"""Largest allowed relative error of one tensor's update in bf16 and fp16; it was at most 0.3 in
correct training runs."""

_BITING_CLIP = 0.05
"""A limit for clipping that the gradient norm of the small network exceeds in every step."""


def check(plan: RunPlan, world: World, strategy: Strategy, facts: dict[str, Any]) -> GateVerdict:
    """Return the verdict on the plan's strategy with the plan's number of workers, and on the
    plan's network. Verdicts in the cache are used again.

    `facts` is the result of `measure.environment()`: a verdict holds only for the versions and
    machines with which it was made. Only passed checks of raysuite's own strategies are cached. All
    ranks must call this function; only rank 0's cache is used.
    """
    options = plan.spec.strategy
    # the small network's image size is fixed, so a verdict holds for runs with any image size
    settings = replace(step_settings(plan), image=StepSettings.image)
    comm = comm_of(options, world, strategy)
    cache = None
    if not options.imports and not comm_fault(comm, world):
        cache = VerdictCache(options, world, comm, places(comm, facts))
    verdict = _of_strategy(plan, world, strategy, settings, cache)
    if not verdict.passed or not options.gated:
        return verdict
    return _of_network(plan, world, strategy, settings, comm, cache, verdict)


def _of_strategy(
    plan: RunPlan,
    world: World,
    strategy: Strategy,
    settings: StepSettings,
    cache: VerdictCache | None,
) -> GateVerdict:
    """The verdict on the strategy, from training the small networks."""
    own = _own(plan.spec.optimizer)
    known = cache and cache.find(settings, own)
    if known:
        return known.model_copy(update={"run_id": plan.run_id, "cached": True, "time": time.time()})
    verdict = examine(plan.spec.strategy, world, strategy, settings, plan.run_id, own)
    if cache and verdict.passed:
        cache.keep(verdict, settings, own)
    return verdict


def _of_network(
    plan: RunPlan,
    world: World,
    strategy: Strategy,
    settings: StepSettings,
    comm: Comm,
    cache: VerdictCache | None,
    verdict: GateVerdict,
) -> GateVerdict:
    """Add the result for the plan's own network to the verdict on a strategy that passed."""
    models.check(plan.spec.model.name)  # on all ranks: if it raises, no rank waits for another
    key = own_network.key(plan)
    if not cache or key is None or plan.spec.strategy.own_network:
        return examine_network(verdict, plan, world, strategy, comm)
    of_network = replace(settings, clip_norm=None), None, key
    if known := cache.find(*of_network):
        same = ("error_network", "network", "network_seconds")
        return verdict.model_copy(update={name: getattr(known, name) for name in same})
    whole = examine_network(verdict, plan, world, strategy, comm)
    if whole.passed and whole.error_network is not None:
        cache.keep(whole, *of_network)
    return whole.model_copy(update={"cached": False})


def comm_of(options: StrategyOptions, world: World, strategy: Strategy) -> Comm:
    """The collectives that a strategy's engine uses. All ranks must call this function."""
    examined = _variant(strategy, options, options.examined(), world)
    settings = StepSettings(1, options.own_accumulation or 1)
    engine = make_engine(examined, world, settings, layers=_layers(options))
    engine.close()
    return engine.comm


def _rebuilt(plan: RunPlan, world: World, strategy: Strategy, verdict: GateVerdict) -> GateVerdict:
    """Add the result for the run's own network, which a framework rebuilds, to `verdict`."""
    facts, model = plan.dataset, build_model(plan, world)
    image = (facts.channels, facts.image_size, facts.image_size)
    found = compare_rebuilt(strategy, world, model, image, facts.classes)
    faults = _faults([found]) or _differing([found], TOLERANCE_REBUILT)
    return verdict.model_copy(
        update={
            "passed": not faults,
            "ranks_equal": found.ranks_equal,
            "error_rebuilt": found.error,
            "rule": f"{verdict.rule}; the run's network within {TOLERANCE_REBUILT:.0e} of the same "
            "network in torch",
            "message": "; ".join(filter(None, [*faults, verdict.message])),
        }
    )


def examine_network(
    verdict: GateVerdict,
    plan: RunPlan,
    world: World,
    strategy: Strategy,
    comm: Comm,
    precisions: Sequence[str] = ("fp32",),
) -> GateVerdict:
    """Compare two training steps of the plan's own network, and add the result to `verdict`, which
    has passed. All ranks must call this function.

    The strategy fails if its weights differ in fp32 without lossy options, or if the ranks hold
    different weights; the error in 16 bits is only reported.
    """
    options = plan.spec.strategy
    if options.own_network:  # the network that it trains is not a torch module
        return _rebuilt(plan, world, strategy, verdict)
    exact = options.lossless() if strategy.lossy else options
    if exact is None:
        why = "not compared: the strategy has no exact form"
        return verdict.model_copy(update={"network": why})
    if (schedule := options.pipeline()) and schedule.asynchronous:
        why = "not compared: the strategy applies gradients late by design"
        return verdict.model_copy(update={"network": why})
    strategy = _variant(strategy, options, exact, world)
    network, faults, error, seconds, ranks_equal = [], [], None, 0.0, True
    for precision in precisions:
        found = own_network.compare(plan, world, strategy, comm, precision)
        seconds += found.seconds
        if not found.ranks_equal:
            ranks_equal = False
            faults.append(f"the ranks hold different weights of {plan.spec.model.name}")
        if found.error is None:
            network.append(f"not compared: {found.skipped}")
            break
        if precision == "fp32":
            error = found.error
            network.append("equal to one process" if not found.differs else found.differs)
            if found.differs:
                faults.append(
                    f"{plan.spec.model.name} is not trained as in one process: {found.differs}; "
                    f"at most {own_network.TOLERANCE:.0e} can be rounding"
                )
        else:
            first = f", {found.differs}" if found.differs else ""
            network.append(f"in {precision} updates differ by at most {found.error:.1e}{first}")
    return verdict.model_copy(
        update={
            "passed": not faults,
            "ranks_equal": ranks_equal,
            "error_network": error,
            "network": "; ".join(network),
            "network_seconds": seconds,
            "message": "; ".join(filter(None, [*faults, verdict.message])),
        }
    )


def examine(
    options: StrategyOptions,
    world: World,
    strategy: Strategy,
    settings: StepSettings | None = None,
    run_id: str = "",
    optimizer: OptimizerOptions | None = None,
) -> GateVerdict:
    """Train the small networks, and decide whether the strategy passes. All ranks must call this
    function; all get the same verdict.

    The micro-batch size in `settings` has no influence. If `optimizer` is given, the strategy is
    also checked with it.
    """
    settings = settings or StepSettings(1, options.own_accumulation or 1)
    strategy = _variant(strategy, options, options.examined(), world)
    options = options.examined()
    if strategy.lossy in (True, Lossy()):
        message = f"{options.name} changes gradients on purpose, and no bound for that is known"
        return _verdict(options.name, world, run_id, message=message)
    exact_options = options.lossless() if strategy.lossy else options
    exact = strategy
    if exact_options is not None:
        exact = _variant(strategy, options, exact_options, world)
    staged = options.staged()
    late = staged if staged and staged.pipeline().asynchronous else None
    compare = partial(small_network.compare, exact, world, layers=_layers(options), delays=late)
    pure = replace(settings, precision="fp32", clip_norm=None, compile="off")
    clips = [None] if settings.clip_norm is None else [None, _BITING_CLIP]
    plain = []
    for clip in clips:
        plain.append(compare(replace(pure, clip_norm=clip)))
        if plain[0].fault:
            return _verdict(options.name, world, run_id, message=plain[0].fault)
    rule = "ranks bit-equal; equal to one process on the same global batch"
    if late:
        rule += " (the process delays gradients and keeps versions of the weights as the "
        rule += "schedule does)"
    if exact_options is not None and (parts := _in_parts(exact, exact_options, world)):
        plain.append(small_network.compare(parts[0], world, pure, pause_s=parts[1]))
        rule += ", also with several reductions per step"
    batch_norm = compare(pure, batch_norm=True)
    short, compiled, rounded, remarks = [], [], [], []
    if optimizer is not None:
        found = compare(pure, optimizer=optimizer)
        rule += f", also with {optimizer.name}"
        if optimizer.updates_in_bf16:
            rounded.append(found)
            rule += f" within {TOLERANCE_BF16_UPDATES:.0e}"
            remarks.append(f"with {optimizer.name} results differ by {found.error:.1e}")
        else:
            plain.append(found)
    if settings.compile != "off":
        mode = replace(pure, compile=settings.compile)
        compiled = [compare(mode, batch_norm=each) for each in (False, True)]
        rule += f"; compiled within {TOLERANCE_COMPILED:.0e}"
        worst = max(each.error for each in compiled)
        remarks.append(f"with torch.compile results differ by {worst:.1e}")
    if settings.precision != "fp32" and exact_options is not None:
        short = [compare(replace(settings, clip_norm=clip)) for clip in clips]
        rule += f"; in {settings.precision} within {TOLERANCE_16_BITS:.0%} of one process in fp32"
        worst = max(each.updates for each in short)
        remarks.append(f"in {settings.precision} the updates differ by {worst:.1e}")
    lossy = lossy_gradients(options, world, strategy, settings)
    if lossy:
        lost = "lossy options: gradients within the bounds that follow from them"
        rule = f"{rule}; with {lost}" if exact_options is not None else f"ranks bit-equal; {lost}"
        worst = max(each.error for each in lossy)
        remarks.append(f"with lossy options a gradient differs by {worst:.1e}")
    rebuilt = []
    if options.own_network:
        net = small_network.small_net(world, batch_norm=True)
        rebuilt.append(compare_rebuilt(exact, world, net, net.IMAGE, net.CLASSES))
        rule += f"; running statistics within {TOLERANCE_REBUILT:.0e} of those of torch"
    compared = [*plain, batch_norm, *short, *compiled, *rounded, *rebuilt]
    equal_and_finite: list[Comparison | Gradients] = [*compared, *lossy]
    faults = _faults(equal_and_finite)
    if exact_options is not None and not faults:
        faults = (
            _differing([*plain, batch_norm], TOLERANCE)
            or _differing(compiled, TOLERANCE_COMPILED)
            or _differing(rounded, TOLERANCE_BF16_UPDATES)
            or _differing(rebuilt, TOLERANCE_REBUILT)
            or _differing_16_bits(short)
        )
    faults = faults or beyond_bounds(lossy)
    return _verdict(
        options.name,
        world,
        run_id,
        passed=not faults,
        ranks_equal=all(each.ranks_equal for each in equal_and_finite),
        error=max(each.error for each in plain),
        error_batchnorm=batch_norm.error,
        error_compiled=max((each.error for each in compiled), default=None),
        error_16_bits=max((each.loose_error for each in short), default=None),
        tolerance=None if exact_options is None else TOLERANCE,
        rule=rule,
        message="; ".join([*faults, *remarks]),
    )


def lossy_gradients(
    options: StrategyOptions, world: World, strategy: Strategy, settings: StepSettings
) -> list[Gradients]:
    """Errors of gradients with a lossy strategy's options; empty for other strategies.

    The gradients are compared two or three times: in fp32 without torch.compile; the same with
    several reductions per step and with BatchNorm in the network, as far as the strategy allows
    each; and with the run's settings, unless these are fp32 without torch.compile.
    """
    if not strategy.lossy:
        return []
    compare = partial(compare_gradients, lossy=strategy.lossy)
    pure = replace(settings, precision="fp32", compile="off")
    # torch has no BatchNorm with 16-bit weights and 32-bit statistics, at least on CPUs
    norm = not strategy.lossy.within
    parts, pause_s = _in_parts(strategy, options, world) or (strategy, 0.0)
    found = [
        compare(strategy, world, pure),
        compare(parts, world, pure, batch_norm=norm, pause_s=pause_s),
    ]
    return found if settings == pure else [*found, compare(strategy, world, settings)]


def beyond_bounds(lossy: list[Gradients]) -> list[str]:
    """A message if an error in `lossy` exceeds the bound of the lossy options; else empty."""
    beyond = max((each.beyond for each in lossy), default=0.0)
    if beyond <= 1:
        return []
    return [
        f"with lossy options the error of a parameter's mean gradient is {beyond:.1e} times the "
        "largest error that these options allow"
    ]


def _layers(options: StrategyOptions) -> int:
    """Number of layers that the small network needs so that no stage of a pipeline is empty."""
    schedule = options.pipeline()
    return max(3, schedule.stages if schedule else 0)


def _in_parts(
    strategy: Strategy, options: StrategyOptions, world: World
) -> tuple[Strategy, float] | None:
    """A strategy that reduces the gradients of a step in several parts, and the pause between the
    network's layers, in seconds, that keeps the parts separate; None if this is not possible."""
    several = options.several_reductions()
    if several is None:
        return None
    changed, pause_s = several
    return _variant(strategy, options, changed, world), pause_s


def _variant(
    strategy: Strategy, options: StrategyOptions, changed: StrategyOptions, world: World
) -> Strategy:
    """A strategy with the options `changed`: a new one, or `strategy` if `changed` equals its
    `options`. This process has already joined the strategy's group."""
    if changed == options:
        return strategy
    variant = make_strategy(changed)
    variant.start(world)
    return variant


def _own(optimizer: OptimizerOptions) -> OptimizerOptions | None:
    """A run's optimiser without its learning rates; None if the gate's standard checks cover it:
    SGD with weight decay of all parameters."""
    if optimizer.name == "sgd" and optimizer.decay_bias_and_norm:
        return None
    return optimizer.model_copy(
        update={"lr": 1.0, "lr_reference_batch": None, "lr_scaling": "linear"}
    )


def _faults(compared: Sequence[Comparison | Gradients]) -> list[str]:
    """Errors that neither the precision nor a lossy option explains, the most severe first."""
    faults = []
    if not all(each.ranks_equal for each in compared):
        faults.append("the ranks hold different weights: gradients are not synchronised")
    if any(math.isinf(each.error) for each in compared):
        faults.append(
            "weights, logits or losses are not finite, or have other names or shapes than those of "
            "one process"
        )
    return faults


def _differing(compared: list[Comparison], tolerance: float) -> list[str]:
    return [
        f"its {worst.subject} differ by {worst.error:.1e} from those of one process on the same "
        f"global batch; at most {tolerance:.0e} can be rounding"
        for worst in sorted(compared, key=lambda each: -each.error)[:1]
        if worst.error > tolerance
    ]


def _differing_16_bits(compared: list[Comparison]) -> list[str]:
    """A message if the (finite) errors in `compared` exceed the bounds of 16 bits; else empty."""
    whole = max((each.loose_error for each in compared), default=0.0)
    tensor = max((each.worst_update for each in compared), default=0.0)
    if whole <= TOLERANCE_16_BITS and tensor <= _TENSOR_16_BITS:
        return []
    return [
        f"in 16 bits its updates, logits or losses differ by {whole:.1e}, and the updates of one "
        f"weight tensor by {tensor:.1e}, from those of one process in fp32 on the same global "
        f"batch; at most {TOLERANCE_16_BITS:g} and {_TENSOR_16_BITS:g} can be rounding"
    ]


def _verdict(strategy: str, world: World, run_id: str, **found: Any) -> GateVerdict:
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
        strategy=strategy,
        workers=world.size,
        steps=len(RATES),
        **{**failed, **found},
    )
