"""A sweep's summary: sentences that claim no more than its figures show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from raysuite.records import FAILED, RunFailed
from raysuite.records.derive import STATUS_WORDS
from raysuite.records.statistics import difference_of_shares, wilson
from raysuite.records.sweep import TrialFigures, best, ranked
from raysuite.report import text
from raysuite.report.summary import Sentence, busy, share_of_others
from raysuite.report.sweep.importance import Importances
from raysuite.report.sweep.study import Study, epochs_to_target, goal_text, trial_name, worker_time
from raysuite.spec.search import QUALITY, TIMES, Goal


def summarize_sweep(study: Study, found: Importances) -> list[Sentence]:
    """The sentences of a sweep's summary: results, then caveats, then problems."""
    if not study.trials:
        return [Sentence("problem", "No trial has been chosen so far.")]
    said = [Sentence("result", each) for each in (*_results(study), *_cost(study))]
    said += [Sentence("caveat", each) for each in _caveats(study, found)]
    return [*said, *(Sentence("problem", each) for each in _problems(study))]


def _results(study: Study) -> Iterator[str]:
    total, several = text.count(len(study.trials), "trial"), len(study.goals) > 1
    tops = {goal: top for goal in study.goals if (top := best(study.trials, goal)) is not None}
    if not tops:
        yield f"None of {total} has a result so far."
        return
    goals = text.listed([study.told(goal).words for goal in study.goals])
    if study.front:
        names = text.listed([trial_name(trial) for trial in study.front])
        yield f"Pareto front of {goals} among {total}: {names}."
    elif several:
        yield f"None of {total} has results for all of {goals}: there is no Pareto front."
    for goal, top in tops.items():
        head = f"Best {study.told(goal).words}" if several else f"Best of {total}"
        values = ", ".join(study.assignments(top))
        yield f"{head}: {trial_name(top)} with {_reached(study, top, goal)}: {values}."
        if not several:
            yield from _alike(study, top)
    if taken := sum(len(trial.taken) for trial in study.trials):
        yield f"Trials took the weights of other trials {text.count(taken, 'time')}."


def _reached(study: Study, trial: TrialFigures, goal: Goal) -> str:
    said, epochs = goal_text(goal, trial.goals[goal], study.task), text.count(trial.epochs, "epoch")
    if goal in TIMES:
        return f"{said}{epochs_to_target(trial)} of {trial.epochs}"
    if goal == "metric":
        return f"a {study.told(goal).words} of {said} in the best of {epochs}"
    if goal != "accuracy":
        return f"{said} after {epochs}"
    low, high = accuracy_interval(trial)
    interval = f"[{100 * low:.1f}, {100 * high:.1f}]"
    return f"a validation accuracy of {said} {interval} in the best of {epochs}"


def accuracy_interval(trial: TrialFigures) -> tuple[float, float]:
    """The 95 % interval of an accuracy, computed from the number of validation images.

    Wilson 1927, JASA 22:209. The interval includes neither the spread over seeds nor the bias of
    selecting the best trial.
    """
    low, high = wilson(trial.goals["accuracy"] or 0.0, trial.figures.val_samples)
    return float(low), float(high)


def _alike(study: Study, top: TrialFigures) -> Iterator[str]:
    """A sentence on trials that the validation set cannot distinguish from the best trial."""
    if study.goal != "accuracy":
        return
    others = [trial for trial in study.ranked if trial is not top]
    pairs = len(study.ranked) * len(others) // 2  # the best is selected from all trials: Bonferroni
    near = []
    for trial in others:
        shares = (top.goals["accuracy"] or 0.0, trial.goals["accuracy"] or 0.0)
        samples = (top.figures.val_samples, trial.figures.val_samples)
        low, _ = difference_of_shares(*shares, *samples, 1 - 0.05 / pairs)
        if low <= 0:
            near.append(trial_name(trial))
    if near:
        yield f"Not significantly worse, given the size of the validation set: {text.listed(near)}."


def _cost(study: Study) -> Iterator[str]:
    counts = Counter(trial.status for trial in study.trials)
    states = ", ".join(f"{counts[s]} {word}" for s, word in STATUS_WORDS.items() if counts[s])
    number = text.count(len(study.trials), "trial")
    yield f"Cost: {worker_time(study.worker_seconds)} over {number} ({states})."
    pruned = [trial for trial in study.of("pruned") if trial.epochs]
    if not pruned:
        return
    planned = (trial.figures.plan["spec"]["training"]["epochs"] for trial in pruned)
    left = sum(planned) - sum(trial.epochs for trial in pruned)
    yield (
        f"{study.scheduler} stopped {text.count(len(pruned), 'trial')} early and saved "
        f"{text.count(left, 'epoch')}; to measure the time saved, give --against the results of a "
        "sweep without early stopping."
    )


def _caveats(study: Study, found: Importances) -> Iterator[str]:
    if (among := max(len(ranked(study.trials, goal)) for goal in study.goals)) > 1:
        seen = " [ ] is Wilson's 95 % interval, which reflects only the size of the validation set."
        yield (
            f"The best of {among} trials, each with one seed, was chosen by the validation results "
            "that are reported here, so its result is optimistic; run its spec with repeats to "
            "measure the spread over seeds."
            f"{seen if 'accuracy' in study.goals else ''}"
        )
    timed = [study.told(goal).words for goal in study.goals if goal not in QUALITY]
    if study.front and timed:
        yield (
            f"Each {text.listed(timed)} on the Pareto front was measured in one run (n = 1), so "
            "differences along the front may be noise."
        )
    if any(trial.taken for trial in study.trials):
        yield (
            "Values in tables and parallel coordinates are a trial's first values; pbt changed "
            "some later, so a trial's result is not due to its first values alone."
        )
    if found.message:
        yield found.message
    if len(study.hosts) > 1:
        yield (
            f"The trials come from {len(study.hosts)} different environments (hardware or "
            "versions): their figures may not be comparable."
        )
    running = side_by_side(study)
    speeds = {"throughput", *TIMES} & set(study.goals)
    if running > 1 and speeds:
        yield (
            f"Up to {running} trials ran at the same time, and may have slowed each other: speeds "
            "are those under this load."
        )
    if speeds:
        beside = (running - 1) * cores_of(study)
        shares = {trial_name(each): share_of_others(each.figures, beside) for each in study.trials}
        taken = {name: share for name, share in shares.items() if share is not None}
        yield from busy(taken, len(shares), "trials")


def cores_of(study: Study) -> int:
    """The largest number of cores that a trial's workers use; 0 without trials. Trials that ran at
    the same time are other programs to each other; they use at most these cores each."""
    cores = (
        trial.figures.workers * int(trial.figures.plan["spec"]["resources"]["cpus_per_worker"])
        for trial in study.trials
    )
    return max(cores, default=0)


def side_by_side(study: Study) -> int:
    """The largest number of trials that ran at the same time."""
    ends = [(end, -1) for _, end in study.spans] + [(begin, 1) for begin, _ in study.spans]
    now = most = 0
    for _, step in sorted(ends):  # an end sorts before a begin at the same time
        now += step
        most = max(most, now)
    return most


def _problems(study: Study) -> Iterator[str]:
    failed: dict[str, list[str]] = {}
    for trial in study.of("failed"):
        end = trial.figures.end
        why = FAILED[end.reason] if isinstance(end, RunFailed) else ""
        failed.setdefault(why or "with an error", []).append(trial_name(trial))
    for why, names in failed.items():
        yield f"Failed ({why}): {text.listed(names)}."
    stopped, missing = study.of("stopped"), study.of("missing")
    if stopped or missing:
        rest = text.listed([trial_name(trial) for trial in (*stopped, *missing)])
        yield f"Trials without a result so far, which can be resumed: {rest}."
    asked = study.search.get("trials")
    if isinstance(asked, int) and len(study.trials) < asked:
        yield f"{len(study.trials)} of {asked} trials have been chosen so far."
