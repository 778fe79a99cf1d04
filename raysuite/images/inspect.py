"""What an image says about itself: its labels, and the facts that its build left inside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysuite.errors import UserError
from raysuite.images.engine import asked
from raysuite.images.exec_line import checked_image
from raysuite.images.recipe import FACTS


@dataclass(frozen=True)
class Description:
    """An image from outside (path, bytes, labels) and from inside (facts)."""

    path: str
    size_bytes: int
    facts: dict[str, Any]
    """digest, variant, arch, extras, raysuite, commit, built, python, versions, wheel_sha256."""
    labels: dict[str, str]


def image_path(image: Path) -> str:
    """The image's absolute path. Raises UserError where it is not there, or is no path."""
    if not image.exists():
        raise UserError(f"the image {image} is not there; build one: raysuite image build {image}")
    return checked_image(str(image.absolute()))


def describe(image: Path) -> Description:
    """Read an image. Raises UserError where it is none of raysuite's."""
    path = image_path(image)
    labels = asked("inspect", "--json", "--labels", path)
    if labels.returncode:
        raise UserError(f"{image} is no image that Apptainer reads: {labels.stderr.strip()[-300:]}")
    inside = asked("--quiet", "exec", "--no-eval", path, "cat", FACTS)
    if inside.returncode:
        raise UserError(
            f"{image} holds no {FACTS}: it was not built by `raysuite image build` "
            f"({inside.stderr.strip()[-300:]})"
        )
    attributes = json.loads(labels.stdout)["data"]["attributes"]
    return Description(
        path=path,
        size_bytes=image.stat().st_size,
        facts=json.loads(inside.stdout),
        labels=attributes.get("labels") or {},
    )
