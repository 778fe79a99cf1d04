"""The worker of `raysuite verify`: checks strategies one by one, started by torchrun.

python -m torch.distributed.run --nproc-per-node 2 -m raysuite.gate FILE REQUEST

REQUEST is JSON: {"strategies": [[number, options], ...], "settings": {...}, "device": "cpu",
"plans": [[number, plan], ...]}. `plans` is optional: a strategy with a plan is also checked with
the network of the plan. For each strategy, rank 0 appends two lines of JSON to FILE:
{"begin": number} before the check, and a line with the verdict after it. A rank that raises an
exception appends its error and ends with status 1, so that torchrun ends the other ranks, which may
wait for it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from raysuite import models
from raysuite.gate.strategy_check import comm_of, examine, examine_network
from raysuite.parallel import joined
from raysuite.parallel.base import StepSettings, World
from raysuite.plan import RunPlan
from raysuite.records import GateVerdict
from raysuite.spec.strategies import StrategyOptions
from raysuite.train.world import world_from_environment

_OPTIONS: TypeAdapter[StrategyOptions] = TypeAdapter(StrategyOptions)


def main(file: Path, request: dict[str, Any]) -> int:
    """Check the strategies of `request` in order; end with 1 at the first that raises an exception,
    else return 0."""
    settings = StepSettings(micro_batch=1, **request["settings"])
    sys.path.append(os.getcwd())  # the user's own modules are in this folder
    world = world_from_environment(request["device"])
    plans = dict(request.get("plans", []))
    for number, options in request["strategies"]:
        if world.rank == 0:
            _append(file, {"begin": number})
        plan = RunPlan.model_validate(plans[number]) if number in plans else None
        answer = _examine(_OPTIONS.validate_python(options), world, settings, file, number, plan)
        if answer is None:
            return 1
        if world.rank == 0:
            _append(file, {"number": number, "verdict": answer.model_dump_json()})
    return 0


def _examine(
    options: StrategyOptions,
    world: World,
    settings: StepSettings,
    file: Path,
    number: int,
    plan: RunPlan | None,
) -> GateVerdict | None:
    """Return the verdict. If the strategy raises, write the exception to `file` and return None."""
    with ExitStack() as group:
        try:
            strategy = group.enter_context(joined(options, world))
            verdict = examine(options, world, strategy, settings)
            if plan is None or not verdict.passed:
                return verdict
            models.check(plan.spec.model.name)
            precisions = dict.fromkeys(["fp32", settings.precision])
            comm = comm_of(options, world, strategy)
            return examine_network(verdict, plan, world, strategy, comm, list(precisions))
        except Exception as error:
            # write before leaving the group: the other ranks then fail too, with less information
            message = f"rank {world.rank}: {type(error).__name__}: {error}"
            _append(file, {"number": number, "error": message})
            return None


def _append(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
