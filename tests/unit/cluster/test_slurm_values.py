"""No value of a site is ever run: it is refused, or arrives as it was written."""

from __future__ import annotations

import shutil
import string
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from raysuite.cluster.slurm import _gpus, quote_option, render
from raysuite.errors import UserError
from raysuite.spec.site import SlurmSite
from raysuite.spec.site_values import one_line
from tests.require import require
from tests.sbatch import Bench, read_options

PIECES = [
    *string.printable,
    "$(touch canary)",
    "`touch canary`",
    ";touch canary;",
    "&& touch canary #",
    "\n#SBATCH --wrap=x",
    "\n#PBS -N x",
    "'\"'\"'",
    "\\'",
    '\\"',
    "${IFS}",
    "$HOME",
    "!!",
    "~",
    "{a,b}",
    "%j",
    "--",
    "ä",
    "日本",
    "🙂",
    "\u00a0",
    "\u2028",
    "\u202e",
    "\x85",
    "\x00",
    "\ud800",
]
NASTY = st.lists(st.sampled_from(PIECES) | st.characters(), min_size=1, max_size=8).map("".join)
PATHS = NASTY.map(lambda text: f"/{text}")

TEXTS = {
    "partition": NASTY,
    "account": NASTY,
    "qos": NASTY,
    "constraint": NASTY,
    "reservation": NASTY,
    "gpu_type": NASTY,
    "time": NASTY,
    "memory_per_node": NASTY,
    "interface": NASTY,
    "scratch": PATHS,
    "image": PATHS,
    "python": PATHS,
    "modules": st.lists(NASTY, max_size=2).map(tuple),
    "binds": st.lists(PATHS, max_size=2).map(tuple),
    "environment": st.dictionaries(st.sampled_from(["A", "IFS", "UID", "x y"]), NASTY, max_size=3),
}
OPTIONS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "reservation": "reservation",
    "time": "time",
    "memory_per_node": "mem",
}


def accepted(values: dict[str, Any]) -> SlurmSite:
    """The site with those of the values that are not refused."""
    kept: dict[str, Any] = {"gpus_per_node": 2, "warn_seconds": 1}
    for key, value in values.items():
        try:
            SlurmSite.model_validate({**kept, key: value})
        except ValidationError:
            continue
        kept[key] = value
    return SlurmSite.model_validate(kept)


@settings(deadline=None, max_examples=30)
@given(
    values=st.fixed_dictionaries(TEXTS),
    folder=NASTY,
    arguments=st.lists(NASTY, max_size=3).map(tuple),
)
def test_values_arrive_or_are_refused(
    values: dict[str, Any], folder: str, arguments: tuple[str, ...]
) -> None:
    site = accepted(values)
    with tempfile.TemporaryDirectory() as path:
        bench = Bench(Path(path))
        words = ("agent", site.scratch, site.image or "", *site.binds, *arguments)
        command = tuple(word for word in words if word)
        work = f"{path}/{folder}"
        try:
            script = render(site, 2, bench.cluster, work, command)
        except UserError:
            try:
                for word in (*command, work):
                    one_line(word)
            except ValueError:
                return
            assert "\\" in work
            return

        # what sbatch reads
        options = read_options(script)
        for key, option in OPTIONS.items():
            expected = getattr(site, key)
            found = [each for each in options if each.startswith(f"--{option}=")]
            assert found == ([] if expected is None else [f"--{option}={expected}"])
        assert f"--chdir={work}" in options
        assert f"--gres=gpu:{site.gpu_type + ':' if site.gpu_type else ''}2" in options
        assert len(options) == len(set(options)), "a value made an option of its own"
        assert not any(line.startswith(("#PBS", "#BSUB")) for line in script.split("\n"))

        # what bash does
        status, output = bench.run(script)
        assert status == 0, output
        (step,) = bench.calls("srun")
        assert step[-len(command) :] == list(command)
        assert [call[1] for call in bench.calls("module")] == list(site.modules)
        assert list((bench.path / "work").iterdir()) == [], "a value was run"
        left = {file.name for file in bench.cluster.iterdir()}
        assert left == {"environment", "logs", "suites"}


@settings(deadline=None)
@given(value=NASTY)
def test_an_option_survives_sbatch(value: str) -> None:
    try:
        one_line(value)
    except ValueError:
        return
    line = f"#!/bin/bash\n#SBATCH --comment={quote_option(value)}\n"
    assert read_options(line) == [f"--comment={value}"]


def test_sbatch_itself_reads_options_so() -> None:
    require("slurm")
    ask_sbatch()


@settings(deadline=None, max_examples=3, phases=[Phase.generate])
@given(values=st.lists(NASTY, min_size=40, max_size=80))
def ask_sbatch(values: list[str]) -> None:
    """The real one prints what it finds in a script before it looks for a controller."""
    kept = []
    for value in values:
        try:
            kept.append(one_line(value))
        except ValueError:
            continue
    header = "".join(f"#SBATCH --comment={quote_option(value)}\n" for value in kept)
    with tempfile.TemporaryDirectory() as path:
        (Path(path) / "slurm.conf").write_text(
            "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n"
            "AuthType=auth/none\nNodeName=localhost\nPartitionName=p Nodes=ALL\n"
        )
        (Path(path) / "job.sh").write_text(f"#!/bin/bash\n{header}true\n", encoding="utf-8")
        sbatch = shutil.which("sbatch")
        assert sbatch is not None
        process = subprocess.Popen(
            [sbatch, "-vvvvv", "job.sh"],
            cwd=path,
            env={"SLURM_CONF": f"{path}/slurm.conf", "PATH": "/usr/bin:/bin"},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        found = []
        assert process.stderr is not None
        for line in process.stderr:
            words = line.decode().removesuffix("\n")
            if "defined options" in words:
                break
            _, marker, argument = words.partition('Found in script, argument "')
            if marker:
                found.append(argument.removesuffix('"').removeprefix("--comment="))
        process.kill()
        process.wait()
        process.stderr.close()
    assert found == kept


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1),nvme:1", 4),
        ("gpu:a100:2(IDX:0,3),gpu:h100:8", 10),
        ("nvme:1", 0),
        ("(null)", 0),
    ],
)
def test_the_gpus_of_a_node_are_those_of_its_gres(gres: str, gpus: int) -> None:
    assert _gpus(gres) == gpus
