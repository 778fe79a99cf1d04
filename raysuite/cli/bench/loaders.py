"""`raysuite bench loaders`: images per second of every loader, and what bounds the best."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml

from raysuite.cli.bench.telling import measure_and_tell, tell_plan
from raysuite.cli.data.progress import cpus
from raysuite.errors import UserError
from raysuite.spec.datasets import DATASETS

if TYPE_CHECKING:
    from raysuite.spec.data import DataOptions


def loaders(
    what: Annotated[
        str,
        typer.Argument(
            metavar="DATASET|SPEC",
            help=f"{', '.join(DATASETS)}, module:attribute, or a spec's YAML file.",
        ),
    ],
    loader: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|BLOCK",
            help="Only these: native, dali, memory, ray_data, synthetic, or a block such as "
            "'{name: native, decode: scaled}'. Can be given several times.",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Threads (Ray tasks); default: up to all CPUs."),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="native's loading processes; default: all CPUs. 0: none."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images of a batch.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one timing.")] = 3.0,
    images: Annotated[int | None, typer.Option(min=1, help="Or: images of one timing.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds over all loaders.")] = 5,
    split: Annotated[Literal["train", "val"], typer.Option(help="What is loaded.")] = "train",
    augment: Annotated[
        str | None, typer.Option(help="none, pad_crop_flip, resized_crop_flip; default: the set's.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Pixels that the network sees.")
    ] = None,
    path: Annotated[str | None, typer.Option(help="Where the set lies.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="folder, tfrecord, idx, binary or pickle.")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "gpu"], typer.Option(help="Where batches are delivered.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Default: results/loaders-DATASET/DATE-TIME."),
    ] = None,
    mlflow: Annotated[bool, typer.Option(help="Send the figures to MLflow.")] = True,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI", help="MLflow's store; default sqlite:///mlflow.db."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be timed; start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Time every loader on a data set, beside bare decoding and bare reading.

    Loaders are timed in rounds, each time in fresh processes. What cannot be timed is a row that
    says why. The last line says what bounds the best loader, and what to try. From a spec come
    its data set and, unless --loader names others, its loaders beside the usual ones.

    \b
    Examples:
      raysuite bench loaders digits
      raysuite bench loaders imagenet --threads 1,2,4 --repeats 10
      raysuite bench loaders image_folder --path photos --image-size 224 --augment resized_crop_flip
      raysuite bench loaders experiments/quickstart.yaml --loader native --loader dali
      raysuite bench loaders imagenet --loader '{name: native, decode: scaled}' --loader native
    """
    from raysuite.plan.loading import LoadingPlan, candidates, default_blocks, facts_of
    from raysuite.plan.loading import loader_blocks as blocks_of
    from raysuite.plan.resolve import local_gpus

    given = {"augment": augment, "image_size": image_size, "path": path, "format": form}
    data, own = _data(what, {key: value for key, value in given.items() if value is not None})
    gpus = local_gpus()
    if device == "gpu" and not gpus:
        raise UserError("--device gpu: there is no GPU here; use cpu, or auto")
    blocks = blocks_of(_parsed(loader)) if loader else [*own, *default_blocks(gpus)]
    several = _numbers("--threads", threads, 1) or _spread(cpus())
    plan = LoadingPlan(
        data=data,
        facts=facts_of(data),
        split=split,
        batch=batch,
        seconds=seconds,
        images=images,
        repeats=repeats,
        device="gpu" if gpus and device != "cpu" else "cpu",
        candidates=tuple(
            candidates(blocks, several, _numbers("--processes", processes, 0) or _all(processes))
        ),
    )
    if dry_run:
        tell_plan(plan, as_json)
        return
    folder = _folder(out, data.name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    measured = measure_and_tell(plan, folder, bool(loader), as_json, mlflow, tracking_uri)
    names = {each.name for each in measured.candidates if each.kind == "loader" and each.width}
    if names.isdisjoint(timing.candidate for timing in measured.timings):
        raise typer.Exit(1)


def _data(what: str, given: dict[str, Any]) -> tuple[DataOptions, list[dict[str, Any]]]:
    """The data set, and the loaders of a spec. Raises UserError for what names none."""
    from raysuite.plan import expand
    from raysuite.plan.loading import checked_data
    from raysuite.spec import read_document

    if Path(what).suffix not in (".yaml", ".yml"):
        return checked_data({"name": what, **given}), []
    specs = [spec for _, spec in expand(read_document(Path(what)))]
    sets = {each.data.model_dump_json(): each.data.model_dump() | given for each in specs}
    checked = {str(block): checked_data(block) for block in sets.values()}
    if len(checked) > 1:
        names = ", ".join(f"{each.name} {each.form or ''}".strip() for each in checked.values())
        raise UserError(
            f"{what} has {len(checked)} data sets ({names}); name one of them instead of the spec, "
            "or choose by --format, --path and --image-size"
        )
    own = [spec.loader.model_dump(exclude_defaults=True) | {"name": spec.loader.name}
           for spec in specs]  # fmt: skip
    return next(iter(checked.values())), own


def _parsed(loader: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for each in loader:
        try:
            block = yaml.safe_load(each)
        except yaml.YAMLError as error:
            raise UserError(f"--loader {each!r} is not YAML: {error}") from error
        found += block.split(",") if isinstance(block, str) else [block]
    return found


def _numbers(option: str, given: str | None, least: int) -> list[int]:
    words = given.split(",") if given else []
    if not all(word.strip().isdecimal() and int(word) >= least for word in words):
        raise UserError(
            f"{option}: given was {given!r}; valid are whole numbers from {least} on, such as 1,2,4"
        )
    return sorted({int(word) for word in words} - {0})


def _spread(most: int) -> list[int]:
    """A few numbers of threads up to `most`."""
    return sorted({1, most // 4, most // 2, most} - {0})


def _all(processes: str | None) -> list[int]:
    return [cpus()] if processes is None else []


def _folder(out: Path | None, name: str) -> Path:
    stem = "".join(letter if letter.isalnum() else "-" for letter in name)
    folder = out or Path("results", f"loaders-{stem}", time.strftime("%Y%m%d-%H%M%S"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "messages.log").touch()
    except OSError as error:
        raise UserError(f"{folder} cannot be written to: {error.strerror}; give --out") from error
    return folder
