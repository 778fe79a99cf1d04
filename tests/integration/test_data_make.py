"""`raysuite data make` in several processes: killed and resumed, and on a cluster."""

from __future__ import annotations

import json
import secrets
import signal
from pathlib import Path

import pytest

from raysuite.cluster.ports import free_port
from raysuite.data.synthesis import make, plan_synthetic_set
from tests.integration.workplace import Workplace, until_ended
from tests.marks import SLOW_MARKS
from tests.waiting import until

# what is resumed is tested in process too: tests/unit/data/test_synthesis_making.py
pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(900)]

IMAGES = 9000
WORDS = ["imagenet", "--images", str(IMAGES), "--size", "200x150", "--out", "set", "--json"]


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the set as one process makes it, undisturbed."""
    synthetic = plan_synthetic_set("imagenet", images=IMAGES, size=(200, 150))
    return make(synthetic, tmp_path_factory.mktemp("one") / "set", 1).digest


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_killed_is_gone_on_with(
    tmp_path: Path, digest: str, how: signal.Signals
) -> None:
    place = Workplace(tmp_path)
    try:
        command = place.start("raysuite", "data", "make", *WORDS, "--workers", "3")
        journal = tmp_path / ".set.making" / "chunks.jsonl"

        def chunks() -> int:
            return len(journal.read_text().splitlines()) if journal.is_file() else 0

        until(lambda: chunks() > 0 or command.process.poll() is not None)
        assert command.process.poll() is None, command.stdout + command.stderr
        family = command.family()
        command.process.send_signal(how)
        assert command.wait() == (130 if how is signal.SIGINT else -signal.SIGKILL)
        assert not (tmp_path / "set").exists()
        until_ended(family)  # nobody goes on writing
        assert "Traceback" not in command.stderr
        kept = chunks()
        again = json.loads(place.run("raysuite", "data", "make", *WORDS, "--workers", "2").stdout)
        assert again["written"] == again["chunks"] - kept
        assert again["digest"] == digest
    finally:
        place.close()


def test_every_node_of_a_cluster_gets_it(tmp_path: Path) -> None:
    """Two nodes that share this machine's disk: one writes, the other waits and finds it."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    place, second = map(Workplace, folders)
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_AUTH_MODE": "token"}
    port = free_port()
    address = f"127.0.0.1:{port}"
    common = "--block --num-cpus=1 --disable-usage-stats --node-ip-address=127.0.0.1"
    try:
        head = place.start(
            *f"ray start --head --port={port} --include-dashboard=false {common}".split(),
            f"--temp-dir={place.temporary}",
            **token,
        )
        until(lambda: "Ray runtime started" in head.stdout or head.process.poll() is not None)
        assert head.process.poll() is None, head.stderr
        node = second.start(*f"ray start --address={address} {common}".split(), **token)
        until(lambda: "Ray runtime started" in node.stdout or node.process.poll() is not None)
        assert node.process.poll() is None, node.stderr
        words = ["raysuite", "data", "make", "mnist", "--images", "2000", "--out", "set"]
        joined = [*words, "--address", address]
        done = json.loads(place.run(*joined, "--json", **token).stdout)
        assert [end["error"] for end in done["nodes"]] == ["", ""]
        assert sorted(end["drawn"] for end in done["nodes"]) == [0, 2333]
        assert len({end["digest"] for end in done["nodes"]}) == 1
        assert {end["path"] for end in done["nodes"]} == {str(place.folder / "set")}
        told = place.run(*joined, **token).stdout.splitlines()
        assert len([line for line in told if "complete already" in line]) == 2

        refused = place.run(*joined, "--seed", "1", code=1, **token)
        assert refused.stdout.count("give --force to replace it") == 2
        assert "2 of 2 nodes have no complete data set" in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        second.close()
        place.close()
