"""A conversion from its plan to its manifest, gone on with where it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysuite.data.convert.planning import JOURNAL, MANIFEST, PLAN, Conversion, Shard
from raysuite.data.convert.shard import Bad, Policy, Task, Written, write_shard
from raysuite.data.processes import Count, each
from raysuite.errors import DataError
from raysuite.spec.datasets import CLASSES_FILE

_TEMPORARY = (".*-of-*.part", ".*-of-*.idx", ".*.json.*", ".classes.txt.*")
"""What a killed conversion leaves, hidden from whoever looks for shards."""


@dataclass(frozen=True)
class Summary:
    """What lies in the target now."""

    train: int
    """Training records."""
    val: int
    classes: int
    first_label: int
    shards: int
    bytes: int
    written: int
    """Shards written by this call; the others were complete already."""
    shrunk: int
    """Images that were made smaller; the others kept their bytes."""
    skipped: tuple[Bad, ...]


def convert(
    conversion: Conversion,
    workers: int,
    bad: Policy = "error",
    force: bool = False,
    count: Count = lambda images: None,
    finished: Callable[[Written], None] = lambda shard: None,
) -> Summary:
    """Write every shard that is not complete, then the manifest.

    `count` is told images as they are done, `finished` each shard. May be killed at any time, and
    called again with the same arguments. Raises DataError that lists all bad images if `bad` is
    `error`; the shards without any are kept.
    """
    target = conversion.target
    try:
        state = _begin(conversion, force)
        todo = [shard for shard in conversion.shards if not _complete(shard, state, target, bad)]
        count(sum(map(_images, conversion.shards)) - sum(map(_images, todo)))
        _check_room(conversion, todo)
        if todo:
            (target / MANIFEST).unlink(missing_ok=True)  # it must not tell of what is not there
        tasks = [Task.of(conversion, shard, bad) for shard in todo]
        try:
            with (target / JOURNAL).open("a", encoding="utf-8") as journal:
                for written in each(write_shard, tasks, workers, count):
                    state[written.name] = written
                    if not written.bad or bad == "skip":
                        journal.write(json.dumps(asdict(written)) + "\n")
                        journal.flush()
                    finished(written)
        finally:
            _clean(target)
        shards = [state[shard.name] for shard in conversion.shards]
        unreadable = tuple(one for shard in shards for one in shard.bad)
        if unreadable and bad == "error":
            raise DataError(_listed(unreadable))
        _write(target / MANIFEST, json.dumps(_manifest(conversion, shards), indent=1))
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}") from error
    return Summary(
        train=sum(shard.records for shard in shards if shard.name.startswith("train-")),
        val=sum(shard.records for shard in shards if shard.name.startswith("val-")),
        classes=len(conversion.classes),
        first_label=conversion.first_label,
        shards=len(shards),
        bytes=sum(shard.bytes for shard in shards),
        written=len(todo),
        shrunk=sum(shard.shrunk for shard in shards),
        skipped=unreadable,
    )


def _begin(conversion: Conversion, force: bool) -> dict[str, Written]:
    """Make the folder and its plan, or read what was done there: shards by name."""
    target = conversion.target
    target.mkdir(parents=True, exist_ok=True)
    _clean(target)
    if force:
        for pattern in ("train-*-of-*", "val-*-of-*", JOURNAL, MANIFEST, PLAN, CLASSES_FILE):
            for path in target.glob(pattern):
                path.unlink()
    if not (target / PLAN).is_file():
        _write(target / PLAN, json.dumps(conversion.document, indent=1))
    if not (target / CLASSES_FILE).is_file():
        names = "".join(f"{name}\n" for name in conversion.classes)
        _write(target / CLASSES_FILE, names.encode("utf-8", "backslashreplace"))
    state: dict[str, Written] = {}
    journal = target / JOURNAL
    if journal.is_file():
        text = journal.read_text("utf-8")
        for line in text.splitlines():
            try:
                found = json.loads(line)
                found["bad"] = tuple(Bad(**one) for one in found["bad"])
                written = Written(**found)
            except (ValueError, TypeError, KeyError):
                continue  # cut short by a kill: its shard is written again
            state[written.name] = written
        if text and not text.endswith("\n"):
            with journal.open("a", encoding="utf-8") as file:
                file.write("\n")
    return state


def _images(shard: Shard) -> int:
    return len(shard.paths)


def _complete(shard: Shard, state: dict[str, Written], target: Path, bad: Policy) -> bool:
    """Whether the shard lies there, made of the images as they are now."""
    known, path = state.get(shard.name), target / shard.name
    return (
        known is not None
        and known.sources == shard.fingerprint
        and (bad == "skip" or not known.bad)
        and path.is_file()
        and path.stat().st_size == known.bytes
        and path.with_suffix(".idx").is_file()
    )


def _check_room(conversion: Conversion, todo: Sequence[Shard]) -> None:
    if conversion.options.shorter_side is not None:
        return  # how small they become shows when they are done
    needed = sum(int(shard.stats[:, 0].sum()) for shard in todo)
    free = shutil.disk_usage(conversion.target).free
    if needed > free:
        raise DataError(
            f"{conversion.target}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are "
            "free; make room, give a folder on another disk, or shrink with --shorter-side"
        )


def _manifest(conversion: Conversion, shards: Sequence[Written]) -> dict[str, Any]:
    return {
        **conversion.document,
        "first_label": conversion.first_label,
        "files": {
            shard.name: {key: getattr(shard, key) for key in ("sha256", "bytes", "records")}
            for shard in shards
        },
        "skipped": [asdict(one) for shard in shards for one in shard.bad],
    }


def _clean(target: Path) -> None:
    for pattern in _TEMPORARY:
        for path in target.glob(pattern):
            path.unlink(missing_ok=True)


def _write(path: Path, content: str | bytes) -> None:
    """Replace a file, so that it is never seen half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.rename(path)


def _listed(bad: Sequence[Bad], shown: int = 20) -> str:
    lines = [f"  {one.path}: {one.reason}" for one in bad[:shown]]
    if len(bad) > shown:
        lines.append(f"  and {len(bad) - shown} more")
    count = "1 image" if len(bad) == 1 else f"{len(bad)} images"
    return "\n".join(
        [
            f"{count} cannot be read; the shards without them are kept:",
            *lines,
            "replace them under the same names and run the same command again, or leave them out "
            "with --bad skip",
        ]
    )
