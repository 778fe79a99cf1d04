"""The gate's check of the run's own network: all ranks, and then one process, train two steps on
small batches; docs/explanation/gate.md explains why.

The one process passes the ranks' slices one by one through copies of the network, one for each
rank, which share weights but have separate buffers and counters. Before each call of a module, the
random generators are seeded by module, step and rank, so that dropout, and layers that are chosen
at random, draw equal numbers in the strategy and in the one process. The learning rate is chosen so
that the first step changes the weights by 1 %: much smaller updates would be lost in the rounding
of the weights.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysuite import models, optim, tasks
from raysuite.data.base import Batch
from raysuite.gate.small_network import same_on_all_ranks, without_tf32
from raysuite.measure.clock import now
from raysuite.measure.peak_memory import available_bytes
from raysuite.nested import called, mapped, unpadded
from raysuite.parallel.base import Engine, StepSettings, Strategy, World, kept_draws
from raysuite.parallel.comm import Comm
from raysuite.parallel.precision import MEMORY_FORMATS
from raysuite.parallel.single import Single
from raysuite.plan import RunPlan
from raysuite.spec.optimizers import OptimizerOptions, SgdOptions
from raysuite.train.building import criterion_of, draw, step_settings
from raysuite.train.waiting import layers_named
from raysuite.units import human_bytes

_TOLERANCE_16_BITS = 0.5
"""Relative error above which a difference in bf16 or fp16 is reported; the check passes in any
case. A wrong loss scale changes an update by a factor of two or more."""
TOLERANCE = 1e-3
"""Largest allowed relative error of an update. Correct strategies had errors below a third of this
bound with the networks of tests/contract/test_networks.py. Rounding alone causes an error of 1e-5
in an update that changes the weights by 1 %."""
_FLOOR = 1e-3
"""The error of a tensor is divided by the largest of three values: the norm of the tensor's update,
this share of the tensor's norm, and this share of the norm of the update of all tensors. The last
two matter for gradients that are only rounding errors, such as that of a bias before BatchNorm."""
_UPDATE = 1e-2
"""The change of the weights in the first step, relative to their norm."""
_STEPS = 2
_SAMPLES = 4
"""Largest number of samples in a micro-batch. With only two, BatchNorm after a global pooling
enlarges rounding errors."""
_MICRO_BATCHES = 2
"""Largest number of micro-batches in a step of a rank. A pipeline takes as many as the run's plan
has."""
BUDGET_S = 60.0
"""Time limit in seconds: the check is left out if it is expected to take longer."""
_HELD, _RANKS_OF_A_HOST = 8, 16
"""Assumptions for the memory that the check needs: at most this many copies of the weights in rank
0's memory at a time, and at most this many ranks on its host, each with one further copy."""
_SEED = 2023
_RATES = {"lr", "lr_reference_batch", "lr_scaling"}
"""Settings of the optimiser that do not matter here, because the check chooses its own rate."""


@dataclass(frozen=True)
class Found:
    """The result of `compare`, equal on all ranks."""

    error: float | None = None
    """Largest relative error of a tensor's update; None if nothing was compared."""
    ranks_equal: bool = True
    differs: str = ""
    """The first parameter that differs, in which step and by how much; empty if none differs."""
    skipped: str = ""
    """Why nothing was compared; empty if the networks were compared."""
    seconds: float = 0.0


def compare(
    plan: RunPlan,
    world: World,
    strategy: Strategy,
    comm: Comm,
    precision: str = "fp32",
    budget_s: float = BUDGET_S,
) -> Found:
    """Train the plan's network for two steps with `strategy`, and in fp32 in one process (rank 0).

    All ranks must call it; `comm` connects them. An error that the network itself raises is not
    reported here, because the run that follows raises it again.
    """
    began = time.perf_counter()
    settings = _settings(plan, precision)
    tolerance = TOLERANCE if precision == "fp32" else _TOLERANCE_16_BITS
    slices = plan.replicas * settings.accumulate
    with kept_draws(world.device), without_tf32():
        # seconds of a pass, rate, bytes of the weights, free bytes, 1 if the network communicates
        probe = torch.zeros(5, dtype=torch.float64)
        if world.rank == 0:
            probe = _probe(plan, world, settings)
        pass_s, rate, size, left, communicates = comm.all_reduce(probe, "max").tolist()
        expected_s = _STEPS * (slices + settings.accumulate) * pass_s
        needed = size * (_HELD + min(world.size, _RANKS_OF_A_HOST))
        skipped = ""
        if communicates:
            skipped = "in one process, the network's SyncBatchNorm would wait for other ranks"
        elif not rate:
            skipped = (
                "a pass through the network fails, changes no weight, or needs more memory than is "
                "free"
            )
        elif expected_s > budget_s:
            skipped = (
                f"the comparison would take about {expected_s:.0f} s, more than {budget_s:.0f} s"
            )
        elif needed > left:
            skipped = (
                f"the comparison would need {human_bytes(needed)} of memory, and "
                f"{human_bytes(left)} are free"
            )
        if skipped:
            return Found(skipped=skipped, seconds=time.perf_counter() - began)
        draws = _Draws()
        engine = _prepared(plan, _network(plan, world, draws), strategy, settings, rate)
        draws.replica = engine.replica
        try:
            weights = _train(plan, engine, settings, rate, draws, kept=world.rank == 0)
            ranks_equal = same_on_all_ranks(engine.comm, weights[-1])
        finally:
            engine.close()
        del engine
        # step (from 1) and number of the first parameter that differs, its difference, the largest
        # error, whether there is no reference
        compared = torch.zeros(5, dtype=torch.float64)
        if world.rank == 0:
            try:
                compared[:4] = _first_difference(
                    weights, _reference(plan, world, settings, rate), tolerance
                )
            except Exception:  # the other ranks wait for the all-reduce
                compared[4] = 1
        step, number, by, worst, failed = comm.all_reduce(compared, "max").tolist()
    seconds = time.perf_counter() - began
    if failed:
        skipped = "one process cannot train the network"
        return Found(None, ranks_equal, skipped=skipped, seconds=seconds)
    differs = ""
    if step:
        name = list(weights[-1])[int(number)]
        differs = f"in step {step:.0f} {name} differs first, by {by:.1e} of its update"
    return Found(worst, ranks_equal, differs, seconds=seconds)


def _settings(plan: RunPlan, precision: str) -> StepSettings:
    accumulate = plan.accumulate
    if plan.spec.strategy.model_workers == 1:
        accumulate = min(accumulate, _MICRO_BATCHES)
    return replace(
        step_settings(plan),
        micro_batch=max(2, min(_SAMPLES, plan.micro_batch)),
        accumulate=accumulate,
        clip_norm=None,
        precision=precision,
        compile="off",
    )


def _optimizer(plan: RunPlan) -> OptimizerOptions:
    """SGD, with the run's own weight decay.

    Other optimisers divide by a gradient's size: a gradient that is only rounding error would then
    cause a full step. The check on the small network uses the run's optimiser.
    """
    options = plan.spec.optimizer
    if options.name == "sgd":
        return options
    return SgdOptions(
        weight_decay=options.weight_decay,
        decay_bias_and_norm=options.decay_bias_and_norm,
        lr_factors=options.lr_factors,
    )


@dataclass
class _Draws:
    """The replica and step for which modules draw random numbers."""

    replica: int = 0
    step: int = 0

    def seed(self, module: int, *_: object) -> None:
        """Seed the random generators, before the module with this number is called."""
        sequence = np.random.SeedSequence([_SEED, module, self.replica, self.step])
        seed = int(sequence.generate_state(1)[0])
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)


def _network(plan: RunPlan, world: World, draws: _Draws) -> nn.Module:
    """The plan's network, with equal weights on all ranks; `draws` seeds each call of a module."""
    torch.manual_seed(_SEED)
    model = models.build(plan.spec.model, plan.dataset)
    model.to(memory_format=MEMORY_FORMATS[plan.memory_format])
    for number, module in enumerate(model.modules()):
        if not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_pre_hook(partial(draws.seed, number))
    return model.to(world.device)


def _prepared(
    plan: RunPlan, model: nn.Module, strategy: Strategy, settings: StepSettings, rate: float
) -> Engine:
    network = model.network if isinstance(model, _Replicas) else model
    names: dict[Tensor, str] = {each: name for name, each in network.named_parameters()}
    # another rate than in the steps, to find engines that ignore the step's rate
    make = partial(optim.build_optimizer, _optimizer(plan), lr=2 * rate, names=names)
    engine = strategy.prepare(model, make, settings)
    engine.criterion = criterion_of(plan)
    if (weights := _class_weights(plan)) is not None:
        engine.class_weights = weights.to(engine.world.device)
    return engine


def _class_weights(plan: RunPlan) -> Tensor | None:
    """Unequal weights [classes] if the run has class weights, else None. The run's own weights are
    not used: with `auto`, they depend on the labels of its data set."""
    if plan.spec.training.class_weights is None:
        return None
    return torch.linspace(0.5, 1.5, plan.dataset.classes)


def _batch(plan: RunPlan, world: World, settings: StepSettings, step: int, index: int) -> Batch:
    """Micro-batch `index` of a step, counted over all ranks. The last micro-batch of the last step
    has one sample of padding."""
    task, size = tasks.make_task(plan.spec.task, plan.dataset), settings.micro_batch
    count = settings.accumulate * plan.replicas

    def real(index: int) -> int:
        return size - (step == _STEPS - 1 and index == count - 1)

    def drawn(index: int) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(_SEED + 10**6 * step + index)
        return draw(plan, size, generator)

    of_global, weights = float(sum(map(real, range(count)))), _class_weights(plan)
    if task.weighted or weights is not None:
        targets = (unpadded(drawn(each)[1], real(each)) for each in range(count))
        of_global = sum(
            (float(task.weight(t) if weights is None else weights[t].sum()) for t in targets), 0.0
        )
    images, labels = mapped(drawn(index), lambda each: each.to(world.device))
    return Batch(images, labels, real(index), of_global)


def _train(
    plan: RunPlan, engine: Engine, settings: StepSettings, rate: float, draws: _Draws, kept: bool
) -> list[dict[str, Tensor]]:
    """Train; return the initial weights and those after each step or, if not `kept`, only the last
    weights."""
    found = [engine.weights()]
    engine.train()
    first = engine.replica * settings.accumulate
    for step in range(_STEPS):
        draws.step = step
        batches = [
            _batch(plan, engine.world, settings, step, first + index)
            for index in range(engine.settings.accumulate)
        ]
        with layers_named(engine.model, engine.world):
            engine.step(batches, rate)
        found = [*(found if kept else []), engine.weights()]
    return found


class _Replicas(nn.Module):
    """A network and copies of it that share its weights but have separate buffers and counters.
    `accumulate` micro-batches pass through the network, then as many through each copy in turn."""

    def __init__(self, model: nn.Module, copies: int, accumulate: int, draws: _Draws) -> None:
        super().__init__()
        self.network, self._accumulate, self._calls, self._draws = model, accumulate, 0, draws
        shared: dict[int, Any] = {id(each): each for each in (*model.parameters(), draws)}
        # a copy of a ScriptModule cannot share weights
        scripted = any(isinstance(each, torch.jit.ScriptModule) for each in model.modules())
        self._others = [
            model if scripted else copy.deepcopy(model, dict(shared)) for _ in range(copies - 1)
        ]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        which = self._calls // self._accumulate % (len(self._others) + 1)
        self._calls += 1
        self._draws.replica = which
        return [self.network, *self._others][which](*inputs, **named)


def _reference(
    plan: RunPlan, world: World, settings: StepSettings, rate: float
) -> list[dict[str, Tensor]]:
    """The initial weights and those after each step, from training in one process in fp32."""
    single = Single()
    single.start(World.alone(world.device))
    draws = _Draws()
    network = _network(plan, world, draws)
    model = _Replicas(network, plan.replicas, settings.accumulate, draws)
    slices = plan.replicas * settings.accumulate
    whole = replace(settings, precision="fp32", accumulate=slices)
    engine = _prepared(plan, model, single, whole, rate)
    for each in model._others:
        each.train()
    found = _train(plan, engine, settings, rate, draws, kept=True)
    return [
        {name.removeprefix("network."): each for name, each in weights.items()} for weights in found
    ]


def _probe(plan: RunPlan, world: World, settings: StepSettings) -> Tensor:
    """Measure one micro-batch on this rank alone.

    Returns five numbers: the duration of its forward and backward pass in seconds, the learning
    rate with which its gradient changes the weights by 1 %, the bytes of the weights, the bytes of
    free memory, and whether the network would wait for other ranks (0 or 1). If it would wait, the
    first four are 0; if a pass fails, all are 0.
    """
    try:
        model = _network(plan, world, _Draws())
        if any(isinstance(each, nn.SyncBatchNorm) for each in model.modules()):
            return torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
        model.train()
        batch = _batch(plan, world, settings, 0, 0)
        began = now(world.device)
        output, targets = unpadded(called(model, batch.images), batch.real), batch.labels
        task = tasks.make_task(plan.spec.task, plan.dataset)
        (task.loss(output, targets) / float(task.weight(targets))).backward()
        seconds = now(world.device) - began
        trained = [each for each in model.parameters() if each.grad is not None]
        gradient = torch.stack([each.grad.norm() for each in trained]).norm().item()  # type: ignore[union-attr]
        norm = torch.stack([each.detach().norm() for each in trained]).norm().item()
        rate = _UPDATE * norm / gradient if gradient > 0 else 0.0
        size = sum(each.numel() * each.element_size() for each in model.parameters())
    except Exception:
        return torch.zeros(5, dtype=torch.float64)
    left = min(available_bytes(world.device), available_bytes(torch.device("cpu")))
    found = torch.tensor([seconds, rate, size, left, 0.0], dtype=torch.float64)
    return found if found.isfinite().all() else torch.zeros_like(found)


def _first_difference(
    weights: list[dict[str, Tensor]], reference: list[dict[str, Tensor]], tolerance: float
) -> Tensor:
    """Four numbers: step (from 1), number and relative error of the first parameter that differs
    (all 0 if none differs), and the largest relative error of any parameter."""
    first, worst = (0.0, 0.0, 0.0), 0.0
    before = reference[0]
    if list(weights[-1]) != list(before):
        return torch.tensor([1.0, 0.0, math.inf, math.inf], dtype=torch.float64)
    for step, (found, expected) in enumerate(zip(weights, reference, strict=True)):
        errors, updates = (
            torch.stack([(one[name] - other[name]).abs().double().norm() for name in before])
            for one, other in ((found, expected), (expected, before))
        )
        norms = torch.stack([expected[name].abs().double().norm() for name in before])
        floors = _FLOOR * torch.maximum(norms, updates.norm())
        relative = (errors / torch.maximum(updates, floors)).nan_to_num(math.inf, math.inf)
        relative[errors == 0] = 0.0
        worst = max(worst, relative.max().item())
        wrong = (relative > tolerance).nonzero().flatten().tolist()
        if wrong and not first[0]:
            # step 0 has the initial weights of the ranks
            first = (max(1.0, float(step)), float(wrong[0]), relative[wrong[0]].item())
    return torch.tensor([*first, worst], dtype=torch.float64)


def key(plan: RunPlan) -> Any:
    """Cache key of a verdict on the plan's network, which must be imported already; None if the
    code of the network is unknown.

    The code of a user's own network consists of all imported modules in the root folder of the
    module that defines it.
    """
    model, facts = plan.spec.model, plan.dataset
    if ":" in plan.spec.task.name:
        return None
    packages = (Path(str(each.__file__)).parent for each in (models, tasks))
    ours = [Path(__file__), *(file for folder in packages for file in folder.glob("*.py"))]
    if ":" in model.name and not model.name.startswith("timm:"):
        module = model.name.partition(":")[0]
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            return None
        root = Path(file).parents[module.count(".")]
        loaded = (getattr(each, "__file__", None) for each in list(sys.modules.values()))
        ours += [Path(each) for each in set(loaded) if each and Path(each).is_relative_to(root)]
    files = sorted(each for each in ours if "site-packages" not in each.parts and each.is_file())
    return [
        model.model_dump(mode="json"),
        [facts.channels, facts.image_size, facts.classes, facts.sequence, facts.inputs],
        plan.spec.task.model_dump(mode="json"),
        asdict(_settings(plan, "fp32")),
        plan.spec.training.class_weights is not None,
        _optimizer(plan).model_dump(mode="json", exclude=_RATES),
        [hashlib.sha256(each.read_bytes()).hexdigest() for each in files],
    ]
