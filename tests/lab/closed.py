"""What must be closed to another user of a site: a cluster's files, sockets, processes, servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.lab.listening import abstract_sockets
from tests.lab.residents import NODES, Resident

KNOCK = """
import socket, sys
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as own:
        try:
            own.connect(path)
            print("open")
        except OSError as error:
            print(type(error).__name__)
"""
OPENED = """
import sys
for pid in sys.argv[1:]:
    for name in ("environ", "maps", "mem"):
        try:
            if open(f"/proc/{pid}/{name}", "rb").read(1):  # of one that has ended, it is empty
                print("open", pid, name)
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            print("PermissionError")
"""


def check_files_and_sockets(own: Resident, other: str) -> None:
    """The other user reads, writes and enters nothing of hers, and no socket answers him."""
    lab = own.lab
    for host in ("login", *NODES):
        places = ["/tmp", "/dev/shm", "/var/tmp", str(lab.lab.home(own.user))]
        open_to = ["(", "-readable", "-o", "-writable", "-o", "-executable", ")"]
        find = ("find", *places, "-user", own.user, *open_to)
        # it ends badly where it may not enter: that is what is asked
        seen = {
            who: lab.run(*find, user=who, host=host, check=False).stdout
            for who in (own.user, other)
        }
        assert seen[other] == ""
        assert str(own.folder / "token") in seen[own.user]
    for host in NODES:
        sockets = lab.out("find", own.temp(host), "-type", "s", host=host, user=own.user)
        assert "plasma_store" in sockets
        knock = ("python", "-c", KNOCK, *sockets.splitlines())
        refused = lab.out(*knock, user=other, host=host)
        assert set(refused.splitlines()) == {"PermissionError"}
        assert abstract_sockets(lab, host) == []


def check_processes(own: Resident, other: str) -> None:
    """The other user reads neither environment nor memory of hers."""
    pids = own.lab.out("ps", "-u", own.user, "-o", "pid=", host="node1", user=None).split()
    assert len(pids) > 5
    said = own.lab.out("python", "-c", OPENED, *pids, user=other, host="node1")
    assert set(said.splitlines()) == {"PermissionError"}


def check_refused(at: Resident, visit: Mapping[str, dict[str, Any]]) -> None:
    """All that a visitor tried was refused, as whoever is not known is."""
    found = dict(visit)
    page = found.pop("bare HTTP")  # of Ray's dashboard: an empty page that asks for the token
    assert page["said"] == [f"{at.status['dashboard'].rpartition(':')[2]} /"]
    assert {name: each for name, each in found.items() if each["got"]} == {}
    for name, each in found.items():
        if name.startswith("gRPC"):
            assert "UNAUTHENTICATED" in each["said"], name
        elif each["said"].startswith("HTTPError"):
            assert each["said"].split()[3] in ("401:", "403:"), name
