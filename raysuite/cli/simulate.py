"""`raysuite simulate`: one optimiser step of each run, task by task, on any machine."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_text, stdout
from raysuite.cli.run_options import Overrides, Scale
from raysuite.errors import UserError
from raysuite.units import human_seconds

if TYPE_CHECKING:
    from raysuite.models.costs import LayerCost
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.simulator import Crowd, Layer, Network, Step
    from raysuite.plan import RunPlan


def simulate(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The experiment's YAML file.")],
    overrides: Overrides = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Numbers of workers. Default: the spec's."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="What lies between workers: ethernet-40g, hdr-fat-tree, juwels-booster, or a file "
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
        typer.Option(metavar="FILE", help="Chrome's trace of the first run's step; see Perfetto."),
    ] = None,
    gantt: Annotated[bool, typer.Option("--gantt", help="Draw each step in text.")] = False,
    scale: Scale = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the steps as JSON.")] = False,
) -> None:
    """Simulate one optimiser step of each run from the schedule that would run. Nothing is started.

    A step's tasks are the passes of a network's layers or stages, the reduction of gradients in the
    strategy's buckets, and transfers between stages. How fast a worker computes is from a
    calibration or given; what lies between workers is from a calibration or a file. Simulations are
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
    for each in _plans(spec, overrides or [], scale, workers):
        began = time.perf_counter()
        between = stated or measured_network(each, found)
        step = step_of(each, found, rate, between, jitter, straggler)
        took = time.perf_counter() - began
        if trace is not None and not lines:
            trace.write_text(step.trace(), "utf-8")
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
        print_text(json.dumps(lines, indent=2))
        return
    _print(lines)


def _print(lines: Sequence[dict[str, Any]]) -> None:
    from raysuite.report.tables import Sheet, terminal_sheet

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
            cell += [human_seconds(line["expected_s"]), human_seconds(line["checkpoint_every_s"])]
        cells.append(tuple(cell))
    sheet = Sheet("simulated", "Simulated, not measured", tuple(header), tuple(cells))
    stdout().print(terminal_sheet(sheet))
    print_text("simulated, not measured: docs/how-to/predictions.md tells how far to trust it")


def _plans(
    spec: Path, overrides: list[str], scale: str | None, workers: str | None
) -> list[RunPlan]:
    """Each run once, whatever its repeats."""
    from raysuite.plan import make_plans
    from raysuite.spec import read_document

    counts = []
    if workers is not None:
        try:
            counts = [int(each) for each in workers.split(",")]
        except ValueError:
            counts = [0]
        if min(counts) < 1:
            raise UserError(f"--workers: given was {workers!r}; it should be numbers such as 4,64")
        overrides = [*overrides, f"matrix.resources.workers={json.dumps(counts)}"]
    document = read_document(spec, overrides, scale)
    plans = make_plans(document, max([*counts, 2**21]), elsewhere=True)
    return [plan for plan in plans if plan.repeat == 0]


def measured_network(plan: RunPlan, calibration: Calibration | None) -> Network:
    """The link that a calibration found inside a node. Raises UserError where there is none."""
    from raysuite.perf.costs import strategy_kind
    from raysuite.perf.simulator import Link, Network

    data = plan.model_dump(mode="json")
    kind = strategy_kind(data) if plan.schedule is None else "ddp"
    costs = {} if calibration is None else calibration.seconds.costs
    byte, message = costs.get(f"byte/{kind}"), costs.get(f"message/{kind}", 0.0)
    nodes = 1 if calibration is None else calibration.workers_per_node
    if plan.workers == 1 or (byte and plan.workers <= nodes):
        link = Link(latency_us=message * 1e6, gb_per_s=1 / byte / 1e9 if byte else 1e6)
        return Network(
            name="measured", source="calibration", workers_per_node=nodes, inside=link, between=link
        )
    raise UserError(
        f"what lies between {plan.workers} workers is not known: "
        + (f"the calibration measured up to {nodes} on one node; " if calibration else "")
        + "give --network NAME, such as hdr-fat-tree, or a file like those in deploy/networks"
    )


def step_of(
    plan: RunPlan,
    calibration: Calibration | None,
    rate: float | None,
    network: Network,
    jitter: float,
    straggler: float,
) -> Step:
    from raysuite.perf.costs import strategy_kind, work_name
    from raysuite.perf.prediction import FORWARD_SHARE
    from raysuite.perf.simulator import Crowd, Sharing, Step, data_parallel, pipeline_step

    data, update, extra = plan.model_dump(mode="json"), 0.0, 0.0
    strategy = data["spec"]["strategy"]
    if calibration is not None:
        work, kind, costs = work_name(data), strategy_kind(data), calibration.seconds.costs
        if f"image/{work}" not in costs:
            raise UserError(f"no run of the calibration had {work}; measure it, or give its rate")
        beside = min(plan.workers, calibration.workers_per_node)
        image = costs[f"image/{work}"] + costs.get(f"neighbour/{work}", 0.0) * (beside - 1) / beside
        image += costs.get(f"load/{plan.spec.loader.name}", 0.0)
        extra = costs[f"pass/{work}"]
        update = costs[f"update/{work}"] + costs.get(f"step/{kind}", 0.0)
        update += 4 * calibration.works[work].parameters * costs.get(f"copy/{kind}", 0.0)
    else:
        assert rate is not None
        image = 1 / rate
    seconds = image * plan.micro_batch + extra
    layers = _layers(plan, seconds, FORWARD_SHARE)
    if plan.schedule is not None:
        return pipeline_step(layers, plan.schedule, network, plan.replicas, update / len(layers))
    if straggler > 1 and plan.workers > 1:
        crowds: Sequence[Crowd] = [Crowd(plan.workers - 1), Crowd(1, straggler)]
    else:
        crowds = [Crowd(plan.workers, straggler)]
    sharing = Sharing.of(strategy)
    if calibration is not None and plan.device == "cpu" and network.source == "calibration":
        # what was measured is what is left beside the passes, which share the processors
        from dataclasses import replace

        sharing = replace(sharing, overlap=False)
    tasks = data_parallel(layers, crowds, network, sharing, plan.accumulate, update, jitter)
    return Step.of(tasks)


def stages_of(plan: RunPlan) -> list[Layer]:
    """The stages of a pipeline, whose passes take a second together."""
    from raysuite.perf.prediction import FORWARD_SHARE

    return _layers(plan, 1.0, FORWARD_SHARE)


_LAYERS: dict[str, tuple[list[LayerCost], list[int]]] = {}


def _layers(plan: RunPlan, seconds: float, forward: float) -> list[Layer]:
    """The network's layers, or a pipeline's stages, which share a pass's time by their FLOPs."""
    from raysuite.perf.simulator import Layer

    key = json.dumps([plan.spec.model.model_dump(), str(plan.dataset), _cut(plan)])
    if key not in _LAYERS:
        _LAYERS[key] = _counted(plan)
    counted, ends = _LAYERS[key]
    whole = sum(each.forward_flops for each in counted) or 1
    layers = [
        Layer(
            each.name,
            seconds * forward * each.forward_flops / whole,
            seconds * (1 - forward) * each.forward_flops / whole,
            each.parameters * 4.0,
            each.output_bytes * float(plan.micro_batch),
        )
        for each in counted
    ]
    if not ends:
        return layers
    begins = [0, *ends[:-1]]
    return [
        Layer(
            f"stage {number}",
            sum(each.forward_s for each in layers[begin:end]),
            sum(each.backward_s for each in layers[begin:end]),
            sum(each.gradient_bytes for each in layers[begin:end]),
            layers[end - 1].output_bytes,
        )
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


def _cut(plan: RunPlan) -> Any:
    strategy = plan.spec.strategy.model_dump()
    return [strategy.get("stages"), strategy.get("partition")]


def _counted(plan: RunPlan) -> tuple[list[LayerCost], list[int]]:
    """The layers, and behind which of them each stage ends; no ends without stages."""
    import torch

    from raysuite.models import build
    from raysuite.models.costs import layer_costs

    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = build(plan.spec.model, plan.dataset)
    counted = layer_costs(model, plan.dataset)
    if plan.schedule is None:
        return counted, []
    from raysuite.parallel.pipeline.blocks import blocks_of
    from raysuite.parallel.pipeline.partition import stage_sizes

    blocks = blocks_of(model)
    names = {id(module): name for name, module in model.named_modules()}
    places = {each.name: place for place, each in enumerate(counted)}
    ends, first = [], 0
    for size in stage_sizes(plan.spec.strategy, blocks):  # type: ignore[arg-type]
        first += size
        held = [names.get(id(module), "") for block in blocks[:first] for module in block.modules]
        ends.append(max(places[name] for name in held if name in places) + 1)
    return counted, ends


def _with_failures(
    plan: RunPlan,
    network: Network,
    training: float,
    mtbf_hours: float,
    write: float,
    restart: float,
) -> dict[str, float]:
    from raysuite.perf.costs import best_checkpoint_interval, expected_run_seconds

    nodes = math.ceil(plan.workers / network.workers_per_node)
    mtbf = mtbf_hours * 3600 / nodes
    every = min(best_checkpoint_interval(write, mtbf), training)
    expected = expected_run_seconds(training, every, write, mtbf, restart)
    return {"expected_s": expected, "checkpoint_every_s": every}
