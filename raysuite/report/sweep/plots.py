"""The plots of a sweep: a function each, in `PLOTS`, none where there is nothing to draw."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raysuite.records import RunPruned
from raysuite.records.derive import STATUS_WORDS
from raysuite.records.judged import RunJudged
from raysuite.records.names import key_name
from raysuite.records.sweep import LOWER_IS_BETTER, Goal, TrialFigures, pareto
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.plot import NEUTRAL, Plot, Style, Trace
from raysuite.report.sweep.importance import FEW as FEW_TRIALS
from raysuite.report.sweep.importance import MIDDLE, Importances
from raysuite.report.sweep.lineage import accuracy_there
from raysuite.report.sweep.study import (
    STATES,
    TOLD,
    Study,
    cost,
    goal_text,
    is_number,
    trial_name,
    value_text,
    values_text,
    worker_time,
)


def sweep_plots(study: Study, found: Importances, other: Study | None = None) -> list[Plot]:
    """The plots for which there is anything to draw, in the order of the page; `other` is the sweep
    to compare with."""
    made = [
        *fronts(study),
        parallel(study),
        curves(study),
        importance_plot(found),
        anytime(study, other),
        costs(study),
    ]
    return [plot for plot in made if plot is not None]


# Colours of trials: by rank from grey to blue, the best orange, on light and on dark paper.

SCALE = ("#878D96", "#4C93C8", "#1F7FC4")
"""From the worst rank to the second."""
BEST = "#D55E00"
BY_RANK = "The best is orange; the others go by rank, from blue down to grey."
STATE_COLORS = {
    "finished": "#0072B2",
    "pruned": "#2E93CC",
    "failed": "#D55E00",
    "stopped": "#B37700",
    "missing": NEUTRAL,
}


def rank_colors(ranked: Sequence[TrialFigures]) -> dict[int, str]:
    """Number of a trial -> its colour, the first of `ranked` being the best."""
    last = max(1, len(ranked) - 2)
    others = {trial.number: _at(1 - place / last) for place, trial in enumerate(ranked[1:])}
    return {trial.number: BEST for trial in ranked[:1]} | others


def _at(share: float) -> str:
    place = share * (len(SCALE) - 1)
    left = min(int(place), len(SCALE) - 2)
    pairs = zip(_parts(SCALE[left]), _parts(SCALE[left + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - left)):02X}" for a, b in pairs)


def _parts(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


# What a trial's marks have in common.


def told(study: Study, trial: TrialFigures) -> str:
    """The tooltip of a trial: its state, results and values."""
    reached = [f"{TOLD[goal].words} {goal_text(goal, trial.goals[goal])}" for goal in study.goals]
    values = [
        f"{key} = {value_text(trial.values[key])}" for key in study.keys if key in trial.values
    ]
    state = f"{trial_name(trial)}: {STATUS_WORDS[trial.status]}"
    return "\n".join([f"{state}, {text.count(trial.epochs, 'epoch')}", *reached, *values])


def trial_key(study: Study, trial: TrialFigures) -> str:
    """What the page's filters compare: the state, and a text to search in."""
    values = " ".join(f"{key}={value_text(value)}" for key, value in trial.values.items())
    return json.dumps([trial.status, f"{trial_name(trial)} {values}"])


def _trial(study: Study, trial: TrialFigures, colors: dict[int, str]) -> Trace:
    """The style of a trial's line: faint where it was stopped early, dotted where it has no
    rank."""
    best, pruned = trial is study.best, trial.status == "pruned"
    return {
        "kind": "trial",
        "series": trial_name(trial),
        "color": colors.get(trial.number, NEUTRAL),
        "dash": [2, 3] if trial.number not in colors else [1, 0],
        "width": 3.5 if best else 1.4 if pruned else 2.0,
        "faint": 0.55 if pruned else 1.0,
        "key": trial_key(study, trial),
        "tip": told(study, trial),
    }


def _trial_layers(markers: bool = True) -> list[p.Layer]:
    look = {
        "strokeDash": {"field": "dash", "type": "nominal", "scale": None, "legend": None},
        "strokeWidth": {"field": "width", "type": "quantitative", "scale": None},
        "opacity": {"field": "faint", "type": "quantitative", "scale": None},
        "detail": {"field": "series", "type": "nominal"},
        "order": {"field": "step", "type": "quantitative"},
        "tooltip": {"field": "tip", "type": "nominal"},
    }
    line: p.Layer = {"kind": "trial", "mark": {"type": "line"}, "encoding": look}
    dot = p.markers("trial", size=30)
    dot["encoding"] = dot["encoding"] | {"opacity": look["opacity"]}
    return [line, dot] if markers else [line]


# Parallel coordinates: a value's place between 0 and 1, and the axis's ticks.

ABSENT = -0.12
"""The place of a trial that has no value there: a key whose condition does not hold."""
NOT_SET = "unset"
SHORT = 11
"""Letters of a tick; longer ones are cut."""


@dataclass(frozen=True)
class Axis:
    """One vertical axis: a title, ticks, and the position of each trial; None for a trial without
    one."""

    title: str
    places: dict[int, float | None]
    """Number of a trial -> its place, in [0, 1] or ABSENT."""
    ticks: tuple[tuple[float, str], ...]


def key_axis(study: Study, key: str) -> Axis:
    """The axis of a searched key: logarithmic where its values were drawn in the logarithm; names
    are spaced evenly."""
    values = {each.number: each.values[key] for each in study.trials if key in each.values}
    absent = [each.number for each in study.trials if key not in each.values]
    kind = study.kind(key)
    if kind in ("choice", "grid") or not all(map(is_number, values.values())):
        places, ticks = _names(values, study.listed(key))
    else:
        places, ticks = _numbers(values, log="log" in kind)
    whole: dict[int, float | None] = {**places, **dict.fromkeys(absent, ABSENT)}
    below = ((ABSENT, NOT_SET),) if absent else ()
    return Axis(key_name(key), whole, (*below, *ticks))


def goal_axis(study: Study) -> Axis:
    """The axis of the first goal, its best on top."""
    goal = study.goal
    told = TOLD[goal]
    values = {t.number: v for t in study.trials if t.counts and (v := t.goals[goal]) is not None}
    without = dict.fromkeys((t.number for t in study.trials if t.number not in values), None)
    places, ticks = _numbers(values, log=False)
    if goal == "time_to_accuracy":
        places = {number: 1 - place for number, place in places.items()}
        ticks = tuple((1 - place, said) for place, said in ticks)
    if goal == "accuracy":
        ticks = tuple((place, f"{100 * float(said):.4g} %") for place, said in ticks)
    titles = {"accuracy": "accuracy", "time_to_accuracy": "time to accuracy [s]"}
    return Axis(titles.get(goal, told.axis), {**places, **without}, ticks)


def _names(
    values: dict[int, Any], listed: Sequence[Any]
) -> tuple[dict[int, float], tuple[tuple[float, str], ...]]:
    """Numbers in ascending order, other values in the spec's order, without those that no trial
    had."""
    distinct = {_written(value): value for value in (*listed, *values.values())}
    present = {_written(value) for value in values.values()}
    names = [name for name in distinct if name in present]
    if all(is_number(distinct[name]) for name in names):
        names.sort(key=lambda name: distinct[name])
    step = 1 / max(1, len(names) - 1)
    spots = {name: place * step if len(names) > 1 else 0.5 for place, name in enumerate(names)}
    places = {n: spots[_written(value)] for n, value in values.items()}
    return places, tuple((spot, _cut(value_text(distinct[name]))) for name, spot in spots.items())


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _cut(name: str) -> str:
    return name if len(name) <= SHORT else f"{name[: SHORT - 1]}…"


def _numbers(
    values: dict[int, float], log: bool
) -> tuple[dict[int, float], tuple[tuple[float, str], ...]]:
    """A linear axis between the smallest and the largest value of any trial."""
    if not values:
        return {}, ()
    low, high = min(values.values()), max(values.values())
    scale = math.log10 if log and low > 0 else float
    span = scale(high) - scale(low)
    if span <= 0:
        return dict.fromkeys(values, 0.5), ((0.5, f"{low:.4g}"),)

    def place(value: float) -> float:
        return (scale(value) - scale(low)) / span

    ticks = _decades(low, high) if scale is math.log10 else _steps(low, high)
    return (
        {number: place(value) for number, value in values.items()},
        tuple((place(tick), f"{tick:.6g}") for tick in ticks),
    )


def _decades(low: float, high: float) -> Sequence[float]:
    """Powers of ten, with 2 and 5 times them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    found = [f * 10.0**power for power in range(first, last + 1) for f in factors]
    inside = [tick for tick in found if low <= tick <= high]
    return inside if len(inside) > 1 else (low, high)


def _steps(low: float, high: float) -> Sequence[float]:
    """Round numbers, three to seven of them."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


MOST_AXES = 12
"""Keys that are drawn; with more, the lines between them cannot be followed."""
LEAST = 2
"""Trials that have begun; one line compares with nothing."""


def parallel(study: Study) -> Plot | None:
    """A line for each trial that has begun, through its values to its result."""
    # plotly's own trace for this has no hover, needs WebGL, and has no counterpart in matplotlib
    begun = [trial for trial in study.trials if trial.status != "missing"]
    if len(begun) < LEAST:
        return None
    axes = [key_axis(study, key) for key in study.keys[:MOST_AXES]] + [goal_axis(study)]
    colors = rank_colors(study.ranked)
    order = [*study.ranked, *(trial for trial in begun if trial not in study.ranked)]
    traces: list[Trace] = []
    for place, axis in enumerate(axes):
        ends = [min(0.0, *(spot for spot, _ in axis.ticks)) if axis.ticks else 0.0, 1.0]
        traces.append({"kind": "axis", "series": str(place), "x": [place] * 2, "y": ends})
    for trial in reversed(order):  # the best on top
        spots = [axis.places.get(trial.number) for axis in axes]
        known = [(x, y) for x, y in enumerate(spots) if y is not None]
        x, y = [x for x, _ in known], [y for _, y in known]
        look = _trial(study, trial, colors)
        dash = [look.pop("dash")] * len(known)  # it is a list, and lists are columns
        traces.append({**look, "dash": dash, "step": x, "x": x, "y": y})
    for place, axis in enumerate(axes):
        ticks = axis.ticks or ((0.5, ""),)
        traces.append(
            {
                "kind": "text",
                "x": [place] * len(ticks),
                "y": [spot for spot, _ in ticks],
                "text": [said for _, said in ticks],
            }
        )
    more = len(study.keys) - MOST_AXES
    left_out = f" {text.count(more, 'more key')} in the table alone." if more > 0 else ""
    told_goal = TOLD[study.goal].words
    titles = json.dumps([axis.title for axis in axes])
    absent = any(spot < 0 for axis in axes for spot, _ in axis.ticks)
    straight = {"kind": "axis", "mark": {"type": "line", "strokeWidth": 1.5}}
    gray = {"color": {"value": NEUTRAL}, "detail": {"field": "series", "type": "nominal"}}
    return Plot(
        name="parallel",
        title="Parallel coordinates",
        note=f"A line is a trial; the last axis is its {told_goal}, the best on "
        f"top. {BY_RANK} Trials that were stopped early are faint, failed ones dotted.{left_out}",
        description=f"{text.count(len(begun), 'trial')} over {len(axes) - 1} searched keys.",
        traces=traces,
        layers=[straight | {"encoding": gray}, *_trial_layers(), p.text_layer()],
        x={
            "type": "quantitative",
            "title": None,
            "scale": {"domain": [-0.1, len(axes) - 1 + max(0.4, 0.1 * len(axes))], "nice": False},
            "axis": {
                "values": list(range(len(axes))),
                "labelExpr": f"{titles}[datum.value]",
                "orient": "top",
                "grid": False,
                "ticks": False,
                "domain": False,
                "labelOverlap": False,
                "labelAngle": -25,
                "labelAlign": "left",
                "labelLimit": 120,
            },
        },
        y={
            "type": "quantitative",
            "axis": None,
            "scale": {"domain": [-0.18 if absent else -0.06, 1.06], "nice": False},
        },
        height=400,
        wide=True,
    )


# Learning curves: where each trial was stopped, and its result by then.

MOST_MARKERS = 40
"""Epochs up to which each has a mark."""


def curves(study: Study) -> Plot | None:
    """Validation accuracy over epochs; a cross marks where a trial was stopped early."""
    drawn = [trial for trial in study.trials if trial.curve]
    if not drawn:
        return None
    colors = rank_colors(study.ranked)
    order = [*study.ranked, *(trial for trial in drawn if trial not in study.ranked)]
    traces: list[Trace] = []
    for trial in reversed([each for each in order if each.curve]):
        # where it took weights, the line continues from theirs: another piece of it
        for piece, points in enumerate(pieces(study, trial)):
            look = _trial(study, trial, colors)
            look["series"] = f"{trial_name(trial)}.{piece}"
            dash = [look.pop("dash")] * len(points)
            tip = [f"epoch {x:g}: {y:.2%}\n{look['tip']}" for x, y in points]
            x, y = [x for x, _ in points], [y for _, y in points]
            traces.append({**look, "dash": dash, "tip": tip, "x": x, "y": y, "step": x})
    traces += [*_ends(study), *_taken(study)]
    pruned = study.of("pruned")
    crosses = (
        f" A cross is where {study.scheduler} stopped a trial early: {len(pruned)} of "
        f"{len(study.trials)}."
        if pruned
        else ""
    )
    taken = sum(len(trial.taken) for trial in study.trials)
    if taken:
        crosses += (
            " A diamond is where a trial took another's weights; its line continues from theirs: "
            f"{text.count(taken, 'time')}."
        )
    marked = max(len(trial.curve) for trial in drawn) <= MOST_MARKERS
    cross = p.markers("stopped", 70, shape="cross", angle=45)
    diamond = p.markers("taken", 80, shape="diamond")
    cross["encoding"] = cross["encoding"] | {"color": {"value": "#B0528F"}}
    diamond["encoding"] = diamond["encoding"] | {"color": {"value": "#B37700"}}
    return Plot(
        name="learning-curves",
        title="Learning curves",
        note=f"Top-1 over the whole validation set after each epoch. {BY_RANK}{crosses}",
        description=f"{text.count(len(drawn), 'line')}, one a trial, over epochs.",
        traces=traces,
        layers=[*_trial_layers(marked), cross, diamond],
        x=p.quantity("epochs", tickMinStep=1),
        y=p.quantity("validation accuracy", zero=False, format="~%"),
        height=380,
        wide=True,
    )


def pieces(study: Study, trial: TrialFigures) -> list[list[tuple[float, float]]]:
    """Epochs and accuracies of a trial, a list for each piece between two takeovers of weights."""
    made: list[list[tuple[float, float]]] = [[]]
    taken = {turn.epoch: turn for turn in trial.taken}
    for epoch, _, accuracy in trial.curve:
        made[-1].append((epoch + 1, accuracy))
        if epoch in taken and (there := accuracy_there(study, taken[epoch])) is not None:
            made.append([(epoch + 1, there)])
    return made


def _ends(study: Study) -> Iterator[Trace]:
    """The last epochs of trials that were stopped early."""
    for trial in study.of("pruned"):
        end = trial.figures.end
        if trial.curve and isinstance(end, RunPruned):
            yield {
                "kind": "stopped",
                "x": [trial.curve[-1][0] + 1],
                "y": [trial.curve[-1][2]],
                "tip": f"{trial_name(trial)} stopped {end.words}",
                "key": trial_key(study, trial),
            }


def _taken(study: Study) -> Iterator[Trace]:
    """The points at which a trial replaced its own weights."""
    for trial in study.trials:
        for turn in trial.taken:
            if turn.value is not None:
                yield {
                    "kind": "taken",
                    "x": [turn.epoch + 1],
                    "y": [turn.value],
                    "tip": _taken_tip(study, trial, turn),
                    "key": trial_key(study, trial),
                }


def _taken_tip(study: Study, trial: TrialFigures, turn: RunJudged) -> str:
    continues = values_text(turn.values, study.keys)
    return f"{trial_name(trial)}, {turn.words}\ncontinues with {continues}"


# Several goals against each other.


def fronts(study: Study) -> list[Plot | None]:
    """A plot for each pair of goals; none where there is one goal, or no trial has both."""
    pairs = list(itertools.combinations(study.goals, 2))
    return [_front(study, first, second, wide=len(pairs) == 1) for first, second in pairs]


def _front(study: Study, x: Goal, y: Goal, wide: bool) -> Plot | None:
    """The second goal over the first; the axes say which end is better."""
    both = [
        trial
        for trial in study.trials
        if trial.counts and trial.goals[x] is not None and trial.goals[y] is not None
    ]
    if not both:
        return None
    best = sorted(pareto(both, (x, y)), key=lambda trial: trial.goals[x] or 0.0)
    states = [state for state in ("finished", "pruned") if any(t.status == state for t in both)]
    words = {state: STATUS_WORDS[_first(both, state).status] for state in states}
    styles = {
        words[state]: Style(
            STATE_COLORS[state], symbol="circle" if state == "finished" else "square"
        )
        for state in states
    } | {"Pareto front": Style(BEST, symbol="diamond")}
    traces = [
        _goals([t for t in both if t.status == state], study, x, y, words[state], "mean")
        for state in states
    ]
    front = _goals(best, study, x, y, "Pareto front", "front")
    # as stairs: between two trials the front is no better than the worse of them
    stairs = "step-after" if x in LOWER_IS_BETTER else "step-before"
    among = " of these two" if len(study.goals) > 2 else ""
    return Plot(
        name=f"pareto-{x}-{y}".replace("_", "-"),
        title=f"Pareto front: {TOLD[y].words} over {TOLD[x].words}",
        note=f"A point is a trial. On the line, the front{among}: no other trial is better in one "
        f"goal and as good in the other. Better lies {_better(x, 'left', 'right')} and "
        f"{_better(y, 'down', 'up')}. Trials that were stopped early count with their last result.",
        description=f"{text.count(len(both), 'trial')}, {len(best)} of them on the front: "
        f"{text.listed([trial_name(trial) for trial in best])}.",
        traces=[*traces, {name: value for name, value in front.items() if name != "key"}],
        layers=[
            p.line("front", interpolate=stairs),
            p.markers(size=60),
            p.markers("front", size=110),
        ],
        x=_goal_channel(x),
        y=_goal_channel(y),
        styles=styles,
        height=340,
        wide=wide,
    )


def _first(trials: Sequence[TrialFigures], state: str) -> TrialFigures:
    return next(trial for trial in trials if trial.status == state)


def _better(goal: Goal, low: str, high: str) -> str:
    return low if goal in LOWER_IS_BETTER else high


def _goal_channel(goal: Goal) -> p.Layer:
    return p.quantity(TOLD[goal].axis, zero=False, format=TOLD[goal].tickformat)


def _goals(
    trials: Sequence[TrialFigures], study: Study, x: Goal, y: Goal, series: str, kind: str
) -> Trace:
    return {
        "kind": kind,
        "series": series,
        "x": [trial.goals[x] for trial in trials],
        "y": [trial.goals[y] for trial in trials],
        "tip": [told(study, trial) for trial in trials],
        "key": [trial_key(study, trial) for trial in trials],
    }


# Importance of parameters, cost, and the best so far over it.


def importance_plot(found: Importances) -> Plot | None:
    """A bar for each key; None where there are no importances."""
    if not found.keys:
        return None
    names = [key_name(each.key) for each in found.keys]
    rough = f" {found.trials} trials make a rough estimate." if found.trials < FEW_TRIALS else ""
    without = f" Left out, as not every trial has it: {text.listed(list(found.left_out))}."
    return Plot(
        name="importance",
        title="Importance of parameters",
        note=f"Share of the variance of the {found.judged} that a key alone explains, by fANOVA "
        f"over {found.trials} trials; what the bars lack to 100 % is of keys together, and noise. "
        f"Bars are medians and whiskers the middle {MIDDLE:.0%} of {found.resamples} bootstrap "
        f"samples.{rough}{without if found.left_out else ''}",
        description=f"The largest is {found.keys[0].key} with {found.keys[0].middle:.0%}.",
        traces=[
            {
                "kind": "bar",
                "color": "#0072B2",
                "x": [each.middle for each in found.keys],
                "y": names,
                "low": [each.low for each in found.keys],
                "high": [each.high for each in found.keys],
                "tip": [
                    f"{each.key}\n{each.middle:.0%} [{each.low:.0%}, {each.high:.0%}]"
                    for each in found.keys
                ],
            }
        ],
        layers=p.bars(offset=False),
        x=p.quantity("share of the variance, by itself", format="~%"),
        y=p.labels(names),
        height=26,
        bars_per_label=1,
    )


HOURS_FROM = 3600.0
"""Worker-seconds from which plots count in worker-hours."""


def costs(study: Study) -> Plot | None:
    """A bar for each trial, in the order in which they were decided, coloured by state."""
    if study.worker_seconds <= 0:
        return None
    scale = _scale(study.worker_seconds)
    traces: list[Trace] = []
    styles, parts = {}, []
    for state in STATES:
        trials = [trial for trial in study.of(state) if trial.worker_seconds > 0]
        if not trials:
            continue
        spent = sum(trial.worker_seconds for trial in trials)
        word = STATUS_WORDS[trials[0].status]
        parts.append(f"{word} {spent / study.worker_seconds:.0%}")
        styles[word] = Style(STATE_COLORS[state])
        traces.append(
            {
                "kind": "bar",
                "series": word,
                "x": [str(trial.number) for trial in trials],
                "y": [trial.worker_seconds * scale for trial in trials],
                "tip": [
                    f"{trial_name(trial)}: {word}, {text.count(trial.epochs, 'epoch')}\n"
                    f"{worker_time(trial.worker_seconds)}"
                    for trial in trials
                ],
                "key": [trial_key(study, trial) for trial in trials],
            }
        )
    numbers = [str(trial.number) for trial in study.trials]
    axis = p.labels(numbers, "trial", lying=False)
    axis["axis"] |= {"labelOverlap": True, "labelAngle": 0}
    return Plot(
        name="cost",
        title="Cost of each trial",
        note=f"{worker_time(study.worker_seconds)} over all trials: {', '.join(parts)}.",
        description=f"{text.count(len(study.trials), 'bar')}, one a trial.",
        traces=traces,
        layers=p.bars(lying=False, offset=False)[:1],
        x=axis,
        y=p.quantity(unit_of(study.worker_seconds)),
        styles=styles,
    )


def anytime(study: Study, other: Study | None = None) -> Plot | None:
    """The best result so far over the worker time that all trials had used by then; also that of
    another sweep with the same goal."""
    sweeps = {"best so far": study}
    if other is not None and other.goal == study.goal:
        pairs = (("ours", study), ("theirs", other))
        sweeps = {f"{side}: {each.name} ({each.scheduler})": each for side, each in pairs}
    longest = max(each.worker_seconds for each in sweeps.values())
    made = [anytime_trace(each, name, longest) for name, each in sweeps.items()]
    traces = [trace for trace in made if trace is not None]
    if not traces:
        return None
    goal = study.goal
    ends = (f"{trace['series']} at {goal_text(goal, trace['y'][-1])}" for trace in traces)
    looks = (Style("#0072B2"), Style("#D55E00", p.DASHES[1], "square"))
    return Plot(
        name="anytime",
        title="Best so far over its cost",
        note=f"The best {TOLD[goal].words} of all trials of a sweep so far, over the worker time "
        "of all its trials together by then.",
        description=f"It ends at {', '.join(ends)}.",
        traces=traces,
        layers=[p.line(width=2.5, interpolate="step-after"), p.markers()],
        x=p.quantity(f"{unit_of(longest)} spent"),
        y=_goal_channel(goal),
        styles=dict(zip(sweeps, looks, strict=False)),
    )


def anytime_trace(study: Study, name: str, longest: float) -> Trace | None:
    """The line, in the unit that suits `longest` worker-seconds; None where there is no result."""
    total, scale = study.worker_seconds, _scale(longest)
    points: list[tuple[float, float, str]] = []
    for time, value, trial in sorted(_reached(study), key=lambda each: each[0]):
        if points and cost(study.goal, value) >= cost(study.goal, points[-1][1]):
            continue
        spent = study.spent(time)
        said = f"{trial_name(trial)}: {goal_text(study.goal, value)}"
        points.append((spent * scale, value, f"{said}\nafter {worker_time(spent)}"))
    if not points:
        return None
    last = points[-1][1]
    said = f"at the end: {goal_text(study.goal, last)}\nafter {worker_time(total)}"
    points.append((total * scale, last, said))
    return {
        "kind": "mean",
        "series": name,
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "tip": [f"{name}\n{said}" for _, _, said in points],
    }


def _reached(study: Study) -> list[tuple[float, float, TrialFigures]]:
    """Time, value and trial of each result for the goal; trials that do not count are left out."""
    found: list[tuple[float, float, TrialFigures]] = []
    for trial in study.ranked:
        value = trial.goals[study.goal]
        assert value is not None
        epochs = trial.figures.epochs
        if study.goal == "accuracy":
            found += [(epoch.time, epoch.val_accuracy, trial) for epoch in epochs]
        elif study.goal in LOWER_IS_BETTER:  # when the target was met
            met = [epoch.time for epoch in epochs if epoch.elapsed_seconds >= value]
            found += [(time, value, trial) for time in met[:1]]
        elif trial.figures.end is not None:
            found.append((trial.figures.end.time, value, trial))
    return found


def unit_of(seconds: float) -> str:
    """The unit for a plot up to that many worker-seconds."""
    return "worker-hours" if seconds >= HOURS_FROM else "worker-seconds"


def _scale(seconds: float) -> float:
    """Factor from worker-seconds to that unit."""
    return 1 / 3600 if seconds >= HOURS_FROM else 1.0
