"""`raysuite evaluate`: what a trained network predicts, and how well, class by class."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.data import progress
from raysuite.cli.run_options import AsJson, BestRun, RunResults, file_to_write
from raysuite.errors import UserError
from raysuite.files import write_whole
from raysuite.spec.datasets import match_classes

if TYPE_CHECKING:
    from raysuite.plan import RunPlan
    from raysuite.train.evaluate import Evaluation

_MOST_CLASSES = 40
"""Lines of the table by class; of more classes, those with the lowest recall are shown."""
_MOST_CONFUSED = 5


def evaluate(
    results: RunResults,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Other data, such as data.path=FOLDER."),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Which run; default: the only one.")
    ] = None,
    best: BestRun = False,
    split: Annotated[Literal["val", "train"], typer.Option(help="Which images.")] = "val",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=file_to_write, help="Write every prediction to a CSV file."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a data set by a run's network: accuracy, figures by class, confused classes.

    The images are those of the run, or of other data of the same classes. In fp32, in this
    process, on a GPU where there is one.

    \b
    Examples:
      raysuite evaluate results/quickstart --run ddp-native-2w-1a2b3c4d
      raysuite evaluate results/quickstart --best --out predictions.csv
      raysuite evaluate results/flowers data.path=/data/new-flowers --json
    """
    import torch

    from raysuite.orchestrate.registration import chosen_run, trained
    from raysuite.records import Results
    from raysuite.train.evaluate import evaluate as predict
    from raysuite.train.evaluate import places

    opened = Results.open(results)
    run_id, note = chosen_run(opened, run, best)
    if note:
        print_text(note, error=True)
    plan, weights = trained(opened, run_id)
    plan = _with_data(plan, overrides or [])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    total = plan.dataset.val_samples if split == "val" else plan.dataset.train_samples
    with progress("predicting", total, "images", hidden=as_json) as advance:
        found = predict(plan, weights, split, device, advance)
    if out is not None:
        _write(found, places(plan, split), out)
    if as_json:
        figures = {
            "run_id": run_id,
            "split": split,
            "samples": len(found.labels),
            "accuracy": found.accuracy,
            "loss": found.loss,
            "classes": found.by_class(),
            "confusion": found.confusion.tolist(),
        }
        print_json(figures)
    else:
        _show(found, split)
        if out is not None:
            print_text(f"predictions: {out}")


def _with_data(plan: RunPlan, overrides: list[str]) -> RunPlan:
    """The run's plan, with the keys of `data` that are given."""
    from raysuite.plan import make_plans
    from raysuite.spec.document import Document, override

    if not overrides:
        return plan
    wrong = [each for each in overrides if not each.startswith("data.")]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: only keys of data, such as data.path=FOLDER")
    document = Document(plan.spec.model_dump(mode="json"), "the run's spec")
    override(document, overrides)
    [other] = make_plans(document, plan.workers if plan.device == "gpu" else 0)
    facts = other.dataset
    if (facts.classes, facts.channels) != (plan.dataset.classes, plan.dataset.channels):
        raise UserError(
            f"the network is for {plan.dataset.classes} classes of images with "
            f"{plan.dataset.channels} channel(s), the data has {facts.classes} and "
            f"{facts.channels}; give data of the same classes, and data.channels where needed"
        )
    of_run = plan.dataset.class_names
    remedy = "give data of the classes that it was trained on"
    match_classes(of_run, "the network", facts.class_names, "the data", remedy)
    return plan.model_copy(update={"spec": other.spec, "dataset": facts})


def _write(found: Evaluation, where: list[str], out: Path) -> None:
    columns = (found.labels, found.predicted, found.probability)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(("sample", "place", "label", "predicted", "probability"))
    for sample, (label, predicted, probability) in enumerate(zip(*columns, strict=True)):
        names = (found.classes[label], found.classes[predicted])
        writer.writerow((sample, where[sample], *names, f"{probability:.6g}"))
    write_whole(out, text.getvalue().encode())


def _show(found: Evaluation, split: str) -> None:
    print_text(
        f"{len(found.labels):,} images ({split}): accuracy {found.accuracy:.2%}, "
        f"loss {found.loss:.4g}"
    )
    lines = found.by_class()
    note = ""
    if len(lines) > _MOST_CLASSES:
        lines = sorted(lines, key=lambda each: (each["recall"] is None, each["recall"]))
        lines = lines[:_MOST_CLASSES]
        note = f"the {_MOST_CLASSES} classes with the lowest recall, of {len(found.classes)}"
    rows = []
    for each in lines:
        shares = ("–" if each[k] is None else f"{each[k]:.1%}" for k in ("precision", "recall"))
        f1 = "–" if each["f1"] is None else f"{each['f1']:.3f}"
        rows.append((str(each["class"]), f"{each['samples']:,}", *shares, f1))
    headings = ("Class", "Images", "Precision", "Recall", "F1")
    stdout().print(table(headings, rows, headings[1:], note))
    wrong = found.confusion.copy()
    wrong[range(len(wrong)), range(len(wrong))] = 0
    order = wrong.argsort(axis=None, kind="stable")[::-1][:_MOST_CONFUSED]
    for row, column in zip(*divmod(order, len(wrong)), strict=True):
        if wrong[row, column]:
            mistaken = f"{found.classes[row]} taken for {found.classes[column]}"
            print_text(f"{mistaken}: {wrong[row, column]:,} of {found.confusion[row].sum():,}")
