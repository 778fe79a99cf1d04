"""Plan a comparison of loaders: the loaders, the data set, and the number and length of timings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from raysuite.errors import SpecError, UserError
from raysuite.plan.dataset import Datasets, dataset_facts, dataset_mistakes
from raysuite.records.loader_rates import Candidate
from raysuite.spec import ExperimentSpec, suggest, validate
from raysuite.spec.base import Strict
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.document import COMMAND_LINE
from raysuite.spec.loaders import LOADER_OPTIONS, AutoOptions, LoaderOptions

NAMES = tuple(name for name in LOADER_OPTIONS if name != AutoOptions().name)
_OPTIONS: TypeAdapter[Any] = TypeAdapter(LoaderOptions)


class LoadingPlan(Strict):
    """One comparison of loaders, with all its settings."""

    data: DataOptions
    facts: DatasetFacts
    split: Literal["train", "val"]
    batch: int
    """Number of images in a batch."""
    seconds: float
    """Wall time of one timing in seconds, if `images` is None."""
    images: int | None
    """Number of images in one timing; None: as many as are loaded in `seconds`."""
    repeats: int
    device: Literal["cpu", "gpu"]
    """The device to which batches are delivered."""
    candidates: tuple[Candidate, ...]

    @property
    def title(self) -> str:
        """Name of the data set, followed by its format if the data set can have several formats."""
        several = len(self.data.formats) > 1
        return f"{self.data.name} {self.data.form}" if several else self.data.name


def loader_options(candidate: Candidate) -> LoaderOptions:
    options: LoaderOptions = _OPTIONS.validate_python(candidate.options)
    return options


def checked_data(block: dict[str, Any]) -> DataOptions:
    """Validate `block`, the `data` block of a spec. Raises SpecError with every mistake."""
    return _spec(block).data


def facts_of(data: DataOptions) -> DatasetFacts:
    """The facts about the data set on disk: counts, classes and the shape of a sample. Raises
    SpecError if the data set cannot be read."""
    spec = _spec(data.model_dump())
    seen = Datasets()
    mistakes = dataset_mistakes(spec, seen)
    if mistakes:
        raise SpecError(mistakes)
    return dataset_facts(spec, seen)


def _spec(data: dict[str, Any], loader: Any = "native") -> ExperimentSpec:
    rest = {"name": "bench", "model": "resnet18", "training": {"epochs": 1, "global_batch": 1}}
    return validate({**rest, "data": data, "loader": loader}, lambda path: (COMMAND_LINE, None))


def loader_blocks(given: Iterable[Any]) -> list[dict[str, Any]]:
    """A block of options for each loader in `given`, which has names or blocks. Raises UserError
    for an unknown loader."""
    blocks = [{"name": each} if isinstance(each, str) else each for each in given]
    for block in blocks:
        name = block.get("name") if isinstance(block, dict) else None
        if name not in NAMES:
            raise UserError(
                f"--loader: no loader is called {name!r}; {suggest(str(name), NAMES)}, or a block "
                "such as '{name: native, decode: scaled}'"
            )
    return blocks


def default_blocks(gpus: int) -> list[dict[str, Any]]:
    """A block of options for each loader; with GPUs, DALI has a second one for `device: gpu`."""
    return [
        {"name": name, **device}
        for name in NAMES
        for device in ({}, {"device": "gpu"})
        if not device or (gpus and "device" in LOADER_OPTIONS[name].model_fields)
    ]


def candidates(
    blocks: Iterable[dict[str, Any]], threads: Sequence[int], processes: Sequence[int]
) -> list[Candidate]:
    """Combine each block with each number of threads or processes. For each of these numbers, also
    add the candidates "decoding alone" and "reading alone", whose throughputs are upper limits.

    A block that sets its number of threads or processes is used only once. Raises UserError for
    options that a loader does not have.
    """
    found: dict[str, Candidate] = {}
    for block in blocks:
        for options in _widened(block, threads, processes):
            candidate = _candidate(options)
            found.setdefault(candidate.name, candidate)
    widths = sorted({each.width for each in found.values()} - {0})
    limits = [
        Candidate(name=f"{kind} alone · {_count(width)}", kind=kind, series=f"{kind} alone",
                  width=width)
        for kind in ("decoding", "reading")
        for width in widths
    ]  # fmt: skip
    return [*found.values(), *limits]


def _widened(
    block: dict[str, Any], threads: Sequence[int], processes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    keys = LOADER_OPTIONS[block["name"]].widths
    if not keys or any(key in block for key in keys):
        yield block
        return
    for key in keys:
        for width in processes if key == "processes" else threads:
            yield {**block, key: width}


def _candidate(options: dict[str, Any]) -> Candidate:
    checked = _spec({"name": "digits"}, options).loader
    dumped = checked.model_dump()
    name, keys, default = checked.name, checked.widths, type(checked)().model_dump()
    extras = [
        f"{key}={value}"
        for key, value in dumped.items()
        if key not in (*keys, "name", "device") and value != default[key]
    ]
    device = [dumped["device"]] if "device" in dumped else []
    kind = " · ".join([" ".join([name, *device]), *extras])
    wide = next((each for each in reversed(keys) if dumped[each]), None)
    if wide:
        told, width = f"{kind} · {_count(dumped[wide], wide)}", dumped[wide]
    else:  # the worker's own thread loads, or nothing is loaded
        told, width = (f"{kind} · the worker itself", 1) if keys else (kind, 0)
    series = f"{kind} · processes" if wide == "processes" else kind
    return Candidate(name=told, kind="loader", series=series, width=width, options=dumped)


_ONE = {"threads": "thread", "processes": "process", "tasks": "task"}


def _count(width: int, noun: str = "threads") -> str:
    return f"{width} {_ONE[noun] if width == 1 else noun}"
