"""Learning curves of all trials: where each was stopped, and what it had reached."""

from __future__ import annotations

from raysuite.records import RunPruned
from raysuite.records.derive import STATUS_WORDS
from raysuite.records.sweep import TrialFigures
from raysuite.report import text
from raysuite.report.figures.panels import ACCURACY
from raysuite.report.plot import NEUTRAL, Plot, Trace, safe
from raysuite.report.sweep.colors import BY_RANK, rank_colors
from raysuite.report.sweep.lineage import broken_curve, taken_marks
from raysuite.report.sweep.parallel import told, trial_key
from raysuite.report.sweep.study import Study, trial_name

MOST_MARKERS = 40
"""Epochs up to which each has a mark."""
FEW = 30
"""Crosses up to which they are large."""


def curves(study: Study) -> Plot | None:
    """Validation accuracy over epochs; a cross stands where a trial was stopped early."""
    drawn = [trial for trial in study.trials if trial.curve]
    if not drawn:
        return None
    colors = rank_colors(study.ranked)
    order = [*study.ranked, *(trial for trial in drawn if trial not in study.ranked)]
    named: set[str] = set()
    traces: list[Trace] = []
    for trial in reversed([each for each in order if each.curve]):
        line = _line(study, trial, colors)
        traces.append({**line, "showlegend": line["name"] not in named})
        named.add(line["name"])
    traces += [*_ends(study), *taken_marks(study)]
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
            " A diamond is where a trial took another's weights; its line goes on from theirs: "
            f"{text.count(taken, 'time')}."
        )
    return Plot(
        name="learning-curves",
        title="Learning curves",
        note=f"Top-1 over the whole validation set after each epoch. {BY_RANK}{crosses}",
        description=f"{text.count(len(drawn), 'line')}, one a trial, over epochs.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "epochs"}, "rangemode": "tozero"},
            "yaxis": dict(ACCURACY),
            "height": 420,
        },
    )


def _line(study: Study, trial: TrialFigures, colors: dict[int, str]) -> Trace:
    best, pruned = trial is study.best, trial.status == "pruned"
    color = colors.get(trial.number, NEUTRAL)
    marked = len(trial.curve) <= MOST_MARKERS
    points = broken_curve(study, trial)
    return {
        "type": "scatter",
        "mode": "lines+markers" if marked else "lines",
        "name": f"best: {trial_name(trial)}" if best else STATUS_WORDS[trial.status],
        "x": [epochs for epochs, _ in points],
        "y": [accuracy for _, accuracy in points],
        "line": {
            "color": color,
            "width": 3.5 if best else 1.4 if pruned else 2,
            "dash": "dot" if trial.number not in colors else "solid",
        },
        "marker": {"color": color, "size": 7 if best else 4.5, "symbol": "circle"},
        "opacity": 0.65 if pruned else 1.0,
        "hovertemplate": f"epoch %{{x}}: %{{y:.2%}}<br>{told(study, trial)}<extra></extra>",
        "meta": {"keys": [trial_key(study, trial)]},
    }


def _ends(study: Study) -> list[Trace]:
    """Crosses at the last epochs of trials that were stopped early."""
    ended = [(trial, trial.figures.end) for trial in study.of("pruned") if trial.curve]
    crosses = [(trial, end) for trial, end in ended if isinstance(end, RunPruned)]
    if not crosses:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "where it was stopped",
            "x": [trial.curve[-1][0] + 1 for trial, _ in crosses],
            "y": [trial.curve[-1][2] for trial, _ in crosses],
            "marker": {"color": "#CC79A7", "size": 8 if len(crosses) <= FEW else 5, "symbol": "x"},
            "customdata": [
                [f"{trial_name(trial)} stopped {safe(end.words)}"] for trial, end in crosses
            ],
            "hovertemplate": "%{customdata[0]}<extra></extra>",
            "meta": {"keys": [trial_key(study, t) for t, _ in crosses], "points": True},
        }
    ]
