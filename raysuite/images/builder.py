"""Build an image: a base layer that is kept for later builds, and raysuite's layer on top."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import raysuite
from raysuite.errors import UserError
from raysuite.images.apptainer import engine, streamed
from raysuite.images.recipe import (
    BASE,
    TOP,
    Choice,
    arguments,
    digest,
    files,
    filled,
    ingredients,
    placeholders,
    this_architecture,
)
from raysuite.spec.engines import checked_bind, checked_image

# Settings of the building machine: Debian's mirror, Python's index, certificates, proxies.
#
# They are passed to the build through a folder that is mounted during the build, and are neither
# written into a definition file nor left in the image.

MIRROR_VARIABLE = "RAYSUITE_DEBIAN_MIRROR"
LENT = "/mnt"
"""Mount point of the folder with this machine's settings, during a build."""

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_DEBIAN = re.compile(r"(?:https?|file)://\S+?/debian/?(?=\s|$)")


def debian_mirror(given: str | None = None, apt: Path = Path("/etc/apt")) -> str:
    """`given`, or $RAYSUITE_DEBIAN_MIRROR, or the mirror that this machine's apt uses.

    Raises UserError if none of them names a mirror.
    """
    if mirror := given or os.environ.get(MIRROR_VARIABLE):
        if not re.fullmatch(r"[a-z]+://\S+", mirror):
            raise UserError(f"got the mirror {mirror!r}; it should be an address (a URL)")
        return mirror
    folder = apt / "sources.list.d"
    more = sorted([*folder.glob("*.list"), *folder.glob("*.sources")])
    for path in (apt / "sources.list", *more):
        for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
            if not line.lstrip().startswith("#") and (match := _DEBIAN.search(line)):
                return match[0]
    raise UserError(
        "this machine's apt has no mirror of Debian; name one: --mirror URL, or "
        f"{MIRROR_VARIABLE}=URL"
    )


def lend(folder: Path) -> None:
    """Write this machine's settings into `folder`, which is mounted at LENT in the build."""
    settings = {name: value for name in _PROXIES if (value := os.environ.get(name))}
    pip = pip_settings(os.environ)
    if index := os.environ.get("UV_DEFAULT_INDEX") or pip.get("index-url"):
        settings |= {"UV_DEFAULT_INDEX": index, "PIP_INDEX_URL": index}
    certificate = os.environ.get("SSL_CERT_FILE") or pip.get("cert")
    if certificate and Path(certificate).is_file():
        shutil.copyfile(certificate, folder / "certificates.pem")
        inside = f"{LENT}/certificates.pem"
        settings |= {"SSL_CERT_FILE": inside, "PIP_CERT": inside}
    (folder / "settings.json").write_text(json.dumps(settings, indent=2))
    if proxies := _apt_proxies():
        (folder / "apt.conf").write_text(proxies)


def pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """pip's `index-url` and `cert`, from its files and its variables, with pip's precedence."""
    home = Path(environment.get("HOME", "/"))
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    if own := environment.get("PIP_CONFIG_FILE"):
        files.append(Path(own))
    parser = configparser.RawConfigParser(strict=False)
    parser.read([path for path in files if path.is_file()])
    found: dict[str, str] = {}
    for key in ("index-url", "cert"):
        for section in ("global", "install"):
            if parser.has_option(section, key):
                found[key] = parser.get(section, key)
        if value := environment.get(f"PIP_{key.upper().replace('-', '_')}"):
            found[key] = value
    return found


def _apt_proxies() -> str:
    """apt's proxy settings as the text of an apt.conf file; empty if there are none."""
    if not shutil.which("apt-config"):
        return ""
    done = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if re.match(r"Acquire::https?::Proxy", line)]
    return "".join(f"{line}\n" for line in lines)


_SQUASH = "-comp zstd -Xcompression-level 3"
"""Arguments of mksquashfs. The default compression level for zstd, 15 of 22, takes longer."""


@dataclass(frozen=True)
class Order:
    """The image to build, its path, and its sources."""

    choice: Choice
    out: Path
    root: Path
    """The checkout that contains the locked requirements and raysuite itself."""
    shelf: Path
    """The folder in which base layers and downloads are kept between builds."""
    scratch: Path | None = None
    """Apptainer's folder for unpacking (some 20 GB for a full image); None: Apptainer uses /tmp."""
    mirror: str | None = None
    """Debian's mirror, for debootstrap."""
    own: Mapping[str, str] | None = None
    """Texts of the user's own definition files, by layer; None: those of the checkout are used."""

    @cached_property
    def texts(self) -> Mapping[str, str]:
        return self.own or {k: path.read_text("utf-8") for k, path in files(self.root).items()}

    @property
    def debootstraps(self) -> bool:
        """Whether the base layer is a fresh Debian, which needs a mirror."""
        return self.own is None and arguments(self.choice)["bootstrap"] == "debootstrap"

    @property
    def base(self) -> Path:
        """The file of the base layer. Its name contains a digest of the layer's definition."""
        text = filled(self.texts[BASE], arguments(self.choice))
        made_of = hashlib.sha256(f"{self.choice.arch}\n{text}".encode()).hexdigest()
        return self.shelf / f"{BASE}-{self.choice.variant}-{self.choice.arch}-{made_of[:12]}.sif"


@dataclass(frozen=True)
class Built:
    path: Path
    digest: str
    size_bytes: int
    seconds: dict[str, float]
    """Seconds of each step: base, context, raysuite."""
    log: Path


def checkout() -> Path:
    """The checkout that raysuite runs from. Raises UserError for an installed raysuite."""
    root = Path(raysuite.__file__).resolve().parents[1]
    if not all((root / name).exists() for name in ("containers/requirements", "pyproject.toml")):
        raise UserError(
            f"raysuite runs from {root}, which is not a source checkout, but images are built from "
            "one: clone raysuite with git, run `make setup` there, and use its .venv/bin/raysuite"
        )
    return root


def check(order: Order) -> None:
    """Raise UserError for mistakes that would otherwise end the build after minutes."""
    if order.choice.arch != this_architecture():
        raise UserError(
            f"got {order.choice.arch}, but this machine is {this_architecture()}; build the image "
            f"on a machine with the architecture {order.choice.arch}"
        )
    if order.out.suffix != ".sif" or not order.out.parent.is_dir():
        raise UserError(f"got {order.out}; it should be NAME.sif in a folder that exists")
    checked_image(str(order.out))
    if order.scratch is not None and not order.scratch.is_dir():
        raise UserError(f"--scratch: {order.scratch} is not a folder; make it, or give another")
    if order.debootstraps and not shutil.which("debootstrap", path=_path()):
        raise UserError(
            "debootstrap is not on PATH; install it (Debian, Ubuntu: apt-get install debootstrap)"
        )


def commands(order: Order, work: Path) -> dict[str, list[str]]:
    """The command that builds each layer, to be run in `work`, the folder of definition files."""
    lent = ["--bind", checked_bind(f"{work / 'lent'}:{LENT}")]
    lent += ["--bind", checked_bind(f"{_downloads(order)}:{LENT}/cache")]
    lent += ["--mksquashfs-args", _SQUASH]
    values = arguments(order.choice)
    if order.debootstraps:
        values["mirror"] = debian_mirror(order.mirror)
    lines: dict[str, list[str]] = {}
    for layer, out in ((BASE, order.base), (TOP, order.out)):
        # Apptainer refuses an argument that a file does not use
        used = [name for name in placeholders(order.texts[layer]) if name in values]
        given = [part for name in used for part in ("--build-arg", f"{name}={values[name]}")]
        options = [*lent, *given]
        lines[layer] = [engine(), "build", "--force", *options, str(_half(out)), f"{layer}.def"]
    return lines


def build(order: Order, say: Callable[[str], None]) -> Built:
    """Build the image; `say` is called with each line of output, which is also written to a log.

    Raises UserError, or EngineError with the log's last lines.
    """
    check(order)
    _downloads(order).mkdir(parents=True, exist_ok=True)
    log = order.out.with_suffix(".sif.log")
    log.write_text(f"$ {shlex.join(sys.argv)}\n")
    environment = {"PATH": _path()}
    if order.scratch is not None:
        environment |= {"APPTAINER_TMPDIR": str(order.scratch)}
    seconds: dict[str, float] = {}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        seconds[name] = round(time.monotonic() - started, 1)

    with tempfile.TemporaryDirectory(prefix="raysuite-image-", dir=order.scratch) as folder:
        work = Path(folder)
        lines = commands(order, work)
        for layer, text in order.texts.items():
            (work / f"{layer}.def").write_text(text)
        (work / "lent" / "cache").mkdir(parents=True)
        lend(work / "lent")
        if not order.base.exists():
            with step(BASE):
                say("building the base layer")
                streamed(lines[BASE], log, say, cwd=work, environment=environment)
                _half(order.base).replace(order.base)
        (work / f"{BASE}.sif").symlink_to(order.base)
        with step("context"):
            say("packing raysuite and its locked requirements")
            found = write_context(order, work / "context")
        with step(TOP):
            say("building raysuite's layer")
            streamed(lines[TOP], log, say, cwd=work, environment=environment)
            _half(order.out).replace(order.out)
    return Built(order.out, found, order.out.stat().st_size, seconds, log)


def write_context(order: Order, context: Path) -> str:
    """Write the files that the upper layer's section %files copies; return the recipe's digest."""
    for path in ingredients(order.choice, order.root):
        copy = context / path.relative_to(order.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    wheel = _wheel(order.root, context / "dist")
    facts = {
        "digest": digest(order.choice, order.root),
        "variant": order.choice.variant,
        "arch": order.choice.arch,
        "extras": order.choice.extras,
        "raysuite": raysuite.__version__,
        "commit": _commit(order.root),
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
    (context / "facts.json").write_text(json.dumps(facts, indent=2))
    return str(facts["digest"])


def _wheel(root: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            f"raysuite's wheel cannot be made with {sys.executable}: "
            f"{done.stderr.strip().splitlines()[-1:]}; if hatchling is missing, `make setup` "
            "installs it"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _commit(root: Path) -> str | None:
    """The checkout's commit, with `-dirty` appended if tracked files were changed.

    By default, Git refuses another user's checkout. Such a checkout is allowed here, because this
    process already runs code from it.
    """
    trusted = ["-c", f"safe.directory={root}"]
    command = ["git", *trusted, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--exclude=*"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def _downloads(order: Order) -> Path:
    # one folder per base layer: compiled packages fit only that layer's C library and Python
    return order.shelf / f"downloads-{order.base.stem}"


def _half(path: Path) -> Path:
    return path.with_suffix(".part.sif")


def _path() -> str:
    """PATH and the sbin folders: debootstrap is in one of them, but a user's PATH may lack them."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
