"""Write a SyntheticSet to its folder, which exists only once the set is complete.

All files are written chunk by chunk into a hidden folder next to the set's folder. The journal in
the hidden folder has a line for each complete chunk. When all chunks are complete, the hidden
folder is renamed (docs/decisions/files-appear-by-rename.md).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import raysuite
from raysuite.data.formats.tfrecord import encode_example, write_records
from raysuite.data.pixels import encode
from raysuite.data.processes import Count, journaled
from raysuite.data.synthesis.pictures import VERSION, Painter, Pixels
from raysuite.data.synthesis.synthetic_set import Chunk, SyntheticSet
from raysuite.errors import DataError, UserError, how_to_write
from raysuite.files import continued_lines, lock, write_whole
from raysuite.spec.datasets import CIFAR_FILES, CLASSES_FILE, IDX_FILES, NAMED
from raysuite.units import human_bytes

# Writing one chunk of a synthetic data set, in each format.

Samples = Iterator[tuple[int, Pixels, int]]
"""Sample number, pixels [height, width, channels] and label."""


@dataclass(frozen=True)
class Written:
    split: str
    number: int
    images: int
    bytes: int
    """The size of the chunk's files, indices included."""
    sha256: str
    """A digest of the bytes of the chunk's files, in the order of `paths`."""


def write_chunk(synthetic: SyntheticSet, chunk: Chunk, folder: Path, count: Count) -> Written:
    """Write the files of one chunk, replacing existing files; `count` is called for each image.

    Raises OSError if the files cannot be written.
    """
    writers: dict[str, Callable[..., None]] = {
        "folder": _files,
        "tfrecord": _records,
        "idx": partial(_idx, chunk.images),
        "binary": _cifar_binary,
        "pickle": _cifar_pickle,
    }
    painter = _painter(synthetic)

    def samples() -> Samples:
        for sample in range(chunk.first, chunk.first + chunk.images):
            yield (sample, *painter.picture(chunk.split, sample))
            count(1)

    files = [folder / path for path in paths(synthetic, chunk)]
    writers[synthetic.form](synthetic, files, samples())
    digest, size = hashlib.sha256(), 0
    for content in files:
        size += content.stat().st_size
        with content.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return Written(chunk.split, chunk.number, chunk.images, size, digest.hexdigest())


def paths(synthetic: SyntheticSet, chunk: Chunk) -> Iterator[str]:
    """The paths of a chunk's files, relative to the set's folder."""
    split = chunk.split
    if synthetic.form == "folder":
        painter = _painter(synthetic)
        for sample in range(chunk.first, chunk.first + chunk.images):
            yield image_path(synthetic, chunk, sample, painter.label(split, sample))
    elif synthetic.form == "tfrecord":
        # TensorFlow's ImageNet files begin with "validation"
        name = "validation" if split == "val" else split
        shard = f"{name}-{chunk.number:05d}-of-{chunk.of:05d}"
        yield from (shard, f"{shard}.idx")
    elif synthetic.form == "idx":
        yield from IDX_FILES[split]
    else:
        yield CIFAR_FILES[synthetic.form][split][chunk.number]


def image_path(synthetic: SyntheticSet, chunk: Chunk, sample: int, label: int) -> str:
    """The path SPLIT/CLASS/NAME of an image. For ImageNet, NAME has the form of ILSVRC's names."""
    name = synthetic.class_names[label]
    file = f"{sample:08d}.{'png' if synthetic.quality is None else 'jpg'}"
    if synthetic.name == "imagenet":
        train = chunk.split == "train"
        file = f"{name}_{sample}.JPEG" if train else f"ILSVRC2012_val_{sample + 1:08d}.JPEG"
    return f"{chunk.split}/{name}/{file}"


@lru_cache(maxsize=1)
def _painter(synthetic: SyntheticSet) -> Painter:
    return Painter(synthetic)


def _files(synthetic: SyntheticSet, files: list[Path], samples: Samples) -> None:
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    for path, (_, pixels, _label) in zip(files, samples, strict=True):
        path.write_bytes(encode(pixels, synthetic.quality))


def _records(synthetic: SyntheticSet, files: list[Path], samples: Samples) -> None:
    first_label = NAMED[synthetic.name].first_label
    write_records(
        files[0],
        (
            encode_example(encode(pixels, synthetic.quality), label + first_label)
            for _, pixels, label in samples
        ),
    )


def _idx(count: int, synthetic: SyntheticSet, files: list[Path], samples: Samples) -> None:
    """Write `count` images in MNIST's format: http://yann.lecun.com/exdb/mnist, "file formats"."""
    shape = (count, synthetic.height, synthetic.width)
    images, labels = files
    with images.open("wb") as pixel_file, labels.open("wb") as label_file:
        pixel_file.write(struct.pack(">HBB3I", 0, 8, 3, *shape))
        label_file.write(struct.pack(">HBBI", 0, 8, 1, shape[0]))
        for _, pixels, label in samples:
            pixel_file.write(pixels.tobytes())
            label_file.write(bytes([label]))


def _planes(pixels: Pixels) -> bytes:
    """The pixels as bytes: all red values, then all green, then all blue."""
    return pixels.transpose(2, 0, 1).tobytes()


def _cifar_binary(synthetic: SyntheticSet, files: list[Path], samples: Samples) -> None:
    """Write a batch in the "binary version" of https://www.cs.toronto.edu/~kriz/cifar.html."""
    with files[0].open("wb") as file:
        for _, pixels, label in samples:
            file.write(bytes([label]) + _planes(pixels))


def _cifar_pickle(synthetic: SyntheticSet, files: list[Path], samples: Samples) -> None:
    """Write a batch in the "python version" of https://www.cs.toronto.edu/~kriz/cifar.html."""
    numbers, labels, rows = [], [], []
    for sample, pixels, label in samples:
        numbers.append(f"{sample:08d}.png".encode())
        labels.append(label)
        rows.append(_planes(pixels))
    batch = {
        b"batch_label": files[0].name.encode(),
        b"labels": labels,
        b"data": np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy(),
        b"filenames": numbers,
    }
    files[0].write_bytes(pickle.dumps(batch, protocol=2))


MANIFEST = "manifest.json"
PLAN, JOURNAL = "plan.json", "chunks.jsonl"
"""Files in the hidden folder: the set's parameters, and a line for each complete chunk."""


def check_place(folder: Path) -> None:
    """Raise UserError if a synthetic set cannot be written to `folder`. Nothing is written."""
    if os.path.ismount(folder):
        raise UserError(f"{folder} is a mount point; give a folder below it as --out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give another --out")
    if folder.is_dir() and any(folder.iterdir()) and read_manifest(folder) is None:
        raise UserError(
            f"{folder} contains files that `raysuite data make` did not write "
            "and will not replace; give another --out, or move them away"
        )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete synthetic data set, or None."""
    try:
        found: Any = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "synthetic" in found else None


def find(folder: Path, synthetic: SyntheticSet, force: bool) -> list[Written] | None:
    """The chunks of the complete set in `folder`, or None.

    `force` deletes an existing set. Raises UserError if the folder has a different set.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    if force:
        shutil.rmtree(folder)
        return None
    if manifest["synthetic"] != identity(synthetic):
        raise UserError(
            _differs(
                f"{folder} contains another synthetic data set", manifest["synthetic"], synthetic
            )
        )
    return [Written(**chunk) for chunk in manifest["chunks"]]


def _differs(what: str, found: dict[str, Any], synthetic: SyntheticSet) -> str:
    wanted = identity(synthetic)
    keys = [key for key in wanted if found.get(key) != wanted[key]]
    told = ", ".join(f"{key} {found.get(key)} instead of {wanted[key]}" for key in keys)
    return f"{what} ({told}); give --force to replace it, or another folder as --out"


def identity(synthetic: SyntheticSet) -> dict[str, Any]:
    return {"version": VERSION, **synthetic.parameters}


def begin(work: Path, synthetic: SyntheticSet, force: bool) -> dict[tuple[str, int], Written]:
    """Make the hidden folder `work`, unless it exists; return the chunks that it already has."""
    plan = work / PLAN
    if force:
        shutil.rmtree(work, ignore_errors=True)
    if plan.is_file():
        try:
            begun = json.loads(plan.read_text("utf-8"))
        except ValueError:  # the file is damaged: the machine failed while it was written
            begun = {}
        if begun != identity(synthetic):
            raise UserError(
                _differs(f"another synthetic set was begun in {work}", begun, synthetic)
            )
    else:
        shutil.rmtree(work, ignore_errors=True)
        write_whole(plan, json.dumps(identity(synthetic)).encode())
    done = [Written(**each) for each in continued_lines(work / JOURNAL)]
    return {(each.split, each.number): each for each in done}


def whole(
    chunk: Chunk, done: dict[tuple[str, int], Written], synthetic: SyntheticSet, work: Path
) -> bool:
    """Whether the journal lists the chunk, and its size there is that of the chunk's files."""
    written = done.get((chunk.split, chunk.number))
    if written is None:
        return False
    try:
        size = sum((work / path).stat().st_size for path in paths(synthetic, chunk))
    except FileNotFoundError:
        return False
    return size == written.bytes


@contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold an exclusive lock for writing `folder`; it is also released if this process is killed.

    `waiting` is called once if another process holds the lock.
    """
    path = folder.with_name(f".{folder.name}.lock")
    with ExitStack() as held:
        # if the file system has no locks, two writers both do the work
        with suppress(OSError):
            try:
                descriptor = lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                descriptor = lock(path, fcntl.LOCK_EX)
            held.callback(os.close, descriptor)
        held.callback(path.unlink, missing_ok=True)
        yield


_SAMPLED = 8
"""Number of images that are generated to estimate the size of a set."""


@dataclass(frozen=True)
class Made:
    path: str
    images: int
    bytes: int
    chunks: int
    written: int
    """The number of chunks written by this call; all other chunks already existed."""
    drawn: int
    seconds: float
    digest: str
    """SHA-256 of the checksums of all chunks; equal sets have equal digests."""


def make(
    synthetic: SyntheticSet,
    folder: Path,
    workers: int,
    force: bool = False,
    count: Count = lambda images: None,
    waiting: Callable[[], None] = lambda: None,
) -> Made:
    """Write the synthetic data set to `folder`, unless it exists; resume a call that was killed.

    `count` is called with the number of images that are newly written or found complete. `waiting`
    is called once if another process is writing the same folder; this call waits for that process.

    With `force`, a synthetic set in the folder is replaced. Raises UserError if the folder has
    other content, and DataError if the disk is too small or cannot be written.
    """
    began = time.monotonic()
    folder = folder.expanduser().absolute()
    try:
        check_place(folder)
        work = folder.with_name(f".{folder.name}.making")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, waiting):
            complete, todo = find(folder, synthetic, force), list[Chunk]()
            if complete is not None:
                count(synthetic.train + synthetic.val)
            else:
                done = begin(work, synthetic, force)
                chunks = list(synthetic.chunks())
                todo = [chunk for chunk in chunks if not whole(chunk, done, synthetic, work)]
                count(_images(chunks) - _images(todo))
                _check_room(synthetic, folder, _images(todo))
                tasks = [partial(write_chunk, synthetic, chunk, work) for chunk in todo]
                for written in journaled(tasks, workers, count, work / JOURNAL):
                    done[written.split, written.number] = written
                complete = [done[chunk.split, chunk.number] for chunk in chunks]
                _finish(work, folder, synthetic, complete)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error}; {how_to_write(error)} or give another --out; "
            "the complete files are kept, and the same command continues after them"
        ) from error
    return Made(
        path=str(folder),
        images=synthetic.train + synthetic.val,
        bytes=sum(chunk.bytes for chunk in complete),
        chunks=len(complete),
        written=len(todo),
        drawn=_images(todo),
        seconds=time.monotonic() - began,
        digest=_digest(complete),
    )


def expected_bytes(synthetic: SyntheticSet, images: int) -> int:
    """The approximate size of `images` images on disk, in bytes. For JPEG and PNG, it is estimated
    from a few generated images."""
    if synthetic.form not in ("folder", "tfrecord"):
        return images * (synthetic.height * synthetic.width * synthetic.channels + 1)
    painter = _painter(synthetic)
    few = range(min(_SAMPLED, images))
    sizes = [len(encode(painter.picture("train", i)[0], synthetic.quality)) for i in few]
    return round(sum(sizes) / len(sizes) * images) if sizes else 0


def _check_room(synthetic: SyntheticSet, folder: Path, images: int) -> None:
    needed, free = expected_bytes(synthetic, images), shutil.disk_usage(folder.parent).free
    if needed > free:
        raise DataError(
            f"{folder.parent}: about {human_bytes(needed)} are needed and {human_bytes(free)} are "
            "free; free disk space, give --out on another disk, or make a smaller set (--fraction)"
        )


def _finish(work: Path, folder: Path, synthetic: SyntheticSet, chunks: list[Written]) -> None:
    """Write class names and manifest, and give the folder its final name."""
    names = "".join(f"{name}\n" for name in synthetic.class_names).encode()
    if synthetic.form == "tfrecord":
        write_whole(work / CLASSES_FILE, names)
    elif synthetic.form == "binary":
        write_whole(work / "batches.meta.txt", names)
    manifest = {
        "synthetic": identity(synthetic),
        "raysuite": raysuite.__version__,
        "images": {"train": synthetic.train, "val": synthetic.val},
        "bytes": sum(chunk.bytes for chunk in chunks),
        "digest": _digest(chunks),
        "chunks": [asdict(chunk) for chunk in chunks],
    }
    write_whole(work / MANIFEST, json.dumps(manifest, indent=1).encode())
    work.rename(folder)  # replaces an empty folder
    for name in (PLAN, JOURNAL):
        (folder / name).unlink()


def _images(chunks: list[Chunk]) -> int:
    return sum(chunk.images for chunk in chunks)


def _digest(chunks: list[Written]) -> str:
    return hashlib.sha256("".join(chunk.sha256 for chunk in chunks).encode()).hexdigest()
