"""The plots of a sweep. Functions return None if there is nothing to draw."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysuite.records import RunPruned
from raysuite.records.derive import STATUS_WORDS
from raysuite.records.names import key_name
from raysuite.records.sweep import TrialFigures, pareto
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.plot import NEUTRAL, Plot, Style, Trace
from raysuite.report.sweep.importance import FEW as FEW_TRIALS
from raysuite.report.sweep.importance import MIDDLE, Importances
from raysuite.report.sweep.study import (
    Study,
    goal_text,
    is_number,
    trial_name,
    value_of_source,
    value_text,
    values_text,
)
from raysuite.spec.search import Goal


def sweep_plots(study: Study, found: Importances) -> list[Plot]:
    """The plots that have anything to draw, in the order of the page."""
    made = [*fronts(study), parallel(study), curves(study), importance_plot(found)]
    return [plot for plot in made if plot is not None]


# Colours of trials on light and dark pages: orange for the best, then by rank from blue to grey.

SCALE = ("#1F7FC4", "#4C93C8", NEUTRAL)
"""Colours of trials, from the second rank to the worst."""
BEST = "#D55E00"
BY_RANK = "The best is orange; the others are coloured by rank, from blue to grey."


def rank_colors(ranked: Sequence[TrialFigures]) -> dict[int, str]:
    """Number of a trial -> its colour, by rank; the first trial in `ranked` is the best."""
    others = len(ranked) - 1
    shades = [SCALE[len(SCALE) * place // others] for place in range(others)]
    return {each.number: color for each, color in zip(ranked, (BEST, *shades), strict=False)}


# Tooltips, search texts and line styles of trials, which are the same in all plots.


def told(study: Study, trial: TrialFigures) -> str:
    """The tooltip of a trial: its state, results and values."""
    reached = [
        f"{study.told(goal).words} {goal_text(goal, trial.goals.get(goal), study.task)}"
        for goal in study.goals
    ]
    state = f"{trial_name(trial)}: {STATUS_WORDS[trial.status]}"
    epochs = text.count(trial.epochs, "epoch")
    return "\n".join([f"{state}, {epochs}", *reached, *study.assignments(trial)])


def trial_key(trial: TrialFigures) -> str:
    """The text of a trial in which the page's search looks for the given words."""
    values = " ".join(f"{key}={value_text(value)}" for key, value in trial.values.items())
    return f"{trial_name(trial)} {STATUS_WORDS[trial.status]} {values}"


def _line(
    study: Study,
    trial: TrialFigures,
    colors: Mapping[int, str],
    series: str,
    points: Iterable[dict[str, Any]],
) -> Trace:
    """A trial's line: faint if the trial was stopped early, dotted if the trial has no rank."""
    best, pruned = trial is study.best, trial.status == "pruned"
    dash = [1, 0] if trial.number in colors else [2, 3]  # per point: lists are columns
    return p.trace(
        "trial",
        [each | {"step": each["x"], "dash": dash} for each in points],
        series=series,
        tip=told(study, trial),
        color=colors.get(trial.number, NEUTRAL),
        width=3.5 if best else 1.4 if pruned else 2.0,
        faint=0.55 if pruned else 1.0,
        key=trial_key(trial),
    )


def _worst_first(study: Study, trials: Iterable[TrialFigures]) -> list[TrialFigures]:
    """The trials, worst first, so that the best is drawn on top."""
    places = {trial.number: place for place, trial in enumerate(study.ranked)}
    return sorted(trials, key=lambda t: places.get(t.number, len(places)), reverse=True)


def _trial_layers(markers: bool = True) -> list[p.Layer]:
    look = {
        "strokeDash": {"field": "dash", "type": "nominal", "scale": None, "legend": None},
        "strokeWidth": {"field": "width", "type": "quantitative", "scale": None},
        "opacity": {"field": "faint", "type": "quantitative", "scale": None},
        "detail": {"field": "series", "type": "nominal"},
        "order": {"field": "step", "type": "quantitative"},
    }
    line, dot = p.layer("trial", "line", look | p.TIP), p.markers("trial", size=30)
    dot["encoding"] |= {"opacity": look["opacity"]}
    return [line, dot] if markers else [line]


# Parallel coordinates: a value's position between 0 and 1, and the axis's ticks.

ABSENT = -0.12
"""Position, on a key's axis, of trials without a value (the key's condition does not hold)."""
NOT_SET = "unset"

Ticks = list[tuple[float, str]]
"""Positions with their labels."""


@dataclass(frozen=True)
class Axis:
    """One vertical axis: its title, its ticks, and the positions of trials."""

    title: str
    places: dict[int, float]
    """Number of a trial -> its position, in [0, 1] or ABSENT."""
    ticks: Ticks


def key_axis(study: Study, key: str) -> Axis:
    """The axis of a searched key, logarithmic if its values were drawn on a logarithmic scale.
    Values of a `choice` or `grid`, and values other than numbers, are evenly spaced."""
    values = {each.number: each.values[key] for each in study.trials if key in each.values}
    absent = [each.number for each in study.trials if key not in each.values]
    kind = study.kind(key)
    if kind in ("choice", "grid") or not all(map(is_number, values.values())):
        places, ticks = _names(values)
    else:
        places, ticks = _numbers(values, value_text, log="log" in kind)
    if absent:
        places |= dict.fromkeys(absent, ABSENT)
        ticks = [(ABSENT, NOT_SET), *ticks]
    return Axis(key_name(key), places, ticks)


def goal_axis(study: Study) -> Axis:
    """The axis of the first goal, with the best value on top."""
    goal = study.goal
    values = {
        t.number: v for t in study.trials if t.counts and (v := t.goals.get(goal)) is not None
    }
    title, write = study.told(goal).words, study.told(goal).write
    if goal == "throughput":  # the unit would not fit beside each tick
        title, write = study.told(goal).axis, text.number
    places, ticks = _numbers(values, write)
    if study.lower_is_better(goal):
        places = {number: 1 - place for number, place in places.items()}
        ticks = [(1 - place, name) for place, name in ticks]
    return Axis(title, places, ticks)


def _names(values: dict[int, Any]) -> tuple[dict[int, float], Ticks]:
    """Evenly spaced positions: numbers in ascending order, other values sorted by name."""
    names = {value_text(each): each for each in values.values()}
    number = all(map(is_number, values.values()))
    order = sorted(names, key=lambda name: names[name] if number else name)
    last = len(order) - 1
    spots = {name: place / last if last else 0.5 for place, name in enumerate(order)}
    ticks = [(spot, name) for name, spot in spots.items()]
    return {trial: spots[value_text(each)] for trial, each in values.items()}, ticks


def _numbers(
    values: dict[int, float], write: Callable[[float], str], log: bool = False
) -> tuple[dict[int, float], Ticks]:
    """Positions between the smallest and the largest value, with ticks there and in the middle."""
    log = log and min(values.values(), default=0) > 0
    scaled = {number: math.log(value) if log else value for number, value in values.items()}
    low, high = min(scaled.values(), default=0.0), max(scaled.values(), default=0.0)
    if low == high:
        return dict.fromkeys(values, 0.5), [(0.5, each) for each in {*map(write, values.values())}]
    ends = ((0.0, low), (0.5, (low + high) / 2), (1.0, high))
    ticks = [(place, write(math.exp(value) if log else value)) for place, value in ends]
    return {number: (each - low) / (high - low) for number, each in scaled.items()}, ticks


MOST_AXES = 12
"""Largest number of keys that are drawn; lines between more axes could not be followed."""
LEAST = 2
"""Smallest number of begun trials that are drawn; fewer trials leave nothing to compare."""


def parallel(study: Study) -> Plot | None:
    """Draw a line for each trial that has begun, through its values to its result."""
    begun = [trial for trial in study.trials if trial.status != "missing"]
    if len(begun) < LEAST:
        return None
    axes = [key_axis(study, key) for key in study.keys[:MOST_AXES]] + [goal_axis(study)]
    colors = rank_colors(study.ranked)
    traces: list[Trace] = []
    for place, axis in enumerate(axes):
        ends = (min([0.0, *(spot for spot, _ in axis.ticks)]), 1.0)
        traces.append(p.trace("axis", [{"x": place, "y": y} for y in ends], series=str(place)))
    for trial in _worst_first(study, begun):
        places = [(x, axis.places.get(trial.number)) for x, axis in enumerate(axes)]
        points = [{"x": x, "y": y} for x, y in places if y is not None]
        traces.append(_line(study, trial, colors, trial_name(trial), points))
    ticks = [
        {"x": place, "y": spot, "text": name}
        for place, axis in enumerate(axes)
        for spot, name in axis.ticks
    ]
    traces.append(p.trace("text", ticks))
    more = len(study.keys) - MOST_AXES
    left_out = f" {text.count(more, 'more key')} only in the table." if more > 0 else ""
    told_goal = study.told(study.goal).words
    titles = json.dumps([axis.title for axis in axes])
    absent = any(spot < 0 for axis in axes for spot, _ in axis.ticks)
    gray = {"color": {"value": NEUTRAL}, "detail": {"field": "series", "type": "nominal"}}
    domain = [-0.1, len(axes) - 1 + max(0.4, 0.15 * len(axes))]
    room = {"limit": {"expr": f"max(80, width / {domain[1] - domain[0]:.3g} - 12)"}}
    names = p.WORDS | {"mark": p.WORDS["mark"] | room}  # up to the next axis
    return Plot(
        name="parallel",
        title="Parallel coordinates",
        note=f"Each line is a trial; the last axis shows the {told_goal}, with the best value on "
        f"top. {BY_RANK} Lines of trials that were stopped early are faint; lines of trials "
        f"without a result are dotted.{left_out}",
        description=f"{text.count(len(begun), 'trial')} over {len(axes) - 1} searched keys.",
        traces=traces,
        layers=[p.line("axis", 1.5, gray), *_trial_layers(), names],
        x={
            "type": "quantitative",
            "title": None,
            "scale": {"domain": domain, "nice": False},
            "axis": {
                "values": list(range(len(axes))),
                "labelExpr": f"{titles}[datum.value]",
                "orient": "top",
                "grid": False,
                "ticks": False,
                "domain": False,
                "labelOverlap": False,
                "labelAngle": -60,
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
"""With more epochs, lines have no markers."""


def curves(study: Study) -> Plot | None:
    """Draw the primary metric over epochs; crosses mark where trials were stopped early."""
    drawn = [trial for trial in study.trials if trial.curve]
    if not drawn:
        return None
    colors, shown = rank_colors(study.ranked), study.told(study.quality)
    write = "{:.2%}".format if study.task.main.unit == "share" else shown.write
    traces: list[Trace] = []
    for trial in _worst_first(study, drawn):
        # when a trial takes weights, a new piece of its line begins at the other trial's value
        for piece, epochs in enumerate(pieces(study, trial)):
            points = [
                {"x": x, "y": y, "tip": f"epoch {x:g}: {write(y)}\n{told(study, trial)}"}
                for x, y in epochs
            ]
            traces.append(_line(study, trial, colors, f"{trial_name(trial)}.{piece}", points))
    traces += [*_ends(study), *_taken(study)]
    note = f"{study.task.main.note} over the whole validation set after each epoch. {BY_RANK}"
    if pruned := len(study.of("pruned")):
        note += f" Crosses mark where {study.scheduler} stopped a trial early: "
        note += f"{pruned} of {len(study.trials)}."
    if taken := sum(len(trial.taken) for trial in study.trials):
        note += " Diamonds mark where a trial continued from another trial's weights: "
        note += f"{text.count(taken, 'time')}."
    marked = max(len(trial.curve) for trial in drawn) <= MOST_MARKERS
    cross = p.markers("stopped", 70, "#B0528F", shape="cross", angle=45)
    diamond = p.markers("taken", 80, "#B37700", shape="diamond")
    return Plot(
        name="learning-curves",
        title="Learning curves",
        note=note,
        description=f"{text.count(len(drawn), 'line')}, one per trial, over epochs.",
        traces=traces,
        layers=[*_trial_layers(marked), cross, diamond],
        x=p.quantity("epochs", tickMinStep=1),
        y=p.quantity(shown.words, zero=False, format=shown.tickformat),
        height=380,
        wide=True,
    )


def pieces(study: Study, trial: TrialFigures) -> list[list[tuple[float, float]]]:
    """Points (epoch, value) of a trial; a new list begins where it took another trial's weights."""
    made: list[list[tuple[float, float]]] = [[]]
    taken = {turn.epoch: turn for turn in trial.taken}
    for epoch, _, value in trial.curve:
        made[-1].append((epoch + 1, value))
        if epoch in taken and (there := value_of_source(study, taken[epoch])) is not None:
            made.append([(epoch + 1, there)])
    return made


def _ends(study: Study) -> Iterator[Trace]:
    """The last epochs of trials that were stopped early."""
    for trial in study.of("pruned"):
        end = trial.figures.end
        if trial.curve and isinstance(end, RunPruned):
            tip = f"{trial_name(trial)} stopped {end.words}"
            epoch, _, value = trial.curve[-1]
            point = {"x": epoch + 1, "y": value}
            yield p.trace("stopped", [point], tip=tip, key=trial_key(trial))


def _taken(study: Study) -> Iterator[Trace]:
    for trial in study.trials:
        for turn in trial.taken:
            if turn.value is not None:
                values = values_text(turn.values, study.keys)
                tip = f"{trial_name(trial)}, {turn.words}\ncontinues with {values}"
                point = {"x": turn.epoch + 1, "y": turn.value}
                yield p.trace("taken", [point], tip=tip, key=trial_key(trial))


# Several goals against each other.


def fronts(study: Study) -> list[Plot | None]:
    """A plot for each pair of goals; None for a pair if no trial has results for both goals."""
    pairs = list(itertools.combinations(study.goals, 2))
    return [_front(study, first, second, wide=len(pairs) == 1) for first, second in pairs]


def _front(study: Study, x: Goal, y: Goal, wide: bool) -> Plot | None:
    """Draw goal `y` over goal `x`; the note names the direction of better values on each axis."""
    both = [
        trial
        for trial in study.trials
        if trial.counts and trial.goals.get(x) is not None and trial.goals.get(y) is not None
    ]
    if not both:
        return None

    def points(trials: Iterable[TrialFigures]) -> Iterator[dict[str, Any]]:
        for trial in trials:
            yield {"x": trial.goals.get(x), "y": trial.goals.get(y), "tip": told(study, trial)}

    traces: list[Trace] = []
    styles = {}
    looks = {"finished": Style("#0072B2"), "pruned": Style("#2E93CC", symbol="square")}
    for state, look in looks.items():
        trials = [trial for trial in both if trial.status == state]
        if trials:
            word = STATUS_WORDS[trials[0].status]
            styles[word] = look
            keys = [trial_key(trial) for trial in trials]
            traces.append(p.trace("mean", points(trials), series=word, key=keys))
    front = pareto(both, (x, y)) if len(study.goals) > 2 else study.front
    best = sorted(front, key=lambda trial: trial.goals.get(x) or 0.0)
    styles["Pareto front"] = Style(BEST, symbol="diamond")
    traces.append(p.trace("front", points(best), series="Pareto front"))
    # stairs: between two trials on the front, only the worse value of each goal was reached
    stairs = "step-after" if study.lower_is_better(x) else "step-before"
    among = " of these two" if len(study.goals) > 2 else ""
    better_x = "left" if study.lower_is_better(x) else "right"
    better_y = "down" if study.lower_is_better(y) else "up"
    return Plot(
        name=f"pareto-{x}-{y}".replace("_", "-"),
        title=f"Pareto front: {study.told(y).words} over {study.told(x).words}",
        note=f"Points are trials. The line is the front{among}: for a trial on it, no other trial "
        "is better in one goal and at least as good in the other. Better trials are further "
        f"{better_x} and further {better_y}. Trials that were stopped early count with their last "
        "results.",
        description=f"{text.count(len(both), 'trial')}, {len(best)} of them on the front: "
        f"{text.listed([trial_name(trial) for trial in best])}.",
        traces=traces,
        layers=[
            p.line("front", interpolate=stairs),
            p.markers(size=60),
            p.markers("front", size=110),
        ],
        x=_goal_channel(study, x),
        y=_goal_channel(study, y),
        styles=styles,
        height=340,
        wide=wide,
    )


def _goal_channel(study: Study, goal: Goal) -> p.Layer:
    return p.quantity(study.told(goal).axis, zero=False, format=study.told(goal).tickformat)


# Importance of parameters.


def importance_plot(found: Importances) -> Plot | None:
    """A bar for each key; None without importances."""
    if not found.keys:
        return None
    bars = [
        {
            "x": each.middle,
            "y": key_name(each.key),
            "low": each.low,
            "high": each.high,
            "tip": f"{each.key}\n{each.middle:.0%} [{each.low:.0%}, {each.high:.0%}]",
        }
        for each in found.keys
    ]
    rough = f" {found.trials} trials give a rough estimate." if found.trials < FEW_TRIALS else ""
    without = f" Left out, because some trials have no value: {text.listed(list(found.left_out))}."
    return Plot(
        name="importance",
        title="Importance of parameters",
        note=f"Share of the variance of the {found.judged} that a key alone explains, by fANOVA "
        f"over {found.trials} trials; the rest up to 100 % is due to interactions of keys, and "
        f"noise. Bars are medians, and whiskers contain the middle {MIDDLE:.0%}, of "
        f"{found.resamples} bootstrap samples.{rough}{without if found.left_out else ''}",
        description=f"The most important is {found.keys[0].key} with {found.keys[0].middle:.0%}.",
        traces=[p.trace("bar", bars, color="#0072B2")],
        layers=p.bars(offset=False),
        x=p.quantity("share of the variance that the key alone explains", format="~%"),
        y=p.labels([key_name(each.key) for each in found.keys]),
        height=26,
        bars_per_label=1,
    )
