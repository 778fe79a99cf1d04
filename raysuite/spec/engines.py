"""Container engines as data: how a command runs on a node inside an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.spec.site import Site

EngineName = Literal["apptainer", "shifter", "podman-hpc", "srun_environment", "pyxis"]
COMMAND = "{command}"
"""Stands in `launch` for the command and its arguments."""


@dataclass(frozen=True)
class Engine:
    """Words around a command. {image} is replaced within a word; a word with {binds} is there once
    for each bind; {mounts} are all of them, with commas between; {gpus} are further words."""

    launch: tuple[str, ...] = (COMMAND,)
    """What runs on each node."""
    step: tuple[str, ...] = ()
    """Options of srun, where SLURM itself enters the image."""
    gpus: tuple[str, ...] = ()
    """Words for {gpus} where the site has GPUs."""
    rocm: tuple[str, ...] = ()
    """The same for AMD's."""
    sees_home: bool = False
    """Whether the home folder and /tmp are in every image."""
    binds: bool = True
    """Whether folders can be bound from here."""


# A site's modules set these for the Python outside; `unset` in an image does not undo that.
_NEUTRAL = ("--env=PYTHONPATH=", "--env=PYTHONHOME=")

ENGINES: dict[EngineName, Engine] = {
    # apptainer.org/docs/user/main/cli/apptainer_exec.html
    "apptainer": Engine(
        launch=(
            *("apptainer", "--quiet", "exec", "--no-eval", "{gpus}", "--bind={binds}"),
            *(*_NEUTRAL, "{image}", COMMAND),
        ),
        gpus=("--nv",),
        rocm=("--rocm",),
        sees_home=True,
    ),
    # docs.nersc.gov/development/containers/shifter
    "shifter": Engine(
        launch=("shifter", "--image={image}", "--volume={binds}", *_NEUTRAL, "{gpus}", COMMAND),
        gpus=("--module=gpu",),
    ),
    # docs.nersc.gov/development/containers/podman-hpc; docs.podman.io, podman-run(1). Agents name
    # processes by their ids on the host, and listen at its addresses.
    "podman-hpc": Engine(
        launch=(
            *("podman-hpc", "run", "--rm", "--net=host", "--pid=host", "--ipc=host"),
            *("--env-host", *_NEUTRAL, "{gpus}", "--volume={binds}", "{image}", COMMAND),
        ),
        gpus=("--gpu",),
    ),
    # docs.cscs.ch/software/container-engine/run: its file describes the mounts
    "srun_environment": Engine(step=("--environment={image}",), binds=False),
    # github.com/NVIDIA/pyxis/wiki/Usage
    "pyxis": Engine(step=("--container-image={image}", "--container-mounts={mounts}")),
}


def launched(site: Site, command: Sequence[str], folders: Sequence[str]) -> tuple[str, ...]:
    """The words that run `command` on a node, in the site's image or by its own `launch`.

    `folders` must be seen inside. No shell reads the words: whoever writes them into a script
    quotes them. Raises UserError for a value that the engine would interpret.
    """
    if site.image is None and not site.launch:
        return tuple(command)
    return tuple(_filled(site, site.launch or ENGINES[site.engine].launch, command, folders))


def step_options(site: Site, folders: Sequence[str]) -> tuple[str, ...]:
    """Options of srun that enter the site's image; none where a program on the node does."""
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
    """As SRC:DST each: docker's and podman's SRC alone is a new, empty volume."""
    for bind in site.binds:
        yield bind if ":" in bind else f"{bind}:{bind}"
    there = [str(Path.home()), "/tmp"] if engine.sees_home else []
    for folder in folders:
        if ":" in folder:
            raise UserError(f"the folder {folder!r} holds a colon, and no image can see it")
        if not any(Path(folder).is_relative_to(each) for each in there):
            yield f"{folder}:{folder}"


_FORBIDDEN_IN_BINDS = ',"\\\n\r\0'
"""Apptainer reads binds as lines of CSV, and a backslash as an escape of a colon."""


def checked_bind(bind: str) -> str:
    """The bind itself. Raises UserError where it is not SRC, SRC:DST or SRC:DST:ro."""
    parts = bind.split(":")
    absolute = all(part.startswith("/") for part in parts[:2])
    mode = len(parts) < 3 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not (absolute and mode) or any(char in bind for char in _FORBIDDEN_IN_BINDS):
        raise UserError(
            f"given was the bind {bind!r}; it should be SRC, SRC:DST or SRC:DST:ro, of absolute "
            "paths without commas, colons, quotes, backslashes and line ends"
        )
    return bind


def checked_image(image: str) -> str:
    """The image's path itself. Raises UserError where Apptainer would take it for an address."""
    if not image.startswith("/") or ":" in image or "\0" in image:
        raise UserError(
            f"given was the image {image!r}; it should be the absolute path of a SIF file, "
            "without colons"
        )
    return image
