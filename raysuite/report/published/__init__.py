"""The papers' published values, each with the place in the paper that states it."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from raysuite.errors import UserError

FOLDER = Path(__file__).parent
Bound = Literal["", "about", "over", "under", "up to"]


@dataclass(frozen=True)
class Published:
    """One value as a paper states it; what the paper leaves open is empty or None."""

    quantity: str
    """Seconds end in `_s`; accuracies, shares and efficiencies are in [0, 1]."""
    model: str
    data: str
    framework: str
    loader: str
    """`native`, `dali-cpu`, `dali-gpu`, or `dali` where the paper does not say which."""
    workers: int | None
    base_workers: int | None
    """Workers of the baseline of a speed-up or an efficiency."""
    schedule: str
    global_batch: int | None
    value: float
    high: float | None
    """The upper end of a range that begins at `value`."""
    bound: Bound
    source: str
    """Figure, table or text of the paper."""
    note: str


@dataclass(frozen=True)
class Paper:
    """A paper and its values."""

    name: str
    title: str
    remarks: tuple[str, ...]
    """What we noticed in its values."""
    values: tuple[Published, ...]


_TITLES = {
    "aach2023": "Aach et al. 2023, Journal of Big Data 10:96, doi 10.1186/s40537-023-00765-w",
    "mahon2020": "Mahon et al. 2020, CCGRID 2020, pp. 760-766",
    "ddlbench2020": "Jansen, Codreanu and Varbanescu 2020, DDLBench",
    "torchgpipe2020": "Kim et al. 2020, torchgpipe, arXiv:2004.09910, with GPipe's values beside",
}
_REMARKS = {
    "aach2023": (
        "Efficiency is normalised to 4 GPUs: E = (T_4 / T_G) * (4 / G).",
        "The shares of Table 2 come from the first 10 epochs and do not add up to 100 %.",
        "Table 2 gives ResNet-101 the same shares of I/O and computation with DALI on 1024 GPUs "
        "as with the native loader on 512.",
    ),
    "mahon2020": ("Throughput stands beside accuracy there: see time to accuracy in the table.",),
    "ddlbench2020": (
        "Its code counts neither a warm-up nor repeats, and a partial batch as a full one.",
    ),
    "torchgpipe2020": (
        "Against one GPU without a pipeline; GPipe's values are of other hardware and software.",
    ),
}
PAPERS = tuple(_TITLES)


def published(name: str) -> Paper:
    """A paper's values. Raises UserError, with the names that are valid, if there is none."""
    if name not in _TITLES:
        near = difflib.get_close_matches(name, PAPERS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        valid = ", ".join(f"published:{paper}" for paper in PAPERS)
        raise UserError(f"no published tables are called {name!r}; {hint}valid are {valid}")
    values = [*_values(FOLDER / f"{name}.csv"), *_shares(FOLDER / f"{name}_table2.csv")]
    return Paper(name, _TITLES[name], _REMARKS[name], tuple(values))


def _lines(file: Path) -> Iterator[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def _values(file: Path) -> Iterator[Published]:
    for line in _lines(file):
        bound = cast(Bound, line["bound"])
        yield Published(
            quantity=line["quantity"],
            model=line["model"],
            data=line["data"],
            framework=line["framework"],
            loader=line["loader"],
            workers=_whole(line["workers"]),
            base_workers=_whole(line["base_workers"]),
            schedule=line["schedule"],
            global_batch=_whole(line["global_batch"]),
            value=float(line["value"]),
            high=float(line["high"]) if line["high"] else None,
            bound=bound,
            source=line["source"],
            note=line["note"],
        )


def _shares(file: Path) -> Iterator[Published]:
    """Aach et al., Table 2: shares in percent by model, GPUs and loader."""
    if not file.is_file():
        return
    for line in _lines(file):
        for share in ("communication", "io", "computation"):
            yield Published(
                quantity=f"share_{share}",
                model=line["model"],
                data="imagenet",
                framework="",
                loader=line["loader"],
                workers=int(line["gpus"]),
                base_workers=None,
                schedule="",
                global_batch=None,
                value=float(line[f"{share}_percent"]) / 100,
                high=None,
                bound="",
                source="Table 2",
                note="",
            )


def _whole(written: str) -> int | None:
    return int(written) if written else None
