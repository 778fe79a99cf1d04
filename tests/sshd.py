"""A real sshd of our own on loopback, with throwaway keys, and an `ssh` that knows it as `site`."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from raysuite.cluster.ports import free_port

SSHD_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin"
_SSHD = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
SetEnv RAYSUITE_HOME={home}
"""
_SSH = """\
Host site down
  HostName 127.0.0.1
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking accept-new
Host site
  Port {port}
Host down
  Port {closed}
"""


class OwnSshd:
    """Runs until `close`. `bin` goes to the front of PATH; `home` is RAYSUITE_HOME there."""

    def __init__(self, folder: Path) -> None:
        self.home, self.bin = folder / "home", folder / "bin"
        self.bin.mkdir()
        for name in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(words, check=True)
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

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
