"""`raysuite evaluate`: predictions and metrics of a trained network, overall and for each class."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.data import progress
from raysuite.cli.run_options import AsJson, BestRun, RunResults, file_to_write
from raysuite.errors import UserError
from raysuite.files import printable, write_whole
from raysuite.spec.datasets import DatasetFacts, match_classes

if TYPE_CHECKING:
    from raysuite.plan import RunPlan
    from raysuite.train.evaluation import Evaluation, TaskEvaluation

Rows = Iterable[Sequence[object]]

_MOST_CLASSES = 40
"""Largest number of rows in the table. If there are more classes, the classes with the lowest
recall are shown."""
_MOST_CONFUSED = 5


def evaluate(
    results: RunResults,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Override `data` keys to evaluate on other data, such as data.path=FOLDER.",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN_ID", help="The run to evaluate; default: the only one."),
    ] = None,
    best: BestRun = False,
    split: Annotated[Literal["val", "train"], typer.Option(help="The split to evaluate.")] = "val",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=file_to_write, help="Write every prediction to a CSV file."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's network on a data set: the metrics of its task, and the classes that a
    classifier confuses.

    The data set is that of the run, or other data with the same classes or shapes, given by
    KEY=VALUE. Predictions are made in fp32, in this process, on a GPU if there is one. `--out` is
    possible for classifiers, and for other tasks if the output and the target of a sample have at
    most 16 numbers each.

    \b
    Examples:
      raysuite evaluate results/quickstart --run ddp-native-2w-1a2b3c4d
      raysuite evaluate results/quickstart --best --out predictions.csv
      raysuite evaluate results/flowers data.path=/data/new-flowers --json
    """
    import torch

    from raysuite.orchestrate.registration import chosen_run, trained
    from raysuite.records import Results
    from raysuite.train.evaluation import evaluate as predict
    from raysuite.train.evaluation import evaluate_task, left_out, places

    opened = Results.open(results)
    run_id, note = chosen_run(opened, run, best)
    if note:
        print_text(note, error=True)
    plan, weights = trained(opened, run_id)
    plan = _with_data(plan, overrides or [])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    total = plan.dataset.val_samples if split == "val" else plan.dataset.train_samples
    bad = left_out(plan, split)
    skipped = None if bad is None else bad.mask
    if bad is not None and bad.record.words:
        print_text(bad.record.words, error=True)
        total -= bad.record.skipped
    unit = "images" if plan.task.unit == "images" else "samples"
    head = {"run_id": run_id, "split": split}
    names: Sequence[str]
    show: Callable[[dict[str, str], bool], None]
    with progress("predicting", total, unit, hidden=as_json) as advance:
        if plan.spec.task.classifies:
            found = predict(plan, weights, split, device, advance, skipped)
            names, rows = ("label", "predicted", "probability"), _rows_of_classes(found)
            show = partial(_show_classes, found)
        else:
            of_task = evaluate_task(plan, weights, split, device, advance, keep=out is not None)
            names, rows = _task_columns(of_task)
            show = partial(_show_task, of_task, plan)
    if out is not None:
        _write(out, places(plan, split, skipped), names, rows)
    show(head, as_json)
    if out is not None and not as_json:
        print_text(f"predictions: {out}")


def _with_data(plan: RunPlan, overrides: list[str]) -> RunPlan:
    """The plan with the `data` keys of `overrides`. Raises UserError if the data does not fit the
    network."""
    from raysuite.plan import make_plans
    from raysuite.spec.document import Document, override

    if not overrides:
        return plan
    wrong = [each for each in overrides if not each.startswith("data.")]
    if wrong:
        raise UserError(
            f"{', '.join(wrong)}: only keys that begin with `data.` can be set, such as "
            "data.path=FOLDER"
        )
    document = Document(plan.spec.model_dump(mode="json"), "the run's spec")
    override(document, overrides)
    [other] = make_plans(document, plan.workers if plan.device == "gpu" else 0)
    facts = other.dataset
    given, wanted = ((each.sequence, each.inputs, each.classes) for each in (facts, plan.dataset))
    if not plan.spec.task.classifies and given != wanted:
        raise UserError(
            f"the network is for {_shapes(plan.dataset)}, the data has {_shapes(facts)}; give data "
            "of the same shapes"
        )
    if (facts.classes, facts.channels) != (plan.dataset.classes, plan.dataset.channels):
        raise UserError(
            f"the network is for {plan.dataset.classes} classes of images with "
            f"{plan.dataset.channels} channel(s), the data has {facts.classes} classes "
            f"and {facts.channels} channel(s); give data of the same classes, and set "
            "data.channels if needed"
        )
    of_run = plan.dataset.class_names
    remedy = "give data of the classes that the network was trained on"
    match_classes(of_run, "the network", facts.class_names, "the data", remedy)
    return plan.model_copy(update={"spec": other.spec, "dataset": facts})


def _shapes(facts: DatasetFacts) -> str:
    shape = facts.inputs or facts.samples_words
    return f"{shape} and {facts.classes} classes" if facts.classes else shape


def _task_columns(found: TaskEvaluation) -> tuple[Sequence[str], Rows]:
    """The headings and values of targets and outputs; empty if they were not stored."""
    predictions = found.predictions or ()
    names = [
        f"{name}_{number}" if values.shape[1] > 1 else name
        for name, values in zip(("target", "output"), predictions, strict=False)
        for number in range(values.shape[1])
    ]
    pairs = zip(*predictions, strict=True)
    return names, ([f"{value:.6g}" for each in pair for value in each] for pair in pairs)


def _rows_of_classes(found: Evaluation) -> Rows:
    for label, predicted, probability in zip(
        found.labels, found.predicted, found.probability, strict=True
    ):
        yield found.classes[label], found.classes[predicted], f"{probability:.6g}"


def _write(out: Path, places: Sequence[tuple[int, str]], names: Sequence[str], rows: Rows) -> None:
    """Write a CSV file with a line for each sample: its number, its place in the data set (such as
    a file), target and prediction."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(("sample", "place", *names))
    for (sample, place), row in zip(places, rows, strict=True):
        writer.writerow((sample, printable(place), *row))
    write_whole(out, text.getvalue().encode())


def _show_task(found: TaskEvaluation, plan: RunPlan, head: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json({**head, "samples": found.samples, **found.metrics, "loss": found.loss})
        return
    formats = {"share": ".2%"}
    shown = [
        f"{each.title.lower()} {found.metrics[each.name]:{formats.get(each.unit, '.4g')}}"
        for each in plan.task.metrics
        if each.name in found.metrics
    ]
    print_text(
        f"{found.samples:,} samples ({head['split']}): {', '.join(shown)}, loss {found.loss:.4g}"
    )


def _show_classes(found: Evaluation, head: dict[str, str], as_json: bool) -> None:
    if as_json:
        figures = {"samples": len(found.labels), "accuracy": found.accuracy, "loss": found.loss}
        by_class = {"classes": found.by_class(), "confusion": found.confusion.tolist()}
        print_json({**head, **figures, **by_class})
        return
    print_text(
        f"{len(found.labels):,} images ({head['split']}): accuracy {found.accuracy:.2%}, "
        f"loss {found.loss:.4g}"
    )
    lines = found.by_class()
    note = ""
    if len(lines) > _MOST_CLASSES:
        lines = sorted(lines, key=lambda each: (each["recall"] is None, each["recall"]))
        lines = lines[:_MOST_CLASSES]
        note = f"the {_MOST_CLASSES} classes with the lowest recall, of {len(found.classes)}"
    formats = {"precision": ".1%", "recall": ".1%", "f1": ".3f"}
    rows = []
    for each in lines:
        shares = ("–" if each[k] is None else format(each[k], form) for k, form in formats.items())
        rows.append((str(each["class"]), f"{each['samples']:,}", *shares))
    headings = ("Class", "Images", "Precision", "Recall", "F1")
    stdout().print(table(headings, rows, headings[1:], note))
    wrong = found.confusion.copy()
    wrong[range(len(wrong)), range(len(wrong))] = 0
    order = wrong.argsort(axis=None, kind="stable")[::-1][:_MOST_CONFUSED]
    for row, column in zip(*divmod(order, len(wrong)), strict=True):
        if wrong[row, column]:
            mistaken = f"{found.classes[row]} predicted as {found.classes[column]}"
            print_text(f"{mistaken}: {wrong[row, column]:,} of {found.confusion[row].sum():,}")
