"""A real sshd of our own on loopback, with throwaway keys, and an `ssh` that knows it as `site`.

It is `asking` too: ssh then asks in the terminal for PASSPHRASE.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil

from raysuite.cluster.ports import free_port

PASSPHRASE = "open sesame"
SSHD_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin"
_SSHD = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub {folder}/asking.pub
PidFile none
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
SetEnv RAYSUITE_HOME={home}
"""
_SSH = """\
Host site down
  IdentityFile {folder}/user
Host asking
  IdentityFile {folder}/asking
Host site asking down
  HostName 127.0.0.1
  User {user}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking accept-new
Host site asking
  Port {port}
Host down
  Port {closed}
"""


class OwnSshd:
    """Runs until `close`. `bin` goes to the front of PATH; `home` is RAYSUITE_HOME there."""

    def __init__(self, folder: Path) -> None:
        self.home, self.bin = folder / "home", folder / "bin"
        self.bin.mkdir()
        for name, passphrase in (("host", ""), ("user", ""), ("asking", PASSPHRASE)):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f"]
            subprocess.run([*words, str(folder / name)], check=True)
        port, closed = free_port(), free_port()
        values = {"folder": folder, "home": self.home, "port": port, "closed": closed}
        (folder / "sshd_config").write_text(_SSHD.format(**values), "utf-8")
        user = getpass.getuser()
        (folder / "ssh_config").write_text(_SSH.format(user=user, **values), "utf-8")
        ssh = self.bin / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it there, empty
        sshd = shutil.which("sshd", path=SSHD_PATH)
        assert sshd is not None
        words = [sshd, "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "sshd.log").open("wb") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + 120
        while not _answers(port):
            said = (folder / "sshd.log").read_text("utf-8")
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)

    def hang_up(self) -> None:
        """End all connections."""
        for each in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.terminate()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
