"""Long outputs do not change unnoticed: tests/golden/recorded holds a digest of each.

`RAYSUITE_RECORD=FOLDER pytest -k as_recorded` writes the digests anew, and into FOLDER all that
they stand for, as text. After a change that is meant, run it before and after, compare the two
folders, look at the pictures and pages that differ, and commit the digests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysuite import __version__
from raysuite.report.page import _rounded

RECORDED = Path(__file__).parent / "golden" / "recorded"


def check(name: str, found: Mapping[str, Any], folder: Path) -> None:
    """`found` is what was recorded by that name: title -> an output of any kind. Numbers have six
    digits; `folder`, in which outputs name files, and raysuite's version are left out."""
    texts = {
        title: json.dumps(_rounded(each), ensure_ascii=False, indent=1)
        .replace(str(folder), "")
        .replace(f"raysuite {__version__}", "raysuite")
        .replace(f'"{__version__}"', '""')
        for title, each in found.items()
    }
    digests = {
        title: hashlib.sha256(text.encode()).hexdigest()[:12] for title, text in texts.items()
    }
    file = RECORDED / f"{name}.json"
    if wanted := os.environ.get("RAYSUITE_RECORD"):
        for title, text in texts.items():
            place = Path(wanted) / name / f"{title.replace('/', '-')}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
        file.write_text(json.dumps(digests, indent=1) + "\n", "utf-8")
    known = json.loads(file.read_text("utf-8"))
    assert not [each for each in digests | known if digests.get(each) != known.get(each)]
