"""What the building machine is set up with: Debian's mirror, Python's index, certificates, proxies.

All of it is lent to the build through a folder that is bound for its duration, and is neither
written into a definition file nor left in the image.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from raysuite.errors import UserError

MIRROR_VARIABLE = "RAYSUITE_DEBIAN_MIRROR"
LENT = "/mnt"
"""Where the lent folder is seen while an image is built."""

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_DEBIAN = re.compile(r"(?:https?|file)://\S+?/debian/?(?=\s|$)")


def debian_mirror(given: str | None = None, apt: Path = Path("/etc/apt")) -> str:
    """`given`, or $RAYSUITE_DEBIAN_MIRROR, or the mirror that this machine's apt uses.

    Raises UserError where none of them names one.
    """
    if mirror := given or os.environ.get(MIRROR_VARIABLE):
        if not _DEBIAN.fullmatch(mirror) and "://" not in mirror:
            raise UserError(f"given was the mirror {mirror!r}; it should be an address (a URL)")
        return mirror
    for text in _sources(apt):
        for line in text.splitlines():
            if line.lstrip().startswith("#"):
                continue
            if match := _DEBIAN.search(line):
                return match[0]
    raise UserError(
        "this machine's apt knows no mirror of Debian; name one: --mirror URL, or "
        f"{MIRROR_VARIABLE}=URL"
    )


def _sources(apt: Path) -> Iterator[str]:
    folder = apt / "sources.list.d"
    files = [
        apt / "sources.list",
        *sorted(folder.glob("*.list")),
        *sorted(folder.glob("*.sources")),
    ]
    for path in files:
        if path.is_file():
            yield path.read_text("utf-8", "replace")


def lend(folder: Path) -> None:
    """Write this machine's settings into `folder`, which the build sees as LENT."""
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
    """pip's `index-url` and `cert`, from its files and then its variables, as pip weighs them."""
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
    """apt's proxy settings as a file of apt's own, or an empty text."""
    if not shutil.which("apt-config"):
        return ""
    done = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if re.match(r"Acquire::https?::Proxy", line)]
    return "".join(f"{line}\n" for line in lines)
