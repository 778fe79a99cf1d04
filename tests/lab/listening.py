"""What listens on a host of the lab, and whose it is, by the kernel's own tables."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from lab import hosts

from tests.lab.place import LabPlace

_LISTEN = "0A"


def listening(lab: LabPlace, host: str, user: str) -> list[tuple[str, int]]:
    """Address and TCP port of each socket of a user's that listens on a host."""
    uid, pid = lab.lab.uid(user), hosts.inner_pid(lab.lab, host)
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text("ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTEN and int(words[7]) == uid:
                address, _, port = words[1].partition(":")
                found.append((_address(address), int(port, 16)))
    return found


def abstract_sockets(lab: LabPlace, host: str) -> list[str]:
    """Names of Unix sockets without a file, which no file mode guards."""
    table = Path(f"/proc/{hosts.inner_pid(lab.lab, host)}/net/unix").read_text("utf-8")
    return [words[7] for line in table.splitlines() if len(words := line.split()) > 7
            and words[7].startswith("@")]  # fmt: skip


def _address(text: str) -> str:
    """Words of four bytes, each in the machine's own order."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    found = ipaddress.ip_address(raw)
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
