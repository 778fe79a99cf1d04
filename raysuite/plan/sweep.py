"""A sweep as its results folder keeps it, and taken from there again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysuite.errors import UserError
from raysuite.records import Results
from raysuite.records.journal import SEARCH, Decided
from raysuite.spec import Document
from raysuite.spec.search_check import read_search


def create_sweep(document: Document, root: Path) -> Results:
    """A results folder ROOT/NAME/DATE-TIME for a sweep that begins now."""
    results = Results.create(root / str(document.data["name"]))
    write_sweep(document, results)
    return results


def latest_sweep(document: Document, root: Path) -> Results:
    """The newest results of a sweep. Raises UserError where there are none."""
    parent = root / str(document.data["name"])
    folders = sorted(file.parent for file in parent.absolute().glob(f"*/{SEARCH}"))
    if not folders:
        raise UserError(f"nothing to resume: {parent} holds no sweep; leave --resume out")
    return Results(folders[-1])


def write_sweep(document: Document, results: Results) -> None:
    """Write down what is searched, and the spec that it begins from, in a new results folder."""
    search = read_search(document).model_dump(mode="json")
    spec = {key: value for key, value in document.data.items() if key != "search"}
    results.write_search(search, str(spec["name"]), spec, document.settings)
    results.write_decided(Decided([], is_all=False))
    results.write_plans([])
    (results.folder / "spec.yaml").write_text(document.text, "utf-8")


def sweep_document(results: Results) -> Document:
    """The document of a sweep that began earlier. Raises UserError where there was none."""
    found = results.search()
    if found is None:
        raise UserError(
            f"{results.folder} holds no sweep (it has no search.json); "
            f"resume it by: raysuite run --resume-from {results.folder}"
        )
    data: dict[str, Any] = {**found["spec"], "search": found["search"]}
    file = str(results.folder / "search.json")
    return Document(data=data, file=file, scaled=found.get("settings", {}))


def check_retry(document: Document) -> None:
    """Raise UserError where failed trials cannot be made again: a population has continued without
    them."""
    if read_search(document).scheduler.name == "pbt":
        raise UserError(
            "--retry-failed was given, and these trials are a population (scheduler: pbt), which "
            "has continued without those that failed; leave it out: --resume takes the others"
        )
