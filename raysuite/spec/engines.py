"""Container engines as data: the command line that runs a command on a node inside an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysuite.errors import UserError

EngineName = Literal["apptainer", "shifter", "podman-hpc", "srun_environment", "pyxis"]
COMMAND = "{command}"
"""Placeholder in `launch` for the command and its arguments."""


@dataclass(frozen=True)
class Engine:
    """How an engine runs a command: arguments with placeholders.

    {image} within an argument becomes the image. An argument with {binds} is repeated for each
    bind. {mounts} becomes all binds, separated by commas. {gpus} becomes the arguments for GPUs.
    """

    launch: tuple[str, ...] = (COMMAND,)
    """The command line on each node."""
    step: tuple[str, ...] = ()
    """Options of srun, if SLURM itself starts the image."""
    gpus: tuple[str, ...] = ()
    """Arguments for {gpus} if the site has GPUs other than AMD's."""
    rocm: tuple[str, ...] = ()
    """Arguments for {gpus} if the site has AMD's GPUs."""
    sees_home: bool = False
    """Whether the home folder and /tmp are visible in every image."""
    binds: bool = True
    """Whether raysuite can bind folders with this engine."""


# A site's modules set these variables for the Python outside of the image.
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
    # docs.nersc.gov/development/containers/podman-hpc; docs.podman.io, podman-run(1). Agents use
    # process ids of the host, and listen at the host's addresses.
    "podman-hpc": Engine(
        launch=(
            *("podman-hpc", "run", "--rm", "--net=host", "--pid=host", "--ipc=host"),
            *("--env-host", *_NEUTRAL, "{gpus}", "--volume={binds}", "{image}", COMMAND),
        ),
        gpus=("--gpu",),
    ),
    # docs.cscs.ch/software/container-engine/run: the environment file describes the mounts
    "srun_environment": Engine(step=("--environment={image}",), binds=False),
    # github.com/NVIDIA/pyxis/wiki/Usage
    "pyxis": Engine(step=("--container-image={image}", "--container-mounts={mounts}")),
}


_FORBIDDEN_IN_BINDS = ',"\\\n\r\0'
"""Characters to refuse: Apptainer parses binds as CSV, in which a backslash escapes a colon."""


def checked_bind(bind: str) -> str:
    """Return the bind. Raises UserError unless the bind is SRC, SRC:DST, SRC:DST:ro or SRC:DST:rw,
    with absolute paths."""
    parts = bind.split(":")
    absolute = all(part.startswith("/") for part in parts[:2])
    mode = len(parts) < 3 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not (absolute and mode) or any(char in bind for char in _FORBIDDEN_IN_BINDS):
        raise UserError(
            f"got the bind {bind!r}; it should be SRC, SRC:DST or SRC:DST:ro (or :rw), with "
            "absolute paths that contain no comma, colon, double quote, backslash or line end"
        )
    return bind


def checked_image(image: str) -> str:
    """Return the image's path. Raises UserError if Apptainer would interpret the path as an
    address."""
    if not image.startswith("/") or ":" in image or "\0" in image:
        raise UserError(
            f"got the image {image!r}; it should be the absolute path of a SIF file, without colons"
        )
    return image
