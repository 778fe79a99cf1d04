"""The search for a batch size, as pure functions of the trials so far."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from raysuite.errors import RunError
from raysuite.plan.feasible import accumulation
from raysuite.plan.resolve import resolve, with_keys
from raysuite.plan.run_plan import RunPlan
from raysuite.records.batch_trials import NEAR, BatchFound, BatchTried, Goal, Stage
from raysuite.spec.batches import AutoBatch

ROUNDS = 3
"""How many times each size is timed in a search for the fastest size."""
_HOPELESS = 0.5
"""A size whose throughput in the first round is below this share of the highest throughput is not
timed again."""


class NothingFitsError(RunError):
    """Not even the smallest size fits into memory."""


@dataclass(frozen=True)
class Sizes:
    """The candidates for the micro-batch size, ascending, and why there are no larger ones."""

    sizes: tuple[int, ...]
    bound: Literal["at_most", "samples", "batch"]


def sizes_of(plan: RunPlan) -> Sizes:
    """The candidates for a plan whose batch size is undecided.

    If the global batch is given, the candidates are those divisors of global batch / replicas for
    which the strategy allows the number of micro-batches. Otherwise they are the powers of two with
    which a step needs no more samples than the training set has. `at_most` is an upper limit.
    """
    auto, strategy = _auto(plan), plan.spec.strategy
    most = auto.at_most or math.inf
    if plan.batch_is_given:
        share = plan.global_batch // plan.replicas
        cuts = [n for n in range(1, share + 1) if share % n == 0]
        cuts = [n for n in cuts if strategy.accumulates(share // n)]
        fit = tuple(n for n in cuts if n <= most)
        return Sizes(fit, "batch" if fit[-1] == cuts[-1] else "at_most")
    held = max(1, plan.dataset.train_samples // (plan.workers * accumulation(plan.spec)))
    powers = [2**n for n in range(held.bit_length())]
    fit = tuple(n for n in powers if n <= most)
    return Sizes(fit, "samples" if fit[-1] == powers[-1] else "at_most")


def decided(plan: RunPlan, micro_batch: int) -> RunPlan:
    """The plan with `micro_batch` as the chosen size, and with all numbers computed from it."""
    spec = plan.spec
    if plan.batch_is_given:
        return _with(plan, {_cut_key(plan): plan.global_batch // (plan.replicas * micro_batch)})
    return _with(plan, {"training.batch_per_worker": micro_batch * accumulation(spec)})


def _cut_key(plan: RunPlan) -> Literal["training.accumulate", "strategy.micro_batches"]:
    """The spec's key for the number of micro-batches."""
    staged = plan.spec.strategy.model_workers > 1
    return "strategy.micro_batches" if staged else "training.accumulate"


def _with(plan: RunPlan, changed: dict[str, Any]) -> RunPlan:
    gpus = plan.workers if plan.device == "gpu" else 0
    spec = with_keys(plan.spec, changed)
    return resolve(spec, plan.label, plan.dataset, plan.repeat, plan.index, gpus)


@dataclass(frozen=True)
class Search:
    """A search and its trials so far.

    Sizes are first tried on single ranks ("alone") and then in full steps ("together"). If each
    rank has a stage of the network (`together_only`), they are tried only in full steps. On single
    ranks, sizes are doubled, from two samples, until a size does not fit; then the interval between
    the last two sizes is bisected. With the goal "largest", the largest size that fits on single
    ranks is then tried in full steps; if it does not fit there, the next smaller size is tried.
    With the goal "fastest", all sizes that fit on single ranks are timed in full steps. If a size
    does not fit, no larger size is tried.
    """

    sizes: tuple[int, ...]
    goal: Goal
    tried: Sequence[BatchTried]
    together_only: bool = False

    def next(self) -> tuple[Stage, int] | None:
        """The next trial; None if the search has ended."""
        between = [n for n in self.sizes if self._lowest < n < self._ceiling]
        if between:
            return "alone", self._step(between)
        if not self._fitting:
            return None
        if self.goal == "largest":
            return None if self.timings(self._lowest) else ("together", self._lowest)
        return self._next_timing()

    @property
    def chosen(self) -> int | None:
        """The chosen size after the search has ended; None if nothing fits."""
        if not self._fitting:
            return None
        return self._lowest if self.goal == "largest" else self._fastest()

    @property
    def hit_memory(self) -> bool:
        """Whether a size did not fit."""
        return math.isfinite(self._ceiling)

    def timings(self, size: int) -> list[float]:
        """Throughput, in images per second, in each trial of `size` in full steps."""
        return [
            each.images_per_second
            for each in self.tried
            if each.micro_batch == size and each.stage == "together" and each.images_per_second
        ]

    @property
    def _ceiling(self) -> float:
        """The smallest size that was found not to fit; infinity if there is none."""
        return min((each.micro_batch for each in self.tried if not each.fits), default=math.inf)

    @property
    def _fitting(self) -> list[int]:
        """The sizes that fit; with `together_only`, also untried sizes below the ceiling."""
        fit = {each.micro_batch for each in self.tried}
        fit |= set(self.sizes) if self.together_only else set()
        return sorted(size for size in fit if size < self._ceiling)

    @property
    def _lowest(self) -> int:
        """The largest size that fits so far; 0 if none has been found."""
        return max(self._fitting, default=0)

    def _step(self, between: Sequence[int]) -> int:
        if self.hit_memory:
            return between[(len(between) - 1) // 2]
        # size 1 is tried last, as it is padded to 2
        most = max(2, 2 * self._lowest)
        return max((n for n in between if n <= most), default=between[0])

    def _next_timing(self) -> tuple[Stage, int] | None:
        """The next trial that times a size in full steps; None after the last round.

        The first round is in descending order, because a size that fits on single ranks may not fit
        in full steps. Later rounds are alternately ascending and descending, so that a drift of the
        machine affects all sizes equally.
        """
        for number in range(ROUNDS):
            left = [n for n in self._rivals(number) if len(self.timings(n)) <= number]
            if left:
                return "together", left[-1] if number % 2 == 0 else left[0]
        return None

    def _rivals(self, number: int) -> list[int]:
        """The sizes to time in a round, ascending."""
        if number == 0:
            return self._fitting
        first = {size: self.timings(size)[0] for size in self._fitting}
        return [size for size in first if first[size] >= _HOPELESS * max(first.values())]

    def _fastest(self) -> int:
        """The smallest size whose mean throughput is within 5 % of the highest mean."""
        means = {size: statistics.fmean(self.timings(size)) for size in self._rivals(1)}
        most = max(means.values())
        return min(size for size, mean in means.items() if mean >= NEAR * most)


def outcome(
    plan: RunPlan, tried: Sequence[BatchTried], seconds: float
) -> tuple[RunPlan, BatchFound]:
    """The plan with the chosen batch size, and the Record of the search.

    `seconds`: duration of the search.

    Raises NothingFitsError.
    """
    auto, found = _auto(plan), sizes_of(plan)
    search = search_of(plan, tried)
    size = search.chosen
    if size is None:
        last = next((each for each in reversed(tried) if not each.fits), None)
        why = f": {last.words}" if last else ""
        raise NothingFitsError(f"{plan.title}: no batch size was found that fits into memory{why}")
    made = decided(plan, size)
    record = BatchFound(
        run_id=made.run_id,
        key=_cut_key(plan) if plan.batch_is_given else "training.batch_per_worker",
        goal=auto.auto,
        micro_batch=made.micro_batch,
        accumulate=made.accumulate,
        global_batch=made.global_batch,
        bound="memory" if search.hit_memory else found.bound,
        memory_share=auto.memory_share,
        tried=list(tried),
        seconds=seconds,
    )
    return made, record


def search_of(plan: RunPlan, tried: Sequence[BatchTried]) -> Search:
    """The search for a plan's batch size; `tried`: the trials so far."""
    staged = plan.spec.strategy.model_workers > 1
    return Search(sizes_of(plan).sizes, _auto(plan).auto, tried, staged)


def opened(plan: RunPlan, at_most: int | None = None) -> RunPlan:
    """The plan with `auto: fastest` as its batch size, even if its spec gives a number.

    The global batch stays unchanged if the spec has `accumulate: auto` or a pipeline.
    """
    given = plan.spec.auto or AutoBatch()
    most = at_most or given.at_most
    wish = AutoBatch(auto="fastest", at_most=most, memory_share=given.memory_share)
    cut = plan.undecided and plan.batch_is_given
    if cut or plan.spec.strategy.model_workers > 1:
        return _with(plan, {_cut_key(plan): wish})
    return _with(plan, {"training.global_batch": None, "training.batch_per_worker": wish})


def same_search(plan: RunPlan) -> str:
    """A key that is equal for plans that can share one search. They may differ in their repeat,
    loader, learning rate, epochs and other settings that are not in the key.

    A search trains on random images, so only the number and shape of a data set's images matter.
    """
    spec = plan.spec
    training = spec.training.model_dump(mode="json")
    parts: dict[str, Any] = {
        **spec.model_dump(mode="json", include={"task", "model", "strategy", "resources"}),
        **{key: training[key] for key in ("global_batch", "batch_per_worker", "accumulate")},
        "precision": training["precision"],
        "compile": spec.training.compile,
        "memory_format": plan.memory_format,
        "cudnn_benchmark": spec.training.cudnn_benchmark,
        "clips": training["clip_norm"] is not None,
        "averages": training["ema_decay"] is not None,
        "optimizer": [spec.optimizer.name, getattr(spec.optimizer, "momentum", 0) != 0],
        "data": asdict(plan.dataset),
        "device": plan.device,
    }
    return json.dumps(parts, sort_keys=True)


def _auto(plan: RunPlan) -> AutoBatch:
    auto = plan.spec.auto
    assert auto is not None, "all numbers of this plan are given"
    return auto
