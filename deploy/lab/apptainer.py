"""Apptainer from Debian's unstable suite, for a Debian with an older C library than it needs.

Its two programs are patched to use a C library that is installed with them; the machine's own files
are not replaced. The programs find their configuration relative to their own path.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.layout import LabError
from lab.network import sh

HOME = Path("/var/cache/raysuite-lab/apptainer")
SUITE = "unstable"
LIBRARIES = ("libc6", "libseccomp2", "libsqlite3-0")
HELPERS = ("patchelf", "mksquashfs", "squashfuse", "fuse-overlayfs", "newuidmap")
PACKAGES = "patchelf squashfs-tools squashfuse fuse-overlayfs uidmap"


def installed() -> bool:
    """Whether Apptainer is installed."""
    return (HOME / "bin" / "apptainer").exists()


def install() -> Path:
    """Install Apptainer if it is missing, and return its folder; raises LabError."""
    if installed():
        return HOME
    missing = [name for name in HELPERS if shutil.which(name) is None]
    if missing:
        raise LabError(f"{', '.join(missing)} missing; on Debian: apt-get install {PACKAGES}")
    HOME.parent.mkdir(parents=True, exist_ok=True)
    HOME.parent.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=HOME.parent) as scratch:
        room = Path(scratch)
        _download(room)
        tree = _arrange(room)
        tree.chmod(0o755)
        sh(str(tree / "bin" / "apptainer.check"), "--version")
        (tree / "bin" / "apptainer.check").unlink()
        if HOME.exists():
            shutil.rmtree(HOME)
        tree.rename(HOME)
    return HOME


def archive() -> str:
    """The address of the Debian archive that this machine's apt uses; raises LabError."""
    lines = sh(
        "apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)",
        "Created-By: Packages",
    )  # fmt: skip
    for line in lines.splitlines():
        origin, label, address = line.split("|")
        if (origin, label) == ("Debian", "Debian"):
            return address
    raise LabError("apt knows no Debian archive here; `apt-get update` first, or use Debian")


def _download(room: Path) -> None:
    """Download the packages by apt, with separate configuration and lists."""
    for folder in ("lists/partial", "cache/archives/partial", "debs"):
        (room / folder).mkdir(parents=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (room / "sources.list").write_text(f"deb [signed-by={keys}] {archive()} {SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": room / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": room / "lists",
        "Dir::Cache": room / "cache",
        "APT::Sandbox::User": "root",
        "APT::Update::Post-Invoke-Success": "",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
    sh(*apt, "update")
    try:
        subprocess.run(
            [*apt, "download", "apptainer", *LIBRARIES],
            cwd=room / "debs", check=True, capture_output=True, text=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise LabError(f"apt cannot download apptainer: {error.stderr.strip()}") from None


def _arrange(room: Path) -> Path:
    """Unpack the packages into a folder that can be moved to HOME."""
    for deb in sorted((room / "debs").glob("*.deb")):
        whole = room / ("app" if deb.name.startswith("apptainer_") else "libraries")
        sh("dpkg-deb", "-x", str(deb), str(whole))
    tree = room / "app" / "usr"
    (room / "app" / "etc").rename(tree / "etc")
    (tree / "var").mkdir()
    (room / "app" / "var" / "lib").rename(tree / "var" / "lib")
    loader = next((room / "libraries").rglob("ld-linux-*.so.*"))
    libraries = next((room / "libraries").rglob("libc.so.6")).parent
    libraries.rename(tree / "compat")
    starter = next(tree.rglob("apptainer/bin/starter"))
    # The starter looks for all these one folder deeper than the command does.
    for name, target in (("etc", "../etc"), ("var", "../var"), ("bin", "../bin"), ("lib", ".")):
        (tree / "lib" / name).symlink_to(target)
    command = tree / "bin" / "apptainer"
    shutil.copy2(command, command.with_suffix(".check"))
    _use_libraries(command.with_suffix(".check"), tree / "compat", loader.name)
    for program in (command, starter):
        _use_libraries(program, HOME / "compat", loader.name)
    return tree


def _use_libraries(program: Path, libraries: Path, loader: str) -> None:
    there = str(libraries / loader)
    search = ("--force-rpath", "--set-rpath", str(libraries))
    sh("patchelf", "--set-interpreter", there, *search, str(program))
