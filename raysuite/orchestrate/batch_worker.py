"""What Ray Train runs on every worker before a suite: the search for batches."""

from __future__ import annotations

import traceback
from functools import partial
from pathlib import Path
from typing import Any

import ray.train

from raysuite.errors import UserError
from raysuite.orchestrate.batches import tried_file
from raysuite.orchestrate.failures import BrokenRunError
from raysuite.orchestrate.meeting import decided
from raysuite.orchestrate.stopping import told
from raysuite.orchestrate.worker import place_of, settle
from raysuite.plan import RunPlan
from raysuite.plan.batches import search_of
from raysuite.records import Results
from raysuite.records.batches import TriedFile
from raysuite.train.batches import search_batch
from raysuite.train.memory import is_out_of_memory
from raysuite.train.peers import is_peer_loss


def search_group(config: dict[str, Any]) -> None:
    """Find the batch of every plan of `config["plans"]`, in order, until told to stop.

    Called anew on fresh workers where some ran out of memory: it goes on behind what was tried.
    """
    settle(config)
    rank = ray.train.get_context().get_world_rank()
    results = Results(Path(config["results"]))
    for plan in [RunPlan.model_validate(each) for each in config["plans"]]:
        tried = tried_file(results.folder, plan)
        if not decided(plan.run_id, rank, partial(_shall_search, plan, results, tried)):
            continue
        world = place_of(plan)
        if world is None:
            continue
        try:
            search_batch(plan, world, tried, lambda: told(results.folder) is not None)
        except Exception as error:
            text = (
                str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            )
            raise BrokenRunError(
                text, traceback.format_exc(), is_peer_loss(error), is_out_of_memory(error)
            ) from None


def _shall_search(plan: RunPlan, results: Results, tried: TriedFile) -> bool:
    """On rank 0. What a model raises by itself, it would raise again."""
    if told(results.folder) is not None:
        return False
    end = results.end_of(plan.run_id)
    raised = end is not None and getattr(end, "reason", "") == "error"
    return not raised and search_of(plan, tried.read()).next() is not None
