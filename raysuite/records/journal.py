"""The journal: one append-only JSONL file per run, and the results folder that holds them.

RESULTS/spec.yaml                      the spec as it was written
RESULTS/plan.json                      the RunPlans, in the order of execution
RESULTS/search.json                    of a sweep: what was searched, and the spec it began from
RESULTS/decided.json                   of a sweep: what made no trial, and whether all are decided
RESULTS/heard.jsonl                    of a sweep: epochs in the order in which its scheduler got
RESULTS/commands.txt                   the commands that wrote into it, one a line
RESULTS/runs/RUN_ID/journal.jsonl      the run's Records
RESULTS/predictions.jsonl              what was predicted of its runs, which is no measurement
RESULTS/report.html, rows.csv, rows.md
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from raysuite.errors import UserError
from raysuite.files import write_whole
from raysuite.records.ends import RunEnd, RunFinished
from raysuite.records.predicted import RunPredicted
from raysuite.records.schema import Record, RunStarted

PLAN = "plan.json"
COMMANDS = "commands.txt"
TIMINGS = "timings.json"
SEARCH = "search.json"
DECIDED = "decided.json"
PREDICTIONS = "predictions.jsonl"

_DATE_TIME = "%Y%m%d-%H%M%S"
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class Journal:
    """One run's Records on disk. Every line is flushed to the disk before `write` returns."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(file)

    def write(self, record: Record) -> None:
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(record.model_dump_json() + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _end_last_line(file: Path) -> None:
    """Close the half line that a killed writer may have left, so that the next line is whole."""
    if file.exists() and file.stat().st_size:
        with file.open("rb+") as stream:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")


def read_journal(file: Path) -> Iterator[Record]:
    """The Records of a journal; a line that was cut off by a crash is passed over."""
    if not file.exists():
        return
    # a crash can cut a line in the middle of a character
    with file.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                yield _RECORD.validate_json(line)
            except ValidationError:
                continue


def class_names(file: Path) -> tuple[str, ...]:
    """By label, of a run's journal: as they were counted last, else as they were planned; empty
    where neither is on record."""
    names: Sequence[str] = ()
    for record in read_journal(file):
        if isinstance(record, RunStarted):
            names = record.plan["dataset"].get("class_names", names)
        elif isinstance(record, RunFinished) and record.classes:
            names = record.classes.names
    return tuple(names)


def began(file: Path) -> float:
    """When a suite with this plan.json began, in seconds since the epoch: by the name of its
    folder, or, where that was given another, by its last plan."""
    try:
        return time.mktime(time.strptime(file.parent.name, _DATE_TIME))
    except ValueError:
        return file.stat().st_mtime


class Decided(NamedTuple):
    """How far a sweep has decided its trials, beyond those that have a plan."""

    left_out: list[dict[str, Any]]
    """Values that make no spec, in the order in which they were decided."""
    is_all: bool
    """Whether no further trial is to come."""


class Results:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, parent: Path) -> Results:
        """A new, empty results folder PARENT/DATE-TIME. Raises UserError where none can be made."""
        while True:
            folder = parent.absolute() / time.strftime(_DATE_TIME)
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError:
                time.sleep(0.2)
            except OSError as error:
                raise UserError(
                    f"no results folder can be made: {folder}: {error.strerror}; give --results "
                    "FOLDER that you can write to, on a disk with free space"
                ) from error

    @classmethod
    def open(cls, folder: Path) -> Results:
        """An existing results folder, or the newest one in an experiment's folder or above it.

        Raises UserError where there is none.
        """
        if (folder / PLAN).is_file():
            return cls(folder)
        found = [file for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{PLAN}")]
        if not found:
            raise UserError(
                f"{folder} is not a results folder (it has no {PLAN}); "
                "give the folder that `raysuite run` printed"
            )
        return cls(max(found, key=began).parent)

    def plans(self) -> list[dict[str, Any]]:
        """The RunPlans as plain data, in the order of execution."""
        loaded: list[dict[str, Any]] | None = self._read(PLAN)
        return loaded or []

    def write_plans(self, plans: Sequence[dict[str, Any]]) -> None:
        """Write the RunPlans, in the order of execution."""
        self._write(PLAN, list(plans))

    def search(self) -> dict[str, Any] | None:
        """A sweep's `search` section, its `name`, the `spec` that it began from, and `settings`:
        keys that are set for every block that is drawn there. All plain data; None where these are
        no results of a sweep.
        """
        loaded: dict[str, Any] | None = self._read(SEARCH)
        return loaded

    def write_search(
        self,
        search: dict[str, Any],
        name: str,
        spec: dict[str, Any],
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Write down what a sweep searches."""
        content = {"search": search, "name": name, "spec": spec, "settings": settings or {}}
        self._write(SEARCH, content)

    def decided(self) -> Decided | None:
        """How far a sweep has decided its trials; None where that was not written down."""
        found = self._read(DECIDED)
        return None if found is None else Decided(**found)

    def write_decided(self, decided: Decided) -> None:
        self._write(DECIDED, decided._asdict())

    def _read(self, name: str) -> Any:
        file = self.folder / name
        try:
            return json.loads(file.read_text("utf-8")) if file.is_file() else None
        except ValueError as error:
            raise UserError(
                f"{file} is damaged ({error}); restore it from a copy, or give other results"
            ) from error

    def _write(self, name: str, content: Any) -> None:
        """A reader never sees half a file."""
        write_whole(self.folder / name, json.dumps(content, indent=1).encode())

    def add_plan(self, plan: dict[str, Any]) -> None:
        """Add one RunPlan after the others, unless it is there."""
        plans = self.plans() if (self.folder / PLAN).exists() else []
        if plan["run_id"] not in {known["run_id"] for known in plans}:
            self.write_plans([*plans, plan])

    def add_command(self, command: str) -> None:
        """Write down a command that adds to this folder: one line each."""
        with (self.folder / COMMANDS).open("a", encoding="utf-8") as stream:
            stream.write(command.replace("\n", " ") + "\n")

    def commands(self) -> list[str]:
        file = self.folder / COMMANDS
        return file.read_text("utf-8").splitlines() if file.is_file() else []

    def write_timings(self, timings: Sequence[dict[str, Any]]) -> None:
        """Write the wall time of each command: `began` in seconds since 1970, and `seconds` by
        phase."""
        self._write(TIMINGS, list(timings))

    def timings(self) -> list[dict[str, Any]]:
        return list(self._read(TIMINGS) or [])

    def write_predictions(self, predictions: Sequence[RunPredicted]) -> None:
        """Keep what was predicted of the runs, instead of what was predicted before."""
        lines = "".join(f"{each.model_dump_json()}\n" for each in predictions)
        (self.folder / PREDICTIONS).write_text(lines, "utf-8")

    def predictions(self) -> dict[str, RunPredicted]:
        file = self.folder / PREDICTIONS
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
        found = map(RunPredicted.model_validate_json, lines)
        return {each.run_id: each for each in found}

    def journal_file(self, run_id: str) -> Path:
        return self.folder / "runs" / run_id / "journal.jsonl"

    def records(self, run_id: str) -> list[Record]:
        return list(read_journal(self.journal_file(run_id)))

    def end_of(self, run_id: str) -> RunEnd | None:
        """How a run ended; None while it has not, or while it is being retried."""
        records = self.records(run_id)
        last = records[-1] if records else None
        return last if isinstance(last, RunEnd) else None
