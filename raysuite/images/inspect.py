"""An image's facts, and checks of its signature, its recipe and its packages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysuite.errors import UserError
from raysuite.images.apptainer import EngineError, asked
from raysuite.images.recipe import FACTS, Choice, Variant, digest
from raysuite.spec.engines import checked_image


@dataclass(frozen=True)
class Description:
    """An image's path, size and labels, and the facts in its file FACTS."""

    path: str
    size_bytes: int
    facts: dict[str, Any]
    """Keys: digest, variant, arch, extras, raysuite, commit, built, python, versions,
    wheel_sha256."""
    labels: dict[str, str]


def image_path(image: Path) -> str:
    """The image's absolute path. Raises UserError if the image is missing, or if its path has a
    colon."""
    if not image.exists():
        raise UserError(f"there is no image {image}; build one: raysuite image build {image}")
    return checked_image(str(image.absolute()))


def describe(image: Path) -> Description:
    """Read an image's facts and labels. Raises UserError if raysuite did not build it."""
    path = image_path(image)
    labels = asked("inspect", "--json", "--labels", path)
    if labels.returncode:
        raise UserError(
            f"{image} is not an image that Apptainer can read: {labels.stderr.strip()[-300:]}"
        )
    inside = asked("--quiet", "exec", "--no-eval", path, "cat", FACTS)
    if inside.returncode:
        raise UserError(
            f"{image} has no {FACTS}: it was not built by `raysuite image build` "
            f"({inside.stderr.strip()[-300:]})"
        )
    attributes = json.loads(labels.stdout)["data"]["attributes"]
    return Description(
        path=path,
        size_bytes=image.stat().st_size,
        facts=json.loads(inside.stdout),
        labels=attributes.get("labels") or {},
    )


@dataclass(frozen=True)
class Check:
    """The result of one check of an image."""

    name: str
    passed: bool
    note: str


def sign_image(image: Path, key: Path) -> None:
    """Sign an image with a private key (PEM). Raises EngineError if Apptainer cannot sign it."""
    done = asked("sign", "--key", str(key.absolute()), image_path(image))
    if done.returncode:
        raise EngineError(f"apptainer sign: {done.stderr.strip()}")


def signature(image: Path, key: Path | None) -> Check:
    """Verify the image's signature with `key` (PEM), or with a PGP key of the keyring."""
    if key is not None and not key.is_file():
        raise UserError(f"there is no key {key}; give the public key, as PEM")
    how = ["--local"] if key is None else ["--key", str(key.absolute())]
    done = asked("verify", *how, image_path(image))
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if done.returncode:
        return Check("signature", False, said[-1] if said else "apptainer refuses it")
    by = "a key of this machine's keyring" if key is None else str(key)
    return Check("signature", True, f"by {by}")


def recipe(image: Path, root: Path) -> Check:
    """Compare the image's recipe digest with the digest that the checkout `root` gives."""
    facts = describe(image).facts
    choice = Choice(Variant(facts["variant"]), extras=tuple(facts["extras"]), arch=facts["arch"])
    wanted = digest(choice, root)
    if facts["digest"] == wanted:
        return Check("recipe", True, f"digest {wanted[:16]}, equal to the digest of this checkout")
    note = (
        f"digest {facts['digest'][:16]}, but this checkout's digest is {wanted[:16]}: build the "
        "image again"
    )
    return Check("recipe", False, note)


def test(image: Path) -> Check:
    """Run the image's own %test, which imports every part that the image's facts list."""
    done = asked("--quiet", "test", "--no-eval", image_path(image))
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    note = ", ".join(lines) if not done.returncode else "; ".join(lines[-3:])
    return Check("test", not done.returncode, note)
