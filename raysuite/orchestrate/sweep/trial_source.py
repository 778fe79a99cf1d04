"""Ray Tune's search algorithm: suggests the next trial's plan once the cluster has the resources
for it."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ray.tune import Callback
from ray.tune.search import Searcher

from raysuite.errors import SpecError
from raysuite.orchestrate import stopping
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.failures import record_failure, record_lost
from raysuite.orchestrate.leaving_nodes import Need
from raysuite.orchestrate.preflight import lacking, too_large
from raysuite.orchestrate.suite import planned
from raysuite.orchestrate.sweep.population_run import Population
from raysuite.orchestrate.sweep.schedulers import JournaledScheduler
from raysuite.orchestrate.sweep.search_algorithms import next_values
from raysuite.orchestrate.sweep.trial import Request, as_text, record_deadline
from raysuite.plan import RunPlan
from raysuite.plan.dataset import Datasets
from raysuite.plan.dry_batch import unknown_model
from raysuite.plan.space import MOST_LEFT_OUT, draws_replacements
from raysuite.plan.trials import trial_plan
from raysuite.records import Results
from raysuite.records.journal import Decided
from raysuite.records.judged import held_after, turns_of
from raysuite.records.sweep import TrialFigures, trial_figures, wall_seconds
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions

# Compute which trials fit on the cluster at the same time; no CPU and no GPU is counted twice.


def fits(nodes: Sequence[Node], running: Iterable[Need], wanted: Need) -> bool:
    """Whether the nodes have the resources for the workers of all running trials and of the trial
    `wanted`.

    The largest workers are placed first, each on a node with enough free resources. Ray may place
    them differently; a trial's workers then wait, because Ray never allocates more than there is.
    """
    left = [[node.cpus, node.gpus] for node in nodes]
    each = [(need.cpus, int(need.gpu)) for need in (*running, wanted) for _ in range(need.workers)]
    for cpus, gpus in sorted(each, key=lambda worker: (worker[1], worker[0]), reverse=True):
        # a worker without a GPU prefers nodes with few free GPUs
        room = [node for node in left if node[0] >= cpus and node[1] >= gpus]
        if not room:
            return False
        chosen = min(room, key=lambda node: node[1])
        chosen[0] -= cpus
        chosen[1] -= gpus
    return True


# Leave Ray Tune's loop at once, before Ray is shut down.


class TuneShutdown(Callback):
    """Ends Ray Tune's thread at its next step, without waiting for trials.

    Otherwise the thread would still call Ray after Ray has been shut down.
    """

    def __init__(self) -> None:
        self.requested = False

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Called by Ray Tune several times per second. Raises SystemExit if requested."""
        if self.requested:
            raise SystemExit


_READ_EACH_S = 2.0


class TrialSource(Searcher):
    """Suggests `{"request": ...}`, a Request as JSON, for a run whose plan is in the results."""

    def __init__(
        self,
        document: Document,
        search: SearchOptions,
        results: Results,
        capacity: Capacity,
        scheduler: JournaledScheduler,
        notify: Callable[[RunPlan | str], None],
    ) -> None:
        super().__init__()
        self._document, self._search, self._results = document, search, results
        self._capacity, self._scheduler, self._notify = capacity, scheduler, notify
        self._seen = Datasets()
        self._plans = planned(results)
        decided = results.decided() if draws_replacements(search) else None
        # for a random search, infeasible draws count, so they are read; a grid tries infeasible
        # values again
        self._left_out, self._all_decided = decided or Decided([], is_all=False)
        self._population = Population(document, search, results)
        left = [plan for plan in self._plans if results.end_of(plan.run_id) is None]
        self._held = {plan.run_id: plan for plan in left if self._is_held(plan)}
        """Run id -> plan of each trial that waits, at the end of a PBT interval, for the other
        trials of its population."""
        self._is_whole = any(turns_of(results.records(plan.run_id)) for plan in self._plans)
        """Whether all trials of the population have been chosen. After its first PBT step, they
        have."""
        self._has_changed = True
        self._pending = deque(plan for plan in left if plan.run_id not in self._held)
        self._running: dict[str, RunPlan] = {}
        self._deaths: Counter[str] = Counter()
        self._ended: dict[str, TrialFigures] = {}
        self._known_nodes: Sequence[Node] = ()
        self._read_at = -math.inf
        self.stopped = False
        """Whether the driver is ending; no further trial is then started."""

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state, because `notify` cannot be pickled. The state that Ray Tune saves
        is never read."""
        return {}

    @property
    def is_done(self) -> bool:
        """Whether all trials have been chosen and have ended."""
        return self._all_decided and not (self._pending or self._running or self._held)

    def suggest(self, trial_id: str) -> Any:
        """The next run; None if no run can start now, but others are running; FINISHED if none can
        start and none is running."""
        if self.stopped or stopping.requested_stop(self._results.folder) or self._is_full():
            return None if self._running else Searcher.FINISHED
        self._release()
        while self._pending and not self._can_be(self._pending[0]):
            self._pending.popleft()
            self._has_changed = True
        if not self._pending and (plan := self._decide()):
            self._pending.append(plan)
        self._release()
        if not self._pending:
            return None if self._running else Searcher.FINISHED
        needs = [Need.of(plan) for plan in self._running.values()]
        if needs and not fits(self._nodes(), needs, Need.of(self._pending[0])):
            return None
        plan = self._pending.popleft()
        self._begin(plan)
        self._running[trial_id] = plan
        return {"request": as_text(self._request(plan))}

    def _request(self, plan: RunPlan) -> Request:
        limit = self._search.deadline_s
        if limit is not None:  # the limit is for all attempts together
            limit -= wall_seconds(self._results.records(plan.run_id))
        plan, segment = self._population.next_segment(plan)
        return Request(plan=plan, segment=segment, left_s=limit)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Store the plan that a trial reports after the search for its batch size; ignore reports
        of epochs."""
        if "plan" not in result:
            return
        made = RunPlan.model_validate(json.loads(result["plan"]))
        self._plans[made.index] = made
        self._results.write_plans([plan.model_dump(mode="json") for plan in self._plans])
        self._running[trial_id] = made
        self._scheduler.add(made)
        self._notify(made)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called by Ray Tune when a trial has ended. If the trial's process died, the run is
        repeated, or recorded as failed: lost too often, or past the deadline."""
        plan = self._running.pop(trial_id)
        self._has_changed = True
        stopped = stopping.requested_stop(self._results.folder)
        self._scheduler.replay([plan])  # epochs whose report was lost with the process
        if not stopped:
            self._scheduler.settle(plan)  # a trial that the scheduler ended is not repeated
        if self._results.end_of(plan.run_id) is not None:
            return
        if stopped:
            self._pending.append(plan)
            return
        if self._is_held(plan):
            self._held[plan.run_id] = plan
            return
        limit = self._search.deadline_s
        self._deaths[plan.run_id] += 1
        if limit is not None and wall_seconds(self._results.records(plan.run_id)) >= limit:
            record_deadline(plan, self._results)
        elif self._deaths[plan.run_id] > plan.spec.resources.retries:
            record_lost(plan, self._results, None)
        else:
            self._pending.appendleft(plan)

    def _is_held(self, plan: RunPlan) -> bool:
        return held_after(self._results.records(plan.run_id)) is not None

    def _release(self) -> None:
        """Let waiting trials continue, once all trials to be compared have reached the end of the
        interval."""
        self._is_whole |= self._all_decided
        if not (self._held and self._is_whole and self._has_changed):
            return
        self._has_changed = False
        ready = self._population.ready(self._plans, self._held.keys())
        self._pending.extend(plan for plan in self._held.values() if plan.run_id in ready)
        self._held = {run_id: plan for run_id, plan in self._held.items() if run_id not in ready}

    def _nodes(self) -> Sequence[Node]:
        """The resources of each node, read from Ray only every few seconds."""
        if time.monotonic() > self._read_at + _READ_EACH_S:
            self._read_at, self._known_nodes = time.monotonic(), Capacity.now().each
        return self._known_nodes

    def _is_full(self) -> bool:
        """Whether no further trial can start now. If so, the next trial's values are chosen later,
        when more results are known."""
        if not self._running:
            return False
        if len(self._running) >= (self._search.side_by_side or len(self._running) + 1):
            return True
        needs = [Need.of(plan) for plan in self._running.values()]
        return not fits(self._nodes(), needs, Need(1, 1, False))

    def _begin(self, plan: RunPlan) -> None:
        if plan.index >= len(self._plans):
            self._plans.append(plan)
            self._results.add_plan(plan.model_dump(mode="json"))
            self._notify(plan)
        self._scheduler.add(plan)

    def _can_be(self, plan: RunPlan) -> bool:
        """Whether this cluster can execute the run; if not, record the run as infeasible."""
        wrong = [*unknown_model(plan.spec), *lacking(plan), *too_large(plan, self._capacity)]
        if wrong:
            self._begin(plan)
            message = "; ".join(str(mistake) for mistake in wrong)
            record_failure(plan, self._results, "infeasible", message)
        return not wrong

    def _decide(self) -> RunPlan | None:
        """Choose the next feasible plan. Values that give no valid spec are left out and reported;
        a plan that cannot be executed here is recorded as infeasible."""
        if self._all_decided:
            return None
        left_out, known = 0, self._trials()
        while True:
            if self.stopped or stopping.requested_stop(self._results.folder):
                return None
            values = next_values(self._search, known, self._left_out)
            if values is None:
                break
            try:
                plan = trial_plan(
                    self._document, values, len(self._plans), int(self._capacity.gpus), self._seen
                )
            except SpecError as error:
                self._left_out.append(values)
                self._write_down()
                text = ", ".join(f"{key}={value}" for key, value in values.items())
                self._notify(f"no trial with {text}: {'; '.join(str(error).splitlines())}")
                left_out += 1
                if left_out == MOST_LEFT_OUT and draws_replacements(self._search):
                    self._notify(f"no further trials: {left_out} draws in a row gave no valid spec")
                    break
                continue
            if self._can_be(plan):
                return plan
            known = self._trials()
        self._all_decided = True
        self._write_down()
        return None

    def _trials(self) -> list[TrialFigures]:
        """Every trial chosen so far; the journals of ended trials are read only once."""
        found = []
        for plan in self._plans:
            trial = self._ended.get(plan.run_id)
            if trial is None:
                records = self._results.records(plan.run_id)
                trial = trial_figures(plan.model_dump(mode="json"), records)
                if trial.figures.end is not None:
                    self._ended[plan.run_id] = trial
            found.append(trial)
        return found

    def _write_down(self) -> None:
        self._results.write_decided(Decided(self._left_out, self._all_decided))
