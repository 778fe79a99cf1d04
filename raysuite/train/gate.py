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

See docs/explanation/gate.md for what this finds and what it cannot.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from raysuite import models, optim, parallel
from raysuite.data import cache_dir, order
from raysuite.files import write_whole
from raysuite.measure.environment import fingerprint
from raysuite.parallel import make_strategy
from raysuite.parallel.base import StepSettings, Strategy, World
from raysuite.parallel.comm import Comm
from raysuite.plan import RunPlan
from raysuite.records import GateVerdict
from raysuite.spec import schedules, strategies
from raysuite.spec.optimizers import OptimizerOptions
from raysuite.spec.strategies import Lossy, PipelineOptions, StrategyOptions
from raysuite.train import gate_check, own_network
from raysuite.train.building import build_model, step_settings
from raysuite.train.gate_check import (
    RATES,
    TOLERANCE_REBUILT,
    Comparison,
    comm_fault,
    make_engine,
)

# Verdicts of the gate that are kept: where, and for what they hold.


def places(comm: Comm, facts: dict[str, Any]) -> list[list[int]]:
    """[ranks, 3]: host, fingerprint, transport of each rank, as numbers. All ranks must call it.

    The transport: environment variables by which the libraries choose other algorithms.
    """
    transport = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG"))
        or name in _HOROVODS_ALGORITHMS
    }
    own = [
        zlib.crc32(socket.gethostname().encode()),
        int(fingerprint(facts), 16) >> 1,
        zlib.crc32(json.dumps(transport, sort_keys=True).encode()),
    ]
    gathered: list[list[int]] = comm.all_gather(torch.tensor(own)).tolist()
    return gathered


def cache_file(
    options: StrategyOptions,
    world: World,
    settings: StepSettings,
    places: list[list[int]],
    optimizer: OptimizerOptions | None = None,
    network: Any = None,
) -> Path:
    """The file for a passed check: one for each set of options, versions, kinds of machines and
    code, and for each of the runs' own networks (`own_network.key`).

    It depends on the number of ranks per host, not on which hosts they are.
    """
    ours = [
        *Path(parallel.__file__).parent.rglob("*.py"),
        *Path(optim.__file__).parent.glob("*.py"),
        *(Path(__file__).with_name(f"{name}.py") for name in _JUDGES),
        Path(str(order.__file__)),
        Path(str(schedules.__file__)),
        Path(str(strategies.__file__)),
    ]
    content = [
        options.model_dump(mode="json"),
        world.size,
        world.device.type,
        asdict(replace(settings, micro_batch=1)),
        sorted(Counter(host for host, *_ in places).values()),
        sorted({tuple(machine) for _, *machine in places}),
        None if optimizer is None else optimizer.model_dump(mode="json"),
        network,
        [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(ours)],
    ]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "gate" / f"{options.name}-w{world.size}-{digest}.json"


_HOROVODS_ALGORITHMS = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_TORUS_ALLREDUCE")
_JUDGES = ("gate", "gate_check")


def known_pass(file: Path) -> GateVerdict | None:
    """The result in a file of `cache_file`; None where it holds no pass."""
    try:
        verdict = GateVerdict.model_validate_json(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return verdict if verdict.passed else None


TOLERANCE = 1e-5
"""Largest relative error: some 100 roundings of fp32."""

TOLERANCE_COMPILED = 1e-4
"""Largest relative error of networks that torch.compile compiled: it fuses and reorders sums, which
rounds otherwise, and each step carries that on."""

TOLERANCE_16_BITS = 0.2
"""Largest relative error of the updates, logits and losses in bf16 and fp16. Right ones showed at
most 0.12 in bf16 and 0.03 in fp16, in 84 trainings each with 1 to 64 ranks times micro-batches."""
_TENSOR_16_BITS = 0.5
"""Largest relative error of one tensor's update; right ones showed at most 0.3."""

_BITING_CLIP = 0.05
"""A gradient norm that the small network exceeds in every step."""


def check(plan: RunPlan, world: World, strategy: Strategy, facts: dict[str, Any]) -> GateVerdict:
    """The verdict on the plan's strategy at this world size, from the cache if it is known there.

    `facts` are `measure.environment()`'s: a verdict holds for the versions and the machines on
    which it was reached. Only passed checks are cached, and only those of raysuite's own
    strategies.
    All ranks must call it; rank 0's cache counts.
    """
    options = plan.spec.strategy
    # the small network's images have one size, so a verdict holds for runs with any other
    settings = replace(step_settings(plan), image=StepSettings.image)
    own = _own(plan.spec.optimizer)
    cached = not options.imports
    comm = comm_of(options, world, strategy)
    reachable = not comm_fault(comm, world)
    where = places(comm, facts) if reachable and cached else []
    verdict = None
    if reachable and cached:
        file = cache_file(options, world, settings, where, own)
        verdict = _known(file, world, comm)
        if verdict is not None:
            verdict = verdict.model_copy(
                update={"run_id": plan.run_id, "cached": True, "time": time.time()}
            )
    if verdict is None:
        verdict = examine(options, world, strategy, settings, plan.run_id, own)
        if verdict.passed and cached and world.rank == 0:
            write_whole(file, verdict.model_dump_json().encode())
    if not verdict.passed or not options.gated:
        return verdict
    if options.own_network:  # its networks are other objects than torch's
        return _rebuilt(plan, world, strategy, verdict)
    models.check(plan.spec.model.name)  # on all ranks: then no rank waits for one that raised
    key = own_network.key(plan)
    if not cached or key is None:
        return examine_network(verdict, plan, world, strategy, comm)
    file = cache_file(options, world, replace(settings, clip_norm=None), where, None, key)
    known = _known(file, world, comm)
    if known is not None:
        return verdict.model_copy(update={name: getattr(known, name) for name in _OF_NETWORK})
    whole = examine_network(verdict, plan, world, strategy, comm)
    if whole.passed and whole.error_network is not None and world.rank == 0:
        write_whole(file, whole.model_dump_json().encode())
    return whole.model_copy(update={"cached": False})


_OF_NETWORK = ("error_network", "network", "network_seconds")


def comm_of(options: StrategyOptions, world: World, strategy: Strategy) -> Comm:
    """The collectives of a strategy, which come with an engine. All ranks must call it."""
    examined = _examined(options, world, strategy)
    settings = StepSettings(1, options.own_accumulation or 1)
    engine = make_engine(examined, world, settings, layers=_layers(options))
    engine.close()
    return engine.comm


def _known(file: Path, world: World, comm: Comm) -> GateVerdict | None:
    """What rank 0's cache holds, on all ranks."""
    known = known_pass(file) if world.rank == 0 else None
    if not comm.all_reduce(torch.tensor([float(known is not None)]), "max").item():
        return None
    return known or known_pass(file) or _unread(world)


def _rebuilt(plan: RunPlan, world: World, strategy: Strategy, verdict: GateVerdict) -> GateVerdict:
    """A passed verdict, with what comes of the run's own network, which a framework builds anew."""
    facts, model = plan.dataset, build_model(plan, world)
    image = (facts.channels, facts.image_size, facts.image_size)
    found = gate_check.compare_rebuilt(strategy, world, model, image, facts.classes)
    faults = _faults([found]) or _differing([found], TOLERANCE_REBUILT)
    return verdict.model_copy(
        update={
            "passed": not faults,
            "ranks_equal": verdict.ranks_equal and found.ranks_equal,
            "error_rebuilt": found.error,
            "rule": f"{verdict.rule}; the run's network as torch's to {TOLERANCE_REBUILT:.0e}",
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
    """`verdict`, extended by two steps of the plan's own network. All ranks must call it.

    fp32 decides, without the strategy's lossy options; of 16 bits the distance is reported.
    """
    options = plan.spec.strategy
    if options.own_network:
        return _rebuilt(plan, world, strategy, verdict)
    exact: Strategy | None = strategy
    if strategy.lossy:
        plain = options.lossless()
        exact = None if plain is None else _started(plain, world)
    why = "not compared: the strategy is lossy throughout" if exact is None else ""
    if isinstance(options, PipelineOptions) and options.pipeline().asynchronous:
        why = "not compared: its gradients are applied late by intent"
    if exact is None or why:
        return verdict.model_copy(update={"network": why})
    network, faults, error, seconds = [], [], None, 0.0
    for precision in precisions:
        found = own_network.compare(plan, world, exact, comm, precision)
        seconds += found.seconds
        if found.error is None:
            network.append(f"not compared: {found.skipped}")
            break
        if not found.ranks_equal:
            faults.append(f"the ranks hold different weights of {plan.spec.model.name}")
        if precision == "fp32":
            error = found.error
            network.append("equal to one process" if not found.differs else found.differs)
            if found.differs:
                faults.append(
                    f"{plan.spec.model.name} is not trained as by one process: {found.differs}; "
                    f"at most {own_network.TOLERANCE:.0e} is rounding"
                )
        else:
            first = f", {found.differs}" if found.differs else ""
            network.append(f"in {precision} an update differs by {found.error:.1e} at most{first}")
    return verdict.model_copy(
        update={
            "passed": not faults,
            "ranks_equal": verdict.ranks_equal and found.ranks_equal,
            "error_network": error,
            "network": "; ".join(network),
            "network_seconds": seconds,
            "message": "; ".join([*faults, *([verdict.message] if verdict.message else [])]),
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
    """Train the small networks and decide. All ranks must call it, and get the same verdict.

    Of `settings`, the size of the micro-batch has no influence. With `optimizer`, the strategy is
    checked with that one too.
    """
    settings = settings or StepSettings(1, options.own_accumulation or 1)
    examined = options.examined()
    late = None
    if isinstance(examined, PipelineOptions) and examined.pipeline().asynchronous:
        late = examined
    compare = partial(gate_check.compare, layers=_layers(options), delays=late)
    strategy = _examined(options, world, strategy)
    if strategy.lossy in (True, Lossy()):
        message = f"{options.name} changes gradients on purpose, and no bound for that is known"
        return _verdict(options.name, world, run_id, message=message)
    exact, plain_options = strategy, options.lossless() if strategy.lossy else options
    judged = plain_options is not None
    if strategy.lossy and plain_options is not None:
        exact = _started(plain_options, world)
    compiled_too = settings.compile != "off"
    pure = replace(settings, precision="fp32", clip_norm=None, compile="off")
    clips = [None] if settings.clip_norm is None else [None, _BITING_CLIP]
    plain = []
    for clip in clips:
        plain.append(compare(exact, world, replace(pure, clip_norm=clip)))
        if plain[0].fault:
            return _verdict(options.name, world, run_id, message=plain[0].fault)
    rule = "ranks bit-equal; equal to one process on the same global batch"
    if late:
        rule += " that applies gradients as late as the schedule, with its versions of weights"
    if plain_options is not None and (parts := _in_parts(exact, plain_options, world)):
        plain.append(gate_check.compare(parts[0], world, pure, pause_s=parts[1]))
        rule += ", with several reductions a step too"
    if optimizer is not None:
        plain.append(compare(exact, world, pure, optimizer=optimizer))
    batch_norm = compare(exact, world, pure, batch_norm=True)
    short, compiled = [], []
    if optimizer is not None:
        rule += f", by {optimizer.name} too"
    remarks = []
    if compiled_too:
        mode = replace(pure, compile=settings.compile)
        compiled = [compare(exact, world, mode, batch_norm=each) for each in (False, True)]
        rule += f"; compiled to {TOLERANCE_COMPILED:.0e}"
        remarks.append(f"compiled it differs by {max(each.error for each in compiled):.1e}")
    if settings.precision != "fp32" and judged:
        short = [compare(exact, world, replace(settings, clip_norm=clip)) for clip in clips]
        rule += f"; in {settings.precision} to {TOLERANCE_16_BITS:.0%} of one process in fp32"
        worst = max(each.updates for each in short)
        remarks.append(f"in {settings.precision} the updates differ by {worst:.1e}")
    lossy = lossy_gradients(examined, world, strategy, settings)
    if lossy:
        lost = "lossy options: gradients within the bounds that follow from them"
        rule = f"{rule}; with {lost}" if judged else f"ranks bit-equal; {lost}"
        worst = max(each.error for each in lossy)
        remarks.append(f"with lossy options a gradient differs by {worst:.1e}")
    rebuilt = []
    if options.own_network:
        net = gate_check.small_net(world, batch_norm=True)
        rebuilt.append(gate_check.compare_rebuilt(exact, world, net, net.IMAGE, net.CLASSES))
        rule += f"; running statistics as torch's to {TOLERANCE_REBUILT:.0e}"
    compared = [*plain, batch_norm, *short, *compiled, *rebuilt]
    equal_and_finite: list[Comparison | gate_check.Gradients] = [*compared, *lossy]
    faults = _faults(equal_and_finite)
    if judged and not faults:
        faults = (
            _differing([*plain, batch_norm], TOLERANCE)
            or _differing(compiled, TOLERANCE_COMPILED)
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
        tolerance=TOLERANCE if judged else None,
        rule=rule,
        message="; ".join([*faults, *remarks]),
    )


def lossy_gradients(
    examined: StrategyOptions, world: World, strategy: Strategy, settings: StepSettings
) -> list[gate_check.Gradients]:
    """What a lossy strategy with these options does to gradients; empty for another one.

    In fp32: at once, and in several parts of a network with BatchNorm; and just as in the run.
    """
    if not strategy.lossy:
        return []
    compare = partial(gate_check.compare_gradients, lossy=strategy.lossy)
    pure = replace(settings, precision="fp32", compile="off")
    # torch has no BatchNorm with weights of 16 bits and statistics of 32, on CPUs at least
    norm = not strategy.lossy.within
    parts, pause_s = _in_parts(strategy, examined, world) or (strategy, 0.0)
    found = [
        compare(strategy, world, pure),
        compare(parts, world, pure, batch_norm=norm, pause_s=pause_s),
    ]
    return found if settings == pure else [*found, compare(strategy, world, settings)]


def beyond_bounds(lossy: list[gate_check.Gradients]) -> list[str]:
    """What exceeds the bounds of lossy options."""
    beyond = max((each.beyond for each in lossy), default=0.0)
    if beyond <= 1:
        return []
    return [
        f"with lossy options a parameter's mean gradient is off by {beyond:.1e} times what they "
        "can change"
    ]


def _layers(options: StrategyOptions) -> int:
    """Of the small network: no stage of a pipeline is empty."""
    schedule = options.pipeline()
    return max(3, schedule.stages if schedule else 0)


def _examined(options: StrategyOptions, world: World, strategy: Strategy) -> Strategy:
    """`strategy`, or one like it where the run's options are for the run's network alone."""
    examined = options.examined()
    if examined == options:
        return strategy
    return _started(examined, world)


def _in_parts(
    strategy: Strategy, options: StrategyOptions, world: World
) -> tuple[Strategy, float] | None:
    """A strategy that reduces the gradients of a step in several parts, and the pause between the
    network's layers that this takes; None if raysuite cannot make it do that."""
    several = options.several_reductions()
    if several is None:
        return None
    changed, pause_s = several
    return strategy if changed == options else _started(changed, world), pause_s


def _started(options: StrategyOptions, world: World) -> Strategy:
    """Another instance of a strategy whose group this process has joined."""
    strategy = make_strategy(options)
    strategy.start(world)
    return strategy


def _own(optimizer: OptimizerOptions) -> OptimizerOptions | None:
    """A run's optimiser, without its rates; None if it equals the one that the gate always uses."""
    if optimizer.name == "sgd" and optimizer.decay_bias_and_norm:
        return None
    return optimizer.model_copy(
        update={"lr": 1.0, "lr_reference_batch": None, "lr_scaling": "linear"}
    )


def _faults(compared: Sequence[Comparison | gate_check.Gradients]) -> list[str]:
    """Errors that no precision or lossy option explains, the most severe first."""
    faults = []
    if not all(each.ranks_equal for each in compared):
        faults.append("the ranks hold different weights: gradients are not synchronised")
    if any(math.isinf(each.error) for each in compared):
        faults.append("weights, logits or losses are not finite, or are not the network's")
    return faults


def _differing(compared: list[Comparison], tolerance: float) -> list[str]:
    return [
        f"its {worst.subject} differ by {worst.error:.1e} from one process on the same "
        f"global batch; at most {tolerance:.0e} is rounding"
        for worst in sorted(compared, key=lambda each: -each.error)[:1]
        if tolerance < worst.error < math.inf
    ]


def _differing_16_bits(compared: list[Comparison]) -> list[str]:
    """What exceeds the bounds of 16 bits in `compared`, whose values must be finite."""
    whole = max((each.loose_error for each in compared), default=0.0)
    tensor = max((each.worst_update for each in compared), default=0.0)
    if whole <= TOLERANCE_16_BITS and tensor <= _TENSOR_16_BITS:
        return []
    return [
        f"in 16 bits its updates, logits or losses differ by {whole:.1e}, and those of one weight "
        f"by {tensor:.1e}, from one process in fp32 on the same global batch; at most "
        f"{TOLERANCE_16_BITS:g} and {_TENSOR_16_BITS:g} are rounding"
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


def _unread(world: World) -> GateVerdict:
    """The verdict of a rank that cannot see rank 0's cache; only rank 0's Records are written."""
    return _verdict(
        "",
        world,
        "",
        passed=True,
        ranks_equal=True,
        error=0.0,
        error_batchnorm=0.0,
        rule="known to rank 0",
    )
