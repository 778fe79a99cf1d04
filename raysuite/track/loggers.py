"""Write the params and points that MLflow has for each run also as files for other loggers.

If the data of a run have changed, all its files are replaced. To add a logger, add its function,
its lines in LOGGERS and _HOW_TO_OPEN, its name in `Logger` of raysuite/spec/experiment.py, and its
part in raysuite/parts.py.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from raysuite.parts import installed, part
from raysuite.records import Results, make_rows
from raysuite.records.sweep import trials
from raysuite.track.entries import Point, run_params, title
from raysuite.track.results_folder import experiment_name, locked, results_id
from raysuite.track.sync import one_line
from raysuite.track.upload import points_of, ratio_points, trial_params

_PART = ".part-"
"""Prefix of the folder in which a run's files are written before they replace the older files."""
_MARK = "written"
"""Name of the file that holds the digest of the written data, next to a run's written files."""


class Logged(NamedTuple):
    """The data of one run that is passed to a logger."""

    run_id: str
    name: str
    experiment: str
    results: str
    """The name of the results folder."""
    results_id: str
    params: Mapping[str, str]
    points: Sequence[Point]

    @property
    def finals(self) -> dict[str, float]:
        """Values of the whole run: the points with step 0."""
        return {point.key: point.value for point in self.points if point.step == 0}

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True)
class LoggerSummary:
    name: str
    folder: Path
    written: int = 0
    """Number of runs that were written because they were new or their data had changed."""
    error: str = ""
    """Why runs were not written; empty if all went well."""

    @property
    def ok(self) -> bool:
        return not self.error

    def __str__(self) -> str:
        if not self.ok:
            return f"{self.name}: not written to {self.folder}: {self.error}"
        how = _HOW_TO_OPEN[self.name].format(shlex.quote(str(self.folder)))
        return f"{self.name}: {self.written} runs written; {how}"


def write_logger(results: Results, name: str) -> LoggerSummary:
    """Write the started runs of a results folder with the logger `name`.

    Raises no exception: if a run cannot be written, the summary has the reason.
    """
    folder = results.folder / name
    if not installed(name):
        return LoggerSummary(name, folder, error=f"it is not installed; {part(name).install}")
    try:
        with locked(results.folder):
            for left in folder.glob(f"{_PART}*"):  # by a process that was killed
                shutil.rmtree(left)
            runs = _logged(results)
            written = sum(_replace(LOGGERS[name], run, folder / run.run_id) for run in runs)
    except Exception as error:  # a logger may raise anything; the figures are on disk
        return LoggerSummary(name, folder, error=one_line(error))
    return LoggerSummary(name, folder, written)


def _logged(results: Results) -> list[Logged]:
    search, every = results.search(), trials(results)
    rows = [] if search else make_rows([trial.figures for trial in every])
    ratios = dict[str, list[Point]]()
    for run_id, point in ratio_points(rows):
        ratios.setdefault(run_id, []).append(point)
    return [
        Logged(
            trial.run_id,
            title(trial.figures),
            experiment_name(results),
            results.folder.resolve().name,
            results_id(results.folder),
            run_params(trial.figures.plan) | (trial_params(trial.values) if search else {}),
            [
                *points_of(search, trial, results.journal_file(trial.run_id).parent),
                *ratios.get(trial.run_id, ()),
            ],
        )
        for trial in every
        if trial.figures.started is not None
    ]


def _replace(write: Callable[[Logged, Path], None], run: Logged, folder: Path) -> bool:
    """Write a run; return False if its files are up to date."""
    mark = folder / _MARK
    if mark.is_file() and mark.read_text("ascii") == run.digest:
        return False
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_PART) as scratch:
        made = Path(scratch) / run.run_id
        made.mkdir()
        write(run, made)
        (made / _MARK).write_text(run.digest, "ascii")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return True


def _tensorboard(run: Logged, folder: Path) -> None:
    """Write scalars, and a row with the run's params and final values for the tab HPARAMS."""
    from torch.utils.tensorboard import SummaryWriter

    writing: Any = SummaryWriter  # it has no type hints
    with writing(str(folder)) as writer:
        for point in run.points:
            if point.step:
                when = point.timestamp / 1000
                writer.add_scalar(point.key, point.value, point.step, walltime=when)
        writer.add_hparams(dict(run.params), run.finals, run_name=".", global_step=0)


def _wandb(run: Logged, folder: Path) -> None:
    """Write an offline run, whose charts have the optimiser step or the epoch as their x axis."""
    import wandb

    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_stats=True,
    )
    with wandb.init(
        project=run.experiment,
        id=f"{run.results_id[:8]}-{run.run_id}",
        name=run.name,
        group=run.results,
        config=dict(run.params),
        dir=str(folder),
        mode="offline",
        reinit="create_new",
        settings=settings,
    ) as logged:
        stepped = [(point.key.partition("/")[0], point.step, point) for point in run.points]
        places = sorted((each for each in stepped if each[1]), key=lambda each: each[:2])
        for group in dict.fromkeys(group for group, _, _ in places):
            logged.define_metric(f"{group}/*", step_metric=group)
        for (group, step), points in groupby(places, key=lambda each: each[:2]):
            logged.log({group: step, **{point.key: point.value for _, _, point in points}})
        logged.summary.update(run.finals)


LOGGERS: dict[str, Callable[[Logged, Path], None]] = {"tensorboard": _tensorboard, "wandb": _wandb}
_HOW_TO_OPEN = {
    "tensorboard": "show them with: tensorboard --logdir {}",
    "wandb": "send them with: wandb sync {}/*/wandb/offline-run-*",
}
