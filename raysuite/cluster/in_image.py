"""The command line that runs a command inside a site's image on a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from raysuite.errors import UserError
from raysuite.spec.engines import COMMAND, ENGINES, Engine, checked_bind, checked_image
from raysuite.spec.site import Site


def launched(site: Site, command: Sequence[str], folders: Sequence[str]) -> tuple[str, ...]:
    """The command line that runs `command` on a node: by the site's `launch` line or in the site's
    image, or `command` itself if the site has neither.

    `folders` must be visible inside the image. The arguments are not quoted for a shell: a caller
    that writes them into a script quotes them. Raises UserError for a path that the engine would
    not take literally, such as a bind with a comma.
    """
    if site.image is None and not site.launch:
        return tuple(command)
    return tuple(_filled(site, site.launch or ENGINES[site.engine].launch, command, folders))


def step_options(site: Site, folders: Sequence[str]) -> tuple[str, ...]:
    """Options with which srun starts the site's image; empty if the site has no image, or if
    another program starts the image."""
    step = ENGINES[site.engine].step
    if site.image is None or site.launch or not step:
        return ()
    return tuple(_filled(site, step, (), folders))


def _filled(
    site: Site, words: Sequence[str], command: Sequence[str], folders: Sequence[str]
) -> Iterator[str]:
    engine = ENGINES[site.engine]
    binds = [checked_bind(bind) for bind in _binds(site, engine, folders)]
    image = site.image or ""
    if site.is_sif:
        checked_image(image)
    for word in words:
        if word == COMMAND:
            yield from command
        elif word == "{gpus}":
            yield from (engine.rocm if site.rocm else engine.gpus) if site.has_gpus else ()
        elif "{binds}" in word:
            yield from (word.replace("{binds}", bind) for bind in binds)
        elif "{mounts}" not in word:
            yield word.replace("{image}", image)
        elif binds:
            yield word.replace("{mounts}", ",".join(binds))


def _binds(site: Site, engine: Engine, folders: Sequence[str]) -> Iterator[str]:
    """The site's binds, and binds for those of `folders` that the engine does not mount by itself.
    They are written as SRC:DST, because docker makes a new volume for SRC without DST."""
    for bind in site.binds:
        yield bind if ":" in bind else f"{bind}:{bind}"
    there = [str(Path.home()), "/tmp"] if engine.sees_home else []
    for folder in folders:
        if ":" in folder:
            raise UserError(
                f"the folder {folder!r} has a colon in its name and cannot be mounted into an "
                "image; rename it"
            )
        if not any(Path(folder).is_relative_to(each) for each in there):
            yield f"{folder}:{folder}"
