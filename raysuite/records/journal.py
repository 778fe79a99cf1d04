"""The journal, an append-only JSONL file of each run, and the results folder with all journals.

RESULTS/spec.yaml                      the spec as it was written
RESULTS/plan.json                      the RunPlans, in the order of execution
RESULTS/plan-CHECKSUM.jsonl            RunPlans added to the plan.json with that checksum
RESULTS/search.json                    for a sweep: its section `search` and its initial spec
RESULTS/decided.json                   for a sweep: invalid values, whether all trials are chosen
RESULTS/epoch-order.jsonl              for a sweep: epochs in the order its scheduler received them
RESULTS/commands.txt                   the commands that wrote into the folder, one per line
RESULTS/runs/RUN_ID/journal.jsonl      the run's Records
RESULTS/predictions.jsonl              predicted figures of the runs, kept apart from measurements
RESULTS/report.html, rows.csv, rows.md
"""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from raysuite.errors import UserError
from raysuite.files import append_line, printable, read_lines, write_whole
from raysuite.records.base import checked_line, content_of
from raysuite.records.batch_trials import BatchFound
from raysuite.records.ends import RunEnd, RunFailed, RunFinished
from raysuite.records.predicted import RunPredicted
from raysuite.records.schema import EpochFinished, Record, RunStarted

PLAN = "plan.json"
COMMANDS = "commands.txt"
TIMINGS = "timings.json"
SEARCH = "search.json"
DECIDED = "decided.json"
PREDICTIONS = "predictions.jsonl"

_DATE_TIME = "%Y%m%d-%H%M%S"
_CHECKSUM = "crc32"
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


class Journal:
    """One run's Records on disk. Every line is flushed to the disk before `write` returns."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)

    def write(self, record: Record) -> None:
        append_line(self.file, checked_line(record))


def read_journal(file: Path) -> list[Record]:
    """The Records of a journal, without an incomplete last line, which a killed writer leaves.

    For a journal that is damaged elsewhere, return only the result of its batch search, if any, and
    a RunFailed that names the damage.
    """
    found = [_record(line) for line in read_lines(file)]
    known = [record for record in found if record is not None]
    if damage := _damage(found):
        kept: list[Record] = [record for record in known if isinstance(record, BatchFound)]
        message = printable(
            f"{file}: {damage}; `--resume` trains the run again (a sweep's trial only with "
            "--retry-failed)"
        )
        run_id, time = file.parent.name, file.stat().st_mtime
        return [*kept, RunFailed(run_id=run_id, time=time, reason="damaged", message=message)]
    return known


def is_damaged(records: Sequence[Record]) -> bool:
    """Whether these Records, which `read_journal` returned, are of a damaged journal."""
    return bool(records) and getattr(records[-1], "reason", "") == "damaged"


def _record(line: bytes) -> Record | None:
    try:
        return _RECORD.validate_json(content_of(line))
    except ValueError:
        return None


def _damage(found: Sequence[Record | None]) -> str:
    """The first damage of a journal since the run last began at epoch 0; empty if there is none."""
    damage, epochs = "", 0
    wanted: int | None = None
    for number, (record, after) in enumerate(zip_longest(found, found[1:]), 1):
        wrong = ""
        match record:
            # earlier versions kept an incomplete line when they appended a new attempt or failure
            case None if not isinstance(after, RunStarted | RunFailed):
                wrong = "is damaged"
            case RunStarted(first_epoch=first):
                if first == 0:
                    damage = ""
                elif first > epochs:
                    wrong = f"resumes at epoch {first}, but {epochs} epochs are recorded"
                epochs = first
                wanted = record.plan.get("spec", {}).get("training", {}).get("epochs", 0)
            case EpochFinished(epoch=epoch):
                if epoch > epochs:
                    wrong = f"is of epoch {epoch}, but {epochs} epochs are recorded"
                epochs = epoch + 1
            case RunFinished(stopped_early=early):
                if wanted is None:
                    wrong = "ends a run that has no beginning"
                elif epochs < (min(1, wanted) if early else wanted):
                    wrong = f"ends the run, but {epochs} of {wanted} epochs are recorded"
        damage = damage or (wrong and f"line {number} {wrong}")
    return damage


def recorded_epochs(records: Iterable[Record]) -> int:
    """The number of epochs that a run has finished. A checkpoint with more epochs does not belong
    to these Records."""
    epochs = 0
    for record in records:
        match record:
            case RunStarted(first_epoch=first):
                epochs = first
            case EpochFinished(epoch=epoch):
                epochs = epoch + 1
    return epochs


def class_names(file: Path) -> tuple[str, ...]:
    """A run's class names, by label, from the last Record that has names; empty without any."""
    names: Sequence[str] = ()
    for record in read_journal(file):
        if isinstance(record, RunStarted):
            names = record.plan["dataset"].get("class_names", names)
        elif isinstance(record, RunFinished) and record.classes:
            names = record.classes.names
    return tuple(names)


def began(file: Path) -> float:
    """When the suite with this plan.json began, in seconds since 1970: the time in its folder's
    name, or, if the folder was renamed, the file's modification time."""
    try:
        return time.mktime(time.strptime(file.parent.name, _DATE_TIME))
    except ValueError:
        return file.stat().st_mtime


def _checked(content: Any) -> Any:
    """Add a checksum, as the last key, to a document or to each document of a list."""
    if isinstance(content, list):
        return [_checked(each) for each in content]
    return {**content, _CHECKSUM: _checksum(content)}


def _unchecked(content: Any) -> Any:
    """Remove the checksums that `_checked` added. A document of earlier versions has no checksum.

    Raises ValueError if the checksum does not match, and AttributeError if `content` is not a
    document.
    """
    if isinstance(content, list):
        return [_unchecked(each) for each in content]
    if content == {}:
        raise ValueError("it is empty")
    key, value = content.popitem()
    if (key == _CHECKSUM) != (value == _checksum(content)):  # the key may be damaged, too
        raise ValueError("its checksum does not match")
    return content if key == _CHECKSUM else {**content, key: value}


def _checksum(content: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(content))  # JSON makes all keys strings
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(
        f"{file} is damaged ({error}); restore it from a copy, or give another results folder"
    )


class Decided(NamedTuple):
    """The decisions of a sweep that the plans of its trials do not contain."""

    left_out: list[dict[str, Any]]
    """The drawn sets of values that gave an invalid spec, in the order in which they were drawn."""
    is_all: bool
    """Whether all trials of the sweep have been chosen, so that no new trial follows."""


class Results:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: tuple[Path, set[str]] | None = None
        """The file of added plans, and the run ids in this file and in plan.json."""

    @classmethod
    def create(cls, parent: Path) -> Results:
        """Create an empty results folder PARENT/DATE-TIME. Raises UserError if that fails."""
        while True:
            folder = parent.absolute() / time.strftime(_DATE_TIME)
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError:
                time.sleep(0.2)
            except OSError as error:
                raise UserError(
                    f"no results folder can be made: {folder}: {error.strerror}; give, with "
                    "--results, a folder that you can write to, on a disk with free space"
                ) from error

    @classmethod
    def open(cls, folder: Path) -> Results:
        """Open the newest results folder in `folder`: `folder` itself, or a folder one or two
        levels below.

        In earlier versions, `python -m raysuite.train` wrote into the experiment's folder itself.
        Raises UserError if there is no results folder.
        """
        found = [file for depth in ("", "*/", "*/*/") for file in folder.glob(f"{depth}{PLAN}")]
        if not found:
            wrong = (
                f"is not a results folder (it has no {PLAN})" if folder.exists() else "is not there"
            )
            raise UserError(f"{folder} {wrong}; give the folder that `raysuite run` printed")
        return cls(max(found, key=began).parent)

    def plans(self) -> list[dict[str, Any]]:
        """The RunPlans as plain data, in the order of execution."""
        loaded: list[dict[str, Any]] = self._read(PLAN) or []
        added = self._added()
        try:
            return loaded + [_unchecked(json.loads(line)) for line in read_lines(added)]
        except (ValueError, AttributeError) as error:
            raise _damaged(added, error) from error

    def state_of_plans(self) -> list[tuple[str, int, int]]:
        """A value that changes whenever a plan is added, or plan.json is written."""
        found = []
        for file in sorted(self.folder.glob("plan*.json*")):
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                found.append((file.name, file.stat().st_mtime_ns, file.stat().st_size))
        return found

    def write_plans(self, plans: Sequence[dict[str, Any]]) -> None:
        """Write the RunPlans, in the order of execution."""
        before = self._added()
        self._write(PLAN, list(plans))
        before.unlink(missing_ok=True)
        self._known = None

    def _added(self) -> Path:
        """The file of plans added to the current plan.json, named by the checksum of plan.json."""
        content = b""
        with contextlib.suppress(FileNotFoundError):
            content = (self.folder / PLAN).read_bytes()
        return self.folder / f"plan-{zlib.crc32(content):08x}.jsonl"

    def settle_plans(self) -> None:
        """Move added plans into plan.json, in which other programs look for all plans."""
        if self._added().exists():
            self.write_plans(self.plans())

    def search(self) -> dict[str, Any] | None:
        """The content of search.json: a sweep's section `search`, its `name`, its initial `spec`,
        and its `settings` (keys that the scale or the command line set, and that also replace
        values in the blocks that a trial draws); None without a sweep.
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
        """Write search.json, which `search` reads."""
        content = {"search": search, "name": name, "spec": spec, "settings": settings or {}}
        self._write(SEARCH, content)

    def decided(self) -> Decided | None:
        """The content of decided.json; None if the file does not exist."""
        found = self._read(DECIDED)
        return None if found is None else Decided(**found)

    def write_decided(self, decided: Decided) -> None:
        self._write(DECIDED, decided._asdict())

    def _read(self, name: str) -> Any:
        file = self.folder / name
        try:
            return _unchecked(json.loads(file.read_text("utf-8"))) if file.is_file() else None
        except (ValueError, AttributeError) as error:
            raise _damaged(file, error) from error

    def _write(self, name: str, content: Any) -> None:
        """Write a JSON file atomically."""
        write_whole(self.folder / name, json.dumps(_checked(content), indent=1).encode())

    def add_plan(self, plan: dict[str, Any]) -> None:
        """Append one RunPlan, unless the folder has a plan with this run id already."""
        if not (self.folder / PLAN).exists():
            self.write_plans([])
        added = self._added()
        if self._known is None or self._known[0] != added:
            self._known = added, {known["run_id"] for known in self.plans()}
        if plan["run_id"] not in self._known[1]:
            append_line(added, json.dumps(_checked(plan)).encode())
            self._known[1].add(plan["run_id"])

    def add_command(self, command: str) -> None:
        """Append a command that writes into this folder, as one line."""
        append_line(self.folder / COMMANDS, printable(command).replace("\n", " ").encode())

    def commands(self) -> list[str]:
        return [line.decode(errors="replace") for line in read_lines(self.folder / COMMANDS)]

    def write_timings(self, timings: Sequence[dict[str, Any]]) -> None:
        """Write each command's wall time: `began` in seconds since 1970, and `seconds` by phase."""
        self._write(TIMINGS, list(timings))

    def timings(self) -> list[dict[str, Any]]:
        return list(self._read(TIMINGS) or [])

    def write_predictions(self, predictions: Sequence[RunPredicted]) -> None:
        """Replace the predictions of the runs."""
        content = b"".join(checked_line(each) + b"\n" for each in predictions)
        write_whole(self.folder / PREDICTIONS, content)

    def predictions(self) -> dict[str, RunPredicted]:
        found = []
        for line in read_lines(self.folder / PREDICTIONS):
            with contextlib.suppress(ValueError):
                found.append(RunPredicted.model_validate_json(content_of(line)))
        return {each.run_id: each for each in found}

    def journal_file(self, run_id: str) -> Path:
        return self.folder / "runs" / run_id / "journal.jsonl"

    def records(self, run_id: str) -> list[Record]:
        return read_journal(self.journal_file(run_id))

    def end_of(self, run_id: str) -> RunEnd | None:
        """How a run ended; None if the run has not ended, or is being retried."""
        records = self.records(run_id)
        last = records[-1] if records else None
        return last if isinstance(last, RunEnd) else None
