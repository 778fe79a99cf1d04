"""The code on the how-to pages, as a user copies it into a folder of her own."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in that language."""
    text = (HOW_TO / page).read_text("utf-8")
    return [found[1] for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.M | re.S)]


@contextmanager
def copied(files: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder `folder` with these files, whose modules can be imported."""
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("RAYSUITE_CACHE", str(folder / "cache"))
    importlib.invalidate_caches()
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield folder
    torch.set_num_threads(threads)
    for name in files:
        sys.modules.pop(Path(name).stem, None)
