"""Container engines as data: how a command runs on a node inside an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysuite.errors import UserError

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
