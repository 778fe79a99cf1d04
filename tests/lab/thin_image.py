"""`python tests/lab/thin_image.py OUT.sif`: an image of raysuite whose other packages lie outside.

It is built as every image is, but in seconds: the distribution and Python's packages are those of
this machine, which a site binds (`BINDS`). raysuite itself, the wheel of this checkout, is inside.
"""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from raysuite.images.builder import Order, build, checkout
from raysuite.images.recipe import BASE, FACTS, HOME, TOP, Choice

_PACKAGES = site.getsitepackages()[0]
_INTERPRETER = str(Path(sys.base_prefix).resolve())
BINDS = ["/usr:/usr:ro", *(f"{p}:{p}:ro" for p in (sys.prefix, _INTERPRETER) if p[:5] != "/usr/")]
"""For the site's `binds`."""

_OWN = f".{HOME}/.venv"
_OWN_PACKAGES = f"{_OWN}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_BASE = """\
Bootstrap: scratch

%setup
    cd "$APPTAINER_ROOTFS"
    mkdir -p usr/bin usr/sbin usr/lib usr/lib64 etc tmp mnt proc sys dev root home opt run var/tmp
    ln -s usr/bin usr/sbin usr/lib usr/lib64 .
    touch etc/passwd etc/group etc/resolv.conf etc/hosts etc/localtime
    for program in sh cat; do
        cp -L "/bin/$program" bin/
        for library in $(ldd "/bin/$program" | grep -o '/[^ )]*'); do
            mkdir -p ".${library%/*}"
            cp -nL "$library" ".$library"
        done
    done
"""


def _top(packages: Path) -> str:
    """The upper layer; `packages` holds raysuite, unpacked."""
    return f"""\
Bootstrap: localimage
From: {BASE}.sif

%setup
    context="$PWD/context"
    cd "$APPTAINER_ROOTFS"
    cp "$context/facts.json" .{FACTS}
    mkdir -p {_OWN}/bin {_OWN_PACKAGES}
    ln -s {shlex.quote(os.path.realpath(sys.executable))} {_OWN}/bin/python
    cat > {_OWN}/pyvenv.cfg <<'END'
home = {_INTERPRETER}/bin
include-system-site-packages = false
END
    cp -r {shlex.quote(str(packages))}/* {_OWN_PACKAGES}/
    echo {shlex.quote(_PACKAGES)} > {_OWN_PACKAGES}/outside.pth
    cat > {_OWN}/bin/raysuite <<'END'
#!{HOME}/.venv/bin/python
from raysuite.cli import main
main()
END
    chmod 755 {_OWN}/bin/raysuite

%environment
    export PATH="{HOME}/.venv/bin:$PATH"
    export PYTHONPATH= PYTHONHOME= PYTHONNOUSERSITE=1 LC_ALL=C.UTF-8
"""


def main(out: Path) -> None:
    root, choice = checkout(), Choice(extras=("horovod", "deepspeed"))
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(wheel, cwd=root, check=True, capture_output=True)
        packages = Path(folder) / "packages"
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
            archive.extractall(packages)
        texts = {BASE: _BASE, TOP: _top(packages)}
        print(build(Order(choice, out, root, shelf=out.parent, own=texts), print))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
