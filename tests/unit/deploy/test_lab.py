"""The lab's text and arithmetic; tests/lab runs the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import config, init
from lab.layout import LOGIN, Lab, LabError, load


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, ["node1", "node2"], "rslab0", "10.199.0.0/24", 21001, 4, 8000)


def test_addresses_are_those_of_the_subnet(lab: Lab) -> None:
    assert [lab.address(h) for h in (LOGIN, *lab.hosts)] == [
        "10.199.0.1",
        "10.199.0.11",
        "10.199.0.12",
    ]
    with pytest.raises(LabError, match="valid: node1, node2"):
        lab.check_host(LOGIN)
    assert lab.check_host(LOGIN, login=True) == LOGIN


def test_slurm_conf_names_each_host_with_its_address(lab: Lab) -> None:
    text = config.slurm_conf(lab)
    assert "SlurmctldHost=login(10.199.0.1)\n" in text
    assert "NodeName=node2 NodeAddr=10.199.0.12 CPUs=4 RealMemory=8000\n" in text
    assert all("=" in line or line.startswith("#") for line in text.splitlines())


def test_accounts_are_the_machines_and_two_users(lab: Lab) -> None:
    files = config.account_files(lab)
    assert files["passwd"].startswith(Path("/etc/passwd").read_text().splitlines()[0])
    assert f"hpc2:x:21002:21002:ordinary user:{lab.home('hpc2')}:/bin/bash\n" in files["passwd"]
    first, second = (line.split(":") for line in files["subuid"].splitlines())
    assert int(first[1]) + int(first[2]) <= int(second[1])


def test_a_lab_is_read_as_it_was_written(lab: Lab) -> None:
    assert load(lab.folder) is None
    lab.outer["node1"] = (17, 12.5)
    lab.save()
    assert load(lab.folder) == lab


def test_folders_closed_to_others_are_covered_once(tmp_path: Path) -> None:
    inside = tmp_path / "closed" / "python"
    inside.mkdir(parents=True)
    inside.parent.chmod(0o700)
    # pytest's own folders may be closed too: the first on the way is what counts.
    first = init.closed_to_others(inside)
    assert first in inside.parents
    assert init.covers([], [inside, inside]) == [first]
    assert init.covers([first.parent], [inside]) == [first.parent]
    assert init.closed_to_others(Path("/usr/bin")) is None
