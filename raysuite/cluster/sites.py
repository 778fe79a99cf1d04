"""Find the descriptions of sites, and check a site before anything is queued there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from raysuite.cluster.backend import Finding, unsure, works, wrong
from raysuite.cluster.folder import home
from raysuite.cluster.hosts import check_hosts
from raysuite.cluster.in_image import launched, step_options
from raysuite.cluster.slurm import SlurmError, ask, check_slurm
from raysuite.errors import UserError
from raysuite.spec.base import suggest
from raysuite.spec.site import HostsSite, LocalSite, Site, SlurmSite, read_site
from raysuite.spec.site_values import secret_like

_SHIPPED = Path(__file__).parent / "shipped_sites"
"""The folder of the sites that raysuite includes; in a checkout, deploy/sites is a link to it."""


def own_sites() -> Path:
    """The folder of the user's own sites."""
    return home() / "sites"


def site_files() -> dict[str, Path]:
    """The files of all sites by name. A user's file replaces a shipped file of the same name."""
    found: dict[str, Path] = {}
    for folder in (own_sites(), _SHIPPED):
        for file in sorted(folder.glob("*.yaml")):
            found.setdefault(file.stem, file)
    return found


def site_file(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of the site with that name, or the given path.

    Raises UserError for an unknown name.
    """
    given = os.fspath(name_or_path)
    if os.sep in given or given.endswith((".yaml", ".yml")):
        return Path(given).expanduser()
    files = site_files()
    if given not in files:
        raise UserError(
            f"no site is called {given!r}; {suggest(given, files)}. `raysuite cluster site new "
            "NAME` writes the file of a new site, and a path such as ./mysite.yaml is valid too"
        )
    return files[given]


def find_site(name_or_path: str | os.PathLike[str]) -> Site:
    """The site with that name, or in that file.

    Raises UserError for an unknown name, SpecError for mistakes in the file.
    """
    return read_site(site_file(name_or_path))


LONGEST_SCRATCH = 40
"""Maximum length of a scratch folder's path, in characters. Ray's sockets are below this folder:
their paths are about 65 characters longer, and can have at most 107."""
_OWN_DISK = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs"}
_TIMEOUT_S = 60.0
_SIF_MAGIC, _SIF_ARCH = slice(32, 41), slice(45, 47)
"""Positions, in the header of a SIF file, of the magic number and of the processor architecture
(sylabs/sif, pkg/sif/sif.go)."""
_ARCHITECTURES = {b"02": "x86_64", b"04": "aarch64"}


def check_site(site: Site, python: str) -> Iterator[Finding]:
    """Make all checks of a site. `python` is checked if the site names no interpreter."""
    if isinstance(site, SlurmSite):
        yield from check_slurm(site, home() / "clusters")
    if isinstance(site, HostsSite):
        yield from check_hosts(site)
    if not isinstance(site, LocalSite):
        yield _shared(home())
    yield _scratch(site)
    if site.image is not None and site.is_sif:
        yield _image(Path(site.image))
    if site.image is not None or site.launch:
        yield _engine(site)
    if site.image is None:
        yield _python(site.python or python)
    for bind in site.binds:
        yield _exists("bind", bind.split(":")[0], site)
    if names := secret_like(site.environment):
        yield unsure("environment", *secrets_in(names))
    if site.mlflow.url_file is not None:
        yield _secret(Path(site.mlflow.url_file))
    for key in ("interface", "client_interface"):
        if (name := getattr(site, key)) is not None:
            yield _interface(key, name, site)


def secrets_in(names: list[str]) -> tuple[str, str]:
    """A warning about variables that may contain secrets, and what to do."""
    return (
        f"{', '.join(names)} may contain a secret; no argument list shows it, but every process "
        "of the cluster inherits it",
        "chmod 600 the site's file, or put the secret into a file that your code reads",
    )


def _shared(folder: Path) -> Finding:
    """Judge by the type of the file system whether the nodes can access the folder of clusters."""
    kind = file_system(folder)
    fix = "set RAYSUITE_HOME to a folder that all nodes share"
    if kind in _OWN_DISK:
        return unsure("shared folder", f"{folder} is on {kind}, which nodes seldom share", fix)
    return works("shared folder", f"{folder} is on {kind}")


def file_system(path: Path) -> str:
    """The type of the file system of `path`, which may not exist yet: ext4, nfs4, lustre, ..."""
    while not path.exists():
        path = path.parent
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    best = ("", "unknown")
    real = str(path.resolve())
    for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
        before, _, after = line.partition(" - ")
        _, _, numbers, _, where, *_ = before.split()
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        if (numbers == wanted or inside) and inside and len(where) >= len(best[0]):
            best = (where, after.split()[0])
    return best[1]


def _scratch(site: Site) -> Finding:
    folder = site.scratch
    if "$" in folder:
        return unsure(
            "scratch",
            f"{folder} is expanded on each node, and the resulting folder must exist there",
        )
    if len(folder) > LONGEST_SCRATCH:
        return wrong(
            "scratch",
            f"{folder} has {len(folder)} characters; Ray's sockets are in this folder, and their "
            "paths can have at most 107",
            f"choose a path of at most {LONGEST_SCRATCH} characters, such as /tmp",
        )
    return _exists("scratch", folder, site, writable=True)


def _exists(what: str, path: str, site: Site, writable: bool = False) -> Finding:
    there = os.path.exists(path)
    if there and (not writable or os.access(path, os.W_OK | os.X_OK)):
        return works(what, path)
    note = f"{path} {'cannot be written' if there else 'is not there'}"
    fix = f"create it or change its permissions, or give another `{what}`"
    return _lacking(what, note, site, fix)


def _lacking(what: str, note: str, site: Site, fix: str) -> Finding:
    """A finding about this machine, which may differ from the site's compute nodes."""
    if isinstance(site, LocalSite):
        return wrong(what, note, fix)
    return unsure(what, f"{note} on this node", "the compute nodes must have it")


def _image(file: Path) -> Finding:
    try:
        with file.open("rb") as opened:
            header = opened.read(64)
    except OSError as error:
        return wrong(
            "image",
            f"{file}: {error.strerror}",
            "`raysuite image build` makes one; or correct `image`",
        )
    if header[_SIF_MAGIC] != b"SIF_MAGIC":
        return wrong("image", f"{file} is not a SIF image", "`raysuite image build` makes one")
    built_for = _ARCHITECTURES.get(header[_SIF_ARCH], "another processor")
    if built_for != platform.machine():
        return unsure(
            "image",
            f"{file} is for {built_for}; this node is {platform.machine()}",
            "the compute nodes must have the image's architecture",
        )
    return works("image", f"{file}, {built_for}")


def _engine(site: Site) -> Finding:
    """Check that srun has the option that starts the image, if a plugin of srun starts it; else
    that the program that starts it is on PATH."""
    if step := step_options(site, ()):
        option = step[0].partition("=")[0]
        try:
            there = option in ask(["srun", "--help"])
        except SlurmError:  # a missing or failing srun is reported by its own check
            there = False
        note = f"srun has {option}" if there else f"`srun --help` does not list {option}"
        return (
            works(site.engine, note)
            if there
            else wrong(site.engine, note, "ask the site's support for this option")
        )
    name = launched(site, (), ())[0]
    if found := shutil.which(name):
        return works(name, found)
    fix = "install this program, or load its module before you call raysuite"
    return _lacking(name, "is not on PATH", site, fix)


def _python(python: str) -> Finding:
    code = "import raysuite; print(raysuite.__version__)"
    fix = (
        "call `make setup` in a checkout of raysuite that all nodes can read, and set `python` to "
        "the path of .venv/bin/python in it"
    )
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return wrong("python", f"{python} does not run: {error}", fix)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        return wrong("python", f"{python} has no raysuite: {last}", fix)
    return works("python", f"{python}, raysuite {done.stdout.strip()}")


def _secret(file: Path) -> Finding:
    try:
        mode = file.stat().st_mode
    except OSError as error:
        note = f"{file}: {error.strerror}"
        return wrong("mlflow", note, "write PostgreSQL's URL into it: (umask 077; cat >FILE)")
    if mode & 0o077:
        return wrong(
            "mlflow", f"others may read {file}", f"chmod 600 {file}, and change the password"
        )
    return works("mlflow", str(file))


def _interface(key: str, name: str, site: Site) -> Finding:
    if Path("/sys/class/net", name).exists():
        return works(key, name)
    return _lacking(key, f"there is no {name}", site, "`ip link` lists the interfaces")
