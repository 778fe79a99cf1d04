"""`raysuite verify`: check the arithmetic of strategies on this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_json, stderr, stdout, table
from raysuite.cli.run_options import AsJson

if TYPE_CHECKING:
    from rich.table import Table

    from raysuite.plan import RunPlan
    from raysuite.records import GateVerdict

_SAMPLES = 4
"""Samples per micro-batch in the check of the user's own network."""


def verify(
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|YAML",
            help="A strategy, with its options as YAML; may be repeated. Default: all installed.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|YAML",
            help="Also train this network for two steps: module:Net, or a model as in a spec.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|YAML",
            help="The data set whose image shape and number of classes are used to build --model. "
            "Default: digits.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes on this machine.")] = 2,
    accumulate: Annotated[int, typer.Option(min=1, help="Micro-batches per step.")] = 2,
    clip_norm: Annotated[
        float | None, typer.Option(help="Also check clipping to this gradient norm.")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "fp32",
    timeout: Annotated[
        float, typer.Option(min=1, help="Time limit per strategy, in seconds.")
    ] = 180,
    as_json: AsJson = False,
) -> None:
    """Check strategies with the gate: the weights of all ranks must be equal, and equal to those of
    one process.

    Every run is checked anyway before its throughput is reported; this command makes the check
    without a run, and does not use cached results. With --model, your own network is also trained,
    by the strategy on all processes and by one process, in fp32 and in --precision; the result
    names the first parameter that differs. The exit code is 1 if a strategy fails.

    \b
    Examples:
      raysuite verify
      raysuite verify --workers 4 --strategy ddp --strategy '{name: deepspeed, zero_stage: 3}'
      raysuite verify --model my_module:Net --data '{name: image_folder, path: x, image_size: 64}'
      raysuite verify --strategy '{name: custom, target: my_strategies:Overlapped}'
    """
    from raysuite.errors import UserError
    from raysuite.orchestrate.preflight import dry_batch
    from raysuite.orchestrate.torchrun import Request
    from raysuite.orchestrate.torchrun import verify as ask
    from raysuite.records.names import block_name

    training = {"accumulate": accumulate, "clip_norm": clip_norm, "precision": precision}
    if data is not None and model is None:
        raise UserError("--data is only used with --model; give both, or leave --data out")
    plans = _validated(strategy or _installed(), workers, training, model, data)
    options = [plan.spec.strategy for plan in plans]
    names = [block_name(plan.label["strategy"]) for plan in plans]
    if model is not None:
        with dry_batch(plans, None) as check_batch:
            check_batch()
    own = plans if model is not None else []
    request = Request(options, workers, training, plans[0].device, timeout, own)
    verdicts: list[GateVerdict] = []
    with stderr().status(f"{names[0]}: starting {workers} processes") as status:
        for number, verdict in ask(request):
            verdicts.append(verdict)
            after = names[number + 1 : number + 2]
            status.update(f"{len(verdicts)} of {len(names)} checked; {' '.join(after)}")
    passed = all(verdict.passed for verdict in verdicts)
    if as_json:
        left_out = {"kind", "run_id", "cached", "time"}
        rows = [
            {"options": each.model_dump(mode="json"), **verdict.model_dump(exclude=left_out)}
            for each, verdict in zip(options, verdicts, strict=True)
        ]
        print_json({"ok": passed, "verdicts": rows})
    else:
        out = stdout()
        out.print(_table(names, verdicts))
        out.print(_summary(names, verdicts))
    if not passed:
        raise typer.Exit(1)


def _installed() -> list[str]:
    """The strategies that are checked by default, with their options, as JSON."""
    from raysuite.parts import installed
    from raysuite.spec.strategies import STRATEGY_OPTIONS

    return [
        json.dumps({"name": name, **variant})
        for name, options in STRATEGY_OPTIONS.items()
        for variant in options.verified
        if installed(options.part)
    ]


def _validated(
    given: Sequence[str],
    workers: int,
    training: dict[str, Any],
    model: str | None,
    data_set: str | None,
) -> list[RunPlan]:
    """A plan for each strategy, validated like a spec.

    Raises SpecError with all mistakes at once.
    """
    from raysuite.plan import make_plans
    from raysuite.spec import Document, parse_document
    from raysuite.spec.strategies import STRATEGY_OPTIONS

    # with a strategy for CPUs only, all strategies are checked on CPUs
    on_cpus = any(
        name in text and "resources.device" in options.only
        for text in given
        for name, options in STRATEGY_OPTIONS.items()
    )

    def parsed(key: str, text: str) -> Any:
        return parse_document(f"{key}: {text}", f"--{key}").data[key]

    data = {
        "name": "verify",
        "model": "resnet20" if model is None else parsed("model", model),
        "loader": "synthetic",  # only the data set's shape is used
        "data": "digits" if data_set is None else parsed("data", data_set),
        "training": {
            "epochs": 1,
            "batch_per_worker": _SAMPLES * training["accumulate"],
            **training,
        },
        "resources": {"workers": workers, "device": "cpu" if on_cpus else "auto"},
        "matrix": {"strategy": [parsed("strategy", text) for text in given]},
    }
    return make_plans(Document(data, "command line"), elsewhere=True)


def _table(names: Sequence[str], verdicts: Sequence[GateVerdict]) -> Table:
    from rich.text import Text

    network = any(each.network for each in verdicts)
    errors = ("error", "error BatchNorm", *(["error network"] if network else []))
    rows = []
    for name, each in zip(names, verdicts, strict=True):
        found = [each.error, each.error_batchnorm, each.error_network][: len(errors)]
        rows.append(
            (
                name,
                str(each.workers),
                "yes" if each.ranks_equal else "no",
                *map(_scientific, found),
                "none" if each.tolerance is None else f"{each.tolerance:.0e}",
                Text("passed", "green") if each.passed else Text("FAILED", "red"),
                "; ".join(filter(None, [each.message, each.network if each.passed else ""])),
            )
        )
    headings = ("strategy", "workers", "ranks equal", *errors, "tolerance", "verdict", "message")
    return table(headings, rows, ("workers", *errors))


def _summary(names: Sequence[str], verdicts: Sequence[GateVerdict]) -> str:
    wrong = [name for name, each in zip(names, verdicts, strict=True) if not each.passed]
    if wrong:
        return f"The throughput of these strategies would not be reported: {', '.join(wrong)}."
    return "Errors are relative to the result of one process on the same global batch."


def _scientific(error: float | None) -> str:
    return f"{error:.1e}" if error is not None and math.isfinite(error) else "-"
