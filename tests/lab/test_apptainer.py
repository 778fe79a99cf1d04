"""An ordinary user of the lab builds an image and runs it on its hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import apptainer

from tests.lab.place import LabPlace
from tests.marks import LAB_MARKS

pytestmark = [*LAB_MARKS, pytest.mark.timeout(1200)]

# A root file system of a shell and the libraries that it needs.
SANDBOX = """
mkdir -p box/{bin,etc,tmp,proc,sys,dev,home,var/tmp,run}
touch box/etc/passwd box/etc/group box/etc/resolv.conf box/etc/hosts box/etc/localtime
for file in $(ldd /bin/sh | grep -o '/[^ ]*'); do
  mkdir -p "box/$(dirname "$file")" && cp -L "$file" "box/$file"
done
cp -L /bin/sh box/bin/sh
"""
RECIPE = """\
Bootstrap: localimage
From: box

%labels
    kind tiny
%runscript
    exec /bin/sh "$@"
"""


def test_a_user_builds_an_image_and_runs_it_on_three_hosts(lab: LabPlace, tools: Path) -> None:
    lab.run("bash", "-e", text_in=SANDBOX)
    lab.run("tee", "tiny.def", text_in=RECIPE)
    lab.run("apptainer", "build", "tiny.sif", "tiny.def", timeout_s=600)
    assert "kind: tiny" in lab.out("apptainer", "inspect", "tiny.sif")
    inside = 'read name < /proc/sys/kernel/hostname; echo "$name $APPTAINER_NAME"'
    done = lab.out("srun", "-N3", "apptainer", "exec", "tiny.sif", "/bin/sh", "-c", inside)
    assert set(done.splitlines()) == {f"{host} tiny.sif" for host in lab.lab.hosts}
    assert tools == apptainer.HOME
