"""`raysuite simulate`: one optimiser step of each run, task by task, on any machine."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.run_options import AsJson, Overrides, Scale, SpecFile, file_to_write, numbers
from raysuite.errors import UserError
from raysuite.files import write_whole
from raysuite.units import human_seconds

if TYPE_CHECKING:
    from raysuite.models.costs import LayerCost
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.simulator import Crowd, Layer, Network, Step
    from raysuite.plan import RunPlan


def simulate(
    spec: SpecFile,
    overrides: Overrides = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Numbers of workers. Default: the spec's."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Network of the workers: ethernet-40g, hdr-fat-tree, juwels-booster, or a file "
            "like those in deploy/networks. Default: what the calibration measured on one node.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `raysuite calibrate` wrote.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--images-per-second",
            min=1e-9,
            help="Or: how fast one worker alone trains the network.",
        ),
    ] = None,
    jitter: Annotated[
        float, typer.Option(min=0, help="Relative standard deviation of a worker's computation.")
    ] = 0.0,
    straggler: Annotated[
        float, typer.Option(min=1, help="How many times as long one of the workers computes.")
    ] = 1.0,
    mtbf_hours: Annotated[
        float | None,
        typer.Option(min=1e-9, help="Mean time between failures of one node, for a whole run."),
    ] = None,
    checkpoint_s: Annotated[
        float, typer.Option(min=0.001, help="Seconds that a checkpoint takes.")
    ] = 30.0,
    restart_s: Annotated[float, typer.Option(min=0, help="Seconds that a restart takes.")] = 120.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=file_to_write,
            help="Chrome's trace of the first run's step; see Perfetto.",
        ),
    ] = None,
    gantt: Annotated[bool, typer.Option("--gantt", help="Draw each step in text.")] = False,
    scale: Scale = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one optimiser step of each run from the schedule that would run. Nothing is started.

    A step's tasks are the passes of a network's layers or stages, the reduction of gradients in the
    strategy's buckets, and transfers between stages. How fast a worker computes is from a
    calibration or given; the workers' network is from a calibration or a file. Simulations are
    no measurements, and have no interval.

    \b
    Examples:
      raysuite simulate experiments/quickstart.yaml --calibration this-machine.yaml
      raysuite simulate experiments/aach2023-throughput.yaml model=resnet152 --workers 4,64,1024 \\
        --network juwels-booster --images-per-second 300
      raysuite simulate my_experiment.yaml strategy=pipeline --calibration this-machine.yaml --gantt
      raysuite simulate my_experiment.yaml --workers 1024 --network hdr-fat-tree \\
        --images-per-second 800 --jitter 0.03 --mtbf-hours 20000
    """
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.simulator import Network

    if (calibration is None) == (rate is None):
        raise UserError(
            "how fast a worker computes is not known: give one of --calibration FILE and "
            "--images-per-second N"
        )
    found = None if calibration is None else Calibration.read(calibration)
    stated = None if network is None else Network.read(network)
    lines: list[dict[str, Any]] = []
    for each in _plans(spec, overrides or [], scale, workers, found):
        if each.schedule is not None and (jitter, straggler) != (0, 1):
            raise UserError(
                "--jitter and --straggler are for data-parallel strategies; "
                f"{each.title} is a pipeline"
            )
        began = time.perf_counter()
        between = stated or measured_network(each, found)
        step = step_of(each, found, rate, between, jitter, straggler)
        took = time.perf_counter() - began
        if trace is not None and not lines:
            write_whole(trace, step.trace().encode())
        training = step.seconds * each.total_steps
        line: dict[str, Any] = {
            "run": each.title,
            "workers": each.workers,
            "step_s": step.seconds,
            "images_per_s": each.global_batch / step.seconds,
            "shares": step.shares,
            "idle": step.idle,
            "training_s": training,
            "simulated_in_s": took,
        }
        if mtbf_hours is not None:
            line |= _with_failures(each, between, training, mtbf_hours, checkpoint_s, restart_s)
        lines.append(line)
        if gantt and not as_json:
            print_text(f"{each.title}: {step.seconds * 1e3:.3f} ms")
            for text in step.gantt():
                print_text(f"  {text}")
    if as_json:
        print_json(lines)
        return
    _print(lines)


def _print(lines: Sequence[dict[str, Any]]) -> None:
    header = ["Run", "Step", "Images/s", "Where the time goes", "Training"]
    failures = "expected_s" in lines[0]
    header += ["With failures", "Checkpoint every"] if failures else []
    cells = []
    for line in lines:
        shares = ", ".join(f"{name} {part:.0%}" for name, part in line["shares"].items())
        cell = [
            line["run"],
            f"{line['step_s'] * 1e3:,.2f} ms",
            f"{line['images_per_s']:,.0f}",
            shares,
            human_seconds(line["training_s"]),
        ]
        if failures:
            expected = line["expected_s"]
            cell += ["never ends" if expected is None else human_seconds(expected)]
            cell += [human_seconds(line["checkpoint_every_s"])]
        cells.append(cell)
    stdout().print(table(header, cells))
    print_text("simulated, not measured: docs/how-to/predictions.md gives its errors")


def _plans(
    spec: Path,
    overrides: list[str],
    scale: str | None,
    workers: str | None,
    calibration: Calibration | None,
) -> list[RunPlan]:
    """Each run once, whatever its repeats; on GPUs, as many as are needed, unless the calibration
    has none."""
    from raysuite.plan import make_plans
    from raysuite.spec import read_document

    counts = numbers("--workers", workers) if workers else []
    if counts:
        overrides = [*overrides, f"matrix.resources.workers={json.dumps(counts)}"]
    document = read_document(spec, overrides, scale)
    gpus = 2**21 if calibration is None else calibration.gpus
    plans = make_plans(document, gpus, elsewhere=True)
    return [plan for plan in plans if plan.repeat == 0]


def measured_network(plan: RunPlan, calibration: Calibration | None) -> Network:
    """The link that a calibration found inside a node. Raises UserError where there is none."""
    from raysuite.perf.costs import strategy_kind
    from raysuite.perf.simulator import Link, Network

    costs = {} if calibration is None else calibration.seconds.costs
    kind = strategy_kind(plan.model_dump(mode="json"))
    if plan.schedule is not None:  # transfers have the costs of gradients
        sent = [term.partition("/")[2] for term in costs if term[:5] == "byte/"]
        kind = "ddp" if "ddp" in sent else next(iter(sent), kind)
    byte, message = costs.get(f"byte/{kind}"), costs.get(f"message/{kind}", 0.0)
    nodes = 1 if calibration is None else calibration.workers_per_node
    if plan.workers == 1 or (byte is not None and plan.workers <= nodes):
        link = Link(latency_us=message * 1e6, gb_per_s=1 / byte / 1e9 if byte else 1e6)
        return Network(
            name="measured", source="calibration", workers_per_node=nodes, inside=link, between=link
        )
    if plan.workers <= nodes:
        raise UserError(
            f"no run of the calibration had {kind} with several workers; measure one, or give "
            "--network NAME"
        )
    raise UserError(
        f"the network between {plan.workers} workers is not known: "
        + (f"the calibration measured up to {nodes} on one node; " if calibration else "")
        + "give --network NAME, such as hdr-fat-tree, or a file like those in deploy/networks"
    )


def pipeline_seconds(plan: dict[str, Any], calibration: Calibration) -> float:
    """Of one simulated step of a pipeline, by the costs of other runs."""
    from raysuite.plan import RunPlan

    run = RunPlan.model_validate(plan)
    return step_of(run, calibration, None, measured_network(run, calibration)).seconds


def step_of(
    plan: RunPlan,
    calibration: Calibration | None,
    rate: float | None,
    network: Network,
    jitter: float = 0.0,
    straggler: float = 1.0,
) -> Step:
    """One step of a plan, as fast as a calibration has it, or as a worker alone at `rate`."""
    from raysuite.perf.costs import loader_kind, strategy_kind, work_name
    from raysuite.perf.simulator import Crowd, Sharing, Step, data_parallel, pipeline_step

    data, update, pace = plan.model_dump(mode="json"), 0.0, partial(_pace, plan.workers, 0.0)
    if calibration is not None:
        work, kind, costs = work_name(data), strategy_kind(data), calibration.seconds.costs
        wanted = [f"image/{work}", f"load/{loader_kind(data)}"]
        if plan.workers > 1 and plan.schedule is None:
            wanted.append(f"step/{kind}")
        if missing := [term.partition("/")[2] for term in wanted if term not in costs]:
            raise UserError(
                f"no run of the calibration had {', '.join(missing)}; measure it, or give "
                "--images-per-second in place of --calibration"
            )
        alone = plan.micro_batch * costs[f"image/{work}"] + costs[f"pass/{work}"]
        alone += plan.micro_batch * costs[f"load/{loader_kind(data)}"]
        near = plan.micro_batch * costs.get(f"neighbour/{work}", 0.0)
        neighbours = min(plan.workers, calibration.workers_per_node)
        together = alone + near * (neighbours - 1) / neighbours
        if plan.workers > 1:
            flops = calibration.works[work].forward_flops or 0
            together += plan.micro_batch * flops * costs.get(f"beside/{kind}", 0.0)
            together += costs.get(f"hook/{kind}", 0.0)
        update = costs[f"update/{work}"] + costs.get(f"step/{kind}", 0.0)
        update += 4 * calibration.works[work].parameters * costs.get(f"copy/{kind}", 0.0)
        if plan.device == "cpu":
            processors = calibration.processors // plan.spec.resources.cpus_per_worker
            pace = partial(_pace, max(1, processors), near / alone)
    else:
        assert rate is not None
        alone = together = plan.micro_batch / rate
    if plan.schedule is not None:
        beside = 0.0
        if calibration is not None:
            beside = calibration.operations.get(plan.schedule.name, calibration.operation)
        stages = [
            replace(each, forward_s=each.forward_s + beside, backward_s=each.backward_s + beside)
            for each in _layers(plan, alone, calibration)
        ]
        per_stage = update / len(stages)
        epoch = plan.steps_per_epoch
        return pipeline_step(stages, plan.schedule, network, plan.replicas, per_stage, pace, epoch)
    layers = _layers(plan, together, calibration)
    if straggler > 1 and plan.workers > 1:
        crowds: Sequence[Crowd] = [Crowd(plan.workers - 1), Crowd(1, straggler)]
    else:
        crowds = [Crowd(plan.workers, straggler)]
    sharing = Sharing.of(data["spec"]["strategy"])
    if calibration is not None and plan.device == "cpu" and network.source == "calibration":
        # what was measured is what is left beside the passes, which share the processors
        sharing = replace(sharing, overlap=False)
    tasks = data_parallel(layers, crowds, network, sharing, plan.accumulate, update, jitter)
    return Step.of(tasks)


def _pace(processors: int, near: float, workers: int) -> float:
    """Of each of some workers that compute at once: they share the processors, and those that do
    compute at a time slow each other by `near` (n - 1) / n."""
    busy = min(workers, processors)
    return busy / workers / (1 + near * (busy - 1) / busy)


def stages_of(plan: RunPlan) -> list[Layer]:
    """The stages of a pipeline, whose passes take a second together."""
    return _layers(plan, 1.0, None)


_COUNTED: dict[str, tuple[list[LayerCost], Sequence[Any], list[int]]] = {}


def _layers(plan: RunPlan, seconds: float, calibration: Calibration | None) -> list[Layer]:
    """The network's layers, or a pipeline's stages, which share a pass's time by their FLOPs; or
    stages by the times of their blocks, where the calibration has a pipeline that measured them."""
    from raysuite.perf.costs import work_name
    from raysuite.perf.prediction import FORWARD_SHARE
    from raysuite.perf.simulator import Layer

    key = json.dumps([plan.spec.model.model_dump(), str(plan.dataset), plan.schedule is None])
    if key not in _COUNTED:
        _COUNTED[key] = _counted(plan)
    counted, blocks, ends = _COUNTED[key]
    whole = sum(each.forward_flops for each in counted) or 1
    layers = [
        Layer(
            each.name,
            seconds * FORWARD_SHARE * each.forward_flops / whole,
            seconds * (1 - FORWARD_SHARE) * each.forward_flops / whole,
            each.parameters * 4.0,
            each.output_bytes * float(plan.micro_batch),
        )
        for each in counted
    ]
    if plan.schedule is None:
        return layers
    from raysuite.parallel.pipeline.partition import BlockCosts, stage_sizes

    joined = _joined(layers, ends)
    timed = calibration.blocks.get(work_name(plan.model_dump(mode="json"))) if calibration else None
    if timed is not None and len(timed) == len(joined):
        took = sum(map(sum, timed))
        joined = [
            replace(each, forward_s=seconds * forward / took, backward_s=seconds * backward / took)
            for each, (forward, backward) in zip(joined, timed, strict=True)
        ]
    costs = [
        BlockCosts(int(each.gradient_bytes), each.forward_s, each.backward_s) for each in joined
    ]
    sizes = stage_sizes(plan.spec.strategy, blocks, costs)  # type: ignore[arg-type]
    return _joined(joined, list(accumulate(sizes)))


def _joined(layers: Sequence[Layer], ends: Sequence[int]) -> list[Layer]:
    """One layer of those up to each end."""
    from raysuite.perf.simulator import Layer

    return [
        Layer(
            f"stage {number}",
            sum(each.forward_s for each in layers[begin:end]),
            sum(each.backward_s for each in layers[begin:end]),
            sum(each.gradient_bytes for each in layers[begin:end]),
            layers[end - 1].output_bytes,
        )
        for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]


def _counted(plan: RunPlan) -> tuple[list[LayerCost], Sequence[Any], list[int]]:
    """The layers; of a pipeline its blocks, and how many layers come before the end of each."""
    import torch

    from raysuite.models import build
    from raysuite.models.costs import layer_costs

    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = build(plan.spec.model, plan.dataset)
    counted = layer_costs(model, plan.dataset)
    if plan.schedule is None:
        return counted, (), []
    from raysuite.parallel.pipeline.blocks import blocks_of

    blocks = blocks_of(model)
    names = {id(module): name for name, module in model.named_modules()}
    places = {each.name: place for place, each in enumerate(counted)}
    ends = [0]
    for block in blocks:
        held = [places.get(names.get(id(module), ""), -1) + 1 for module in block.modules]
        ends.append(max([ends[-1], *held]))
    return counted, blocks, ends[1:]


def _with_failures(
    plan: RunPlan,
    network: Network,
    training: float,
    mtbf_hours: float,
    write: float,
    restart: float,
) -> dict[str, float | None]:
    from raysuite.perf.costs import best_checkpoint_interval, expected_run_seconds

    nodes = math.ceil(plan.workers / network.workers_per_node)
    mtbf = mtbf_hours * 3600 / nodes
    every = min(best_checkpoint_interval(write, mtbf), training)
    expected = expected_run_seconds(training, every, write, mtbf, restart)
    return {
        "expected_s": None if math.isinf(expected) else expected,
        "checkpoint_every_s": every,
    }
