"""Write containers/requirements/*.txt from pyproject.toml: versions and hashes, no addresses.

All extras are resolved together, so that any of the files can be installed with any other.
An extra's file holds only packages that `base.txt` lacks. Pins are kept without `--upgrade`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import setup_venv as setup

CUDA12 = "torch==2.10.0\ntorchvision==0.25.0\n"
"""The newest torch whose wheels on PyPI are built with CUDA 12 (12.8): for drivers before 580."""
_PROJECT = tomllib.loads((setup.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = tuple(_PROJECT["optional-dependencies"])
OLDEST_PYTHON = "3.11"
HEADER = "# Made by `make lock` from pyproject.toml; do not edit.\n"


def requirements(text: str) -> list[str]:
    """The requirements of a requirements file, each with the lines of its hashes."""
    blocks: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace() and blocks:
            blocks[-1] += line + "\n"
        else:
            blocks.append(line + "\n")
    return blocks


def compile_requirements(
    uv: Path, source: Path, output: Path, *arguments: str, upgrade: bool = False
) -> list[str]:
    """Resolve `source` into `output`; pins that `output` already holds are kept.

    Raises subprocess.CalledProcessError if no set of versions fits.
    """
    command = [str(uv), "pip", "compile", str(source), "--output-file", str(output), "--quiet"]
    command += ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
    command += ["--no-emit-index-url", "--no-annotate", "--no-header", *arguments]
    if upgrade:
        command.append("--upgrade")
    subprocess.run(command, check=True, env=setup.uv_environment(uv))
    return requirements(output.read_text())


def lock(uv: Path, *, upgrade: bool) -> None:
    """Rewrite the requirements files."""
    folder = setup.REQUIREMENTS
    pyproject = setup.ROOT / "pyproject.toml"
    with tempfile.TemporaryDirectory() as scratch:
        everything = Path(scratch, "all.txt")
        pins = [path.read_text() for name in ("base", *EXTRAS) if (path := file_of(name)).exists()]
        everything.write_text("".join(pins))
        compile_requirements(uv, pyproject, everything, "--all-extras", upgrade=upgrade)
        agreed = ("--constraints", str(everything))

        base = compile_requirements(uv, pyproject, Path(scratch, "base.txt"), *agreed)
        write(file_of("base"), base)
        for extra in EXTRAS:
            output = Path(scratch, f"{extra}.txt")
            found = compile_requirements(uv, pyproject, output, "--extra", extra, *agreed)
            write(file_of(extra), [block for block in found if block not in base])

        overrides = Path(scratch, "overrides.txt")
        overrides.write_text(CUDA12)
        output = Path(scratch, "cuda12.txt")
        output.write_text(everything.read_text())
        found = compile_requirements(
            uv, pyproject, output, "--all-extras", "--override", str(overrides)
        )
        both = set(requirements(everything.read_text()))
        write(file_of("cuda12"), [block for block in found if block not in both])

        tools = Path(scratch, "tools.txt")
        tools.write_text((folder / "tools.txt").read_text())
        wanted = Path(scratch, "tools.in")
        wanted.write_text("\n".join(setup.TOOLS))
        write(folder / "tools.txt", compile_requirements(uv, wanted, tools, upgrade=upgrade))


def file_of(name: str) -> Path:
    """The requirements file of `base` or of an extra."""
    return setup.REQUIREMENTS / f"{name}.txt"


def write(path: Path, blocks: list[str]) -> None:
    """Write requirements below the header."""
    path.write_text(HEADER + "".join(blocks))
    setup.say(f"{path.relative_to(setup.ROOT)}: {len(blocks)} packages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest fitting versions")
    try:
        lock(setup.private_uv(), upgrade=parser.parse_args().upgrade)
    except setup.SetupError as error:
        sys.exit(f"lock: {error}")
