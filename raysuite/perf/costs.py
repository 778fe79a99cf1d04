"""Cost models: the time, memory or energy of a run as a sum of terms; and published formulas.

Each term is a quantity that follows from a run's plan (images, passes, steps, messages, bytes),
times a non-negative cost from a calibration. The fit of such a sum needs no starting point and has
one solution (Lawson and Hanson 1995, "Solving Least Squares Problems", chapter 23). Each cost has a
physical unit, for example seconds per image, per step, per message or per byte.

The name of a term is `COST/SUBJECT`, such as `image/resnet20 at 16 px, cpu` or `byte/ddp`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysuite.records.names import Plan
from raysuite.records.run_costs import step_traffic
from raysuite.spec.loaders import LOADER_OPTIONS
from raysuite.spec.strategies import STRATEGY_OPTIONS

KINDS = {
    "image": "computation",
    "neighbour": "computation",
    "pass": "overhead",
    "update": "overhead",
    "step": "overhead",
    "copy": "overhead",
    "hook": "communication",
    "beside": "communication",
    "message": "communication",
    "byte": "communication",
    "load": "loader",
    "epoch": "loader",
}
"""Cost (the first part of a term's name) -> its kind, by which `by_kind` divides the time."""


@dataclass(frozen=True)
class Work:
    """The size of a network, and the computation that one image takes; counted, not measured."""

    parameters: int
    gradient_bytes: int
    forward_flops: int | None = None
    """Multiply-adds of one image's forward pass."""
    small_parameters: int | None = None
    """Number of parameters in tensors that ZeRO-3 does not shard."""


def work_name(plan: Plan) -> str:
    """A name that is equal for plans in which an image costs the same on one worker."""
    spec, training = plan["spec"], plan["spec"]["training"]
    options = spec["model"].get("options")
    parts = [f"{spec['model']['name']} at {_size(plan['dataset'])}"]
    parts += [json.dumps(options, sort_keys=True)] if options else []
    parts += [f"frozen {', '.join(frozen)}"] if (frozen := spec["model"].get("freeze")) else []
    parts += [training["precision"]] if training["precision"] != "fp32" else []
    for key, usual in (("compile", "off"), ("memory_format", "auto"), ("ema_decay", None)):
        if training.get(key, usual) != usual:
            parts.append(f"{key}={training[key]}")
    optimizer = spec["optimizer"]["name"]
    parts += [optimizer] if optimizer != "sgd" else []
    cpus = spec["resources"]["cpus_per_worker"]
    parts += [plan["device"] if cpus == 1 else f"{cpus} CPUs, {plan['device']}"]
    return ", ".join(parts)


def _size(facts: Plan) -> str:
    """The size of a sample, as passed to the network."""
    if tokens := facts.get("sequence"):
        return f"{tokens} tokens"
    return str(facts.get("inputs") or f"{facts['image_size']} px")


def strategy_kind(plan: Plan) -> str:
    """A name that is equal for plans whose strategies have the same costs: the strategy's name and
    options, except buffer sizes and the number of micro-batches, which change only the quantities
    by which costs are multiplied."""
    strategy = plan["spec"]["strategy"]
    sizes = ["bucket_mb", "micro_batches"]
    if strategy.get("fusion_threshold_mb"):  # 0: each gradient is reduced alone
        sizes.append("fusion_threshold_mb")
    return _kind(strategy, STRATEGY_OPTIONS, sizes)


def loader_kind(plan: Plan) -> str:
    """A name that is equal for plans whose loaders have the same costs."""
    return _kind(plan["spec"]["loader"], LOADER_OPTIONS)


def _kind(options: Plan, classes: Mapping[str, Any], left_out: Sequence[str] = ()) -> str:
    """The name of a block of options, and the options that differ from their defaults."""
    fields = classes[options["name"]].model_fields
    own = [
        f"{key}={value}"
        for key, value in options.items()
        if key not in left_out and (key not in fields or value != fields[key].default)
    ]
    return f"{options['name']}({', '.join(own)})" if own else str(options["name"])


def fused_bytes(plan: Plan) -> float:
    """Bytes of the largest buffer in which a plan's strategy reduces gradients."""
    strategy = plan["spec"]["strategy"]
    return STRATEGY_OPTIONS[strategy["name"]].model_validate(strategy).fused_bytes


def epoch_terms(plan: Plan, work: Work, workers_per_node: int | None = None) -> dict[str, float]:
    """Quantity of each term of the cost model for one epoch on one worker: images, bytes, ...

    In a ring all-reduce of n bytes, each of W workers sends 2 (W - 1) messages with 2 n (W - 1) / W
    bytes in total; a gather or a reduce-scatter needs half of both (Patarasuk and Yuan 2009,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
    Comput. 69:117). Workers of one node share its memory and caches: on a CPU with k workers per
    node, each image adds (k - 1) / k to the quantity of `neighbour`. With several workers there are
    two more terms: in each pass, the workers agree on which gradients are ready (`hook`; Sergeev
    and Del Balso 2018, arXiv:1802.05799, section 4), and communication slows the computation of a
    pass (`beside`).
    """
    workers, samples = int(plan["workers"]), int(plan["dataset"]["train_samples"])
    steps, passes = int(plan["steps_per_epoch"]), int(plan["accumulate"])
    name, kind = work_name(plan), strategy_kind(plan)
    images = samples / replicas(plan)
    beside = min(workers, workers_per_node or workers)
    terms = {
        f"image/{name}": images,
        f"pass/{name}": steps * passes,
        f"update/{name}": steps,
        f"load/{loader_kind(plan)}": images,
        "epoch/all": 1.0,
    }
    if plan["device"] == "cpu":
        terms[f"neighbour/{name}"] = images * (beside - 1) / beside
    if not STRATEGY_OPTIONS[plan["spec"]["strategy"]["name"]].distributed:
        return terms
    terms |= {f"step/{kind}": steps, f"copy/{kind}": steps * work.parameters * 4.0}
    traffic = step_traffic(plan, work.parameters, work.gradient_bytes, work.small_parameters)
    if workers > 1:
        terms[f"hook/{kind}"] = steps * passes
        terms[f"beside/{kind}"] = images * (work.forward_flops or 0)
    if workers > 1 and traffic is not None:
        terms[f"message/{kind}"] = steps * traffic.messages(workers, fused_bytes(plan))
        terms[f"byte/{kind}"] = steps * traffic.sent(workers)
    return terms


def memory_terms(plan: Plan, work: Work, resident: float) -> dict[str, float]:
    """Quantity of each term of a worker's peak memory. The terms are the bytes of its process
    before the run (none for a device), the memory that the strategy adds, the memory of each image
    of a micro-batch, and the memory of weights, gradients, optimiser state and buffers."""
    name, kind = work_name(plan), strategy_kind(plan)
    workers = "one" if int(plan["workers"]) == 1 else "several"
    return {
        **({"resident/before": resident} if resident else {}),
        f"process/{kind}, {workers}": 1.0,
        f"activations/{name}": float(plan["micro_batch"]),
        f"weights/{kind}, {workers}": work.parameters * 4.0,
        f"network/{name}": 1.0,
    }


def joules_terms(plan: Plan, seconds: float, workers_per_node: int) -> dict[str, float]:
    """The quantity of each term of the energy used in `seconds` seconds; the terms are the power of
    each node and of each worker."""
    workers = int(plan["workers"])
    nodes = math.ceil(workers / workers_per_node)
    return {"node/all": nodes * seconds, f"worker/{plan['device']}": workers * seconds}


def replicas(plan: Plan) -> int:
    """Number of copies of the network among a plan's workers."""
    return int(plan["global_batch"]) // (int(plan["micro_batch"]) * int(plan["accumulate"]))


def by_kind(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by term -> seconds by kind of term: computation, communication, overhead, loader."""
    found: dict[str, float] = {}
    for term, each in seconds.items():
        kind = KINDS[term.partition("/")[0]]
        found[kind] = found.get(kind, 0.0) + each
    return found


# Published formulas, unchanged.


def expected_run_seconds(
    work_s: float, every_s: float, write_s: float, mtbf_s: float, restart_s: float
) -> float:
    """Expected wall time of `work_s` seconds of training with failures. A checkpoint is written
    after each `every_s` seconds of training, in `write_s` seconds; a restart takes `restart_s`
    seconds. The time between two failures of the system is exponentially distributed with mean
    `mtbf_s` (Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", Future Gener. Comput. Syst. 22:303)."""
    if math.isinf(mtbf_s):
        return work_s * (1 + write_s / every_s)
    segments = work_s / every_s
    try:
        lost = math.exp(restart_s / mtbf_s) * math.expm1((every_s + write_s) / mtbf_s)
    except OverflowError:  # failures are so frequent that no segment is ever completed
        return math.inf
    return mtbf_s * lost * segments


def best_checkpoint_interval(write_s: float, mtbf_s: float) -> float:
    """Seconds of work between two checkpoints that minimise the lost time (Young 1974, Commun. ACM
    17:530, first order)."""
    return math.sqrt(2 * write_s * mtbf_s)
