"""How a command runs on a node inside an image, for each engine; no value is read by a shell."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from raysuite.cluster.in_image import launched, step_options
from raysuite.cluster.slurm import render
from raysuite.errors import UserError
from raysuite.spec.engines import ENGINES, EngineName
from raysuite.spec.site import LocalSite, SlurmSite
from tests.require import require

FOLDERS = ("/work/my $(id)", "/tmp/x")
COMMAND = ("python", "-c", "it's $HOME")
LINES = {
    # engine -> options of srun, words on the node; the image is `{image}` in both
    "apptainer": (
        "",
        "apptainer --quiet exec --no-eval --nv --bind=/data:/data '--bind=/work/my $(id):/work/my "
        "$(id)' --env=PYTHONPATH= --env=PYTHONHOME= {image} {command}",
    ),
    "shifter": (
        "",
        "shifter --image={image} --volume=/data:/data '--volume=/work/my $(id):/work/my $(id)' "
        "--volume=/tmp/x:/tmp/x --env=PYTHONPATH= --env=PYTHONHOME= --module=gpu {command}",
    ),
    "podman-hpc": (
        "",
        "podman-hpc run --rm --net=host --pid=host --ipc=host --env-host --env=PYTHONPATH= "
        "--env=PYTHONHOME= --gpu --volume=/data:/data '--volume=/work/my $(id):/work/my $(id)' "
        "--volume=/tmp/x:/tmp/x {image} {command}",
    ),
    "srun_environment": ("--environment={image}", "{command}"),
    "pyxis": (
        "--container-image={image} "
        "'--container-mounts=/data:/data,/work/my $(id):/work/my $(id),/tmp/x:/tmp/x'",
        "{command}",
    ),
}
IMAGES = {"apptainer": "/r.sif", "srun_environment": "raysuite-edf"}


def site_of(engine: Any, **keys: Any) -> SlurmSite:
    image = IMAGES.get(engine, "docker:me/raysuite:1")
    binds = ("/data",) if ENGINES[engine].binds else ()
    site = {"engine": engine, "image": image, "binds": binds, "gpus_per_node": 4}
    return SlurmSite.model_validate({**site, **keys})


@pytest.mark.parametrize("engine", get_args(EngineName))
def test_the_line_of_an_engine(engine: EngineName) -> None:
    site = site_of(engine)
    step, words = (
        tuple(
            part
            for word in shlex.split(text)
            for part in (COMMAND if word == "{command}" else (word.replace("{image}", site.image),))
        )
        for text in LINES[engine]
    )
    assert step_options(site, FOLDERS) == step
    assert launched(site, COMMAND, FOLDERS) == words


@pytest.mark.parametrize("engine", get_args(EngineName))
def test_the_script_of_an_engine(engine: EngineName, tmp_path: Path) -> None:
    require("shellcheck")
    site = site_of(engine, srun_lines=["--mpi=cray_shasta", "--comment=$(touch canary) it's"])
    script = render(site, 2, Path("/f"), FOLDERS[0], launched(site, COMMAND, FOLDERS))
    (tmp_path / "job.sh").write_text(script)
    for check in (["bash", "-n"], ["shellcheck", "--exclude=SC1091,SC2016"]):
        done = subprocess.run([*check, "job.sh"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    arrays = [each for each in script.splitlines() if each.startswith(("command=", "step="))]
    program = "\n".join([*arrays, r'printf "%s\0" "${step[@]}" "${command[@]}"'])
    said = subprocess.check_output(["bash", "-euc", program], text=True, cwd=tmp_path)
    arrived = said.split("\0")[:-1]
    seen_by_srun = (FOLDERS[0], "/tmp") if engine == "pyxis" else ()
    wanted = [*site.srun_lines, *launched(site, COMMAND, FOLDERS)]
    assert arrived[-len(wanted) :] == wanted
    assert set(step_options(site, ("/f", *seen_by_srun))) <= set(arrived)
    assert [file.name for file in tmp_path.iterdir()] == ["job.sh"]


def test_a_sites_own_launch() -> None:
    words = ("uenv", "run", "{image}", "--mount={binds}", "--all={mounts}", "--", "{command}")
    site = SlurmSite(image="pytorch/v2", launch=words, binds=("/a", "/b:/c:ro"))
    assert launched(site, COMMAND, ()) == (
        *("uenv", "run", "pytorch/v2", "--mount=/a:/a", "--mount=/b:/c:ro"),
        *("--all=/a:/a,/b:/c:ro", "--", *COMMAND),
    )
    assert step_options(site, ()) == ()


def test_without_an_image_the_command_is_run_as_it_is() -> None:
    assert launched(SlurmSite(), COMMAND, FOLDERS) == COMMAND
    assert step_options(SlurmSite(engine="pyxis"), FOLDERS) == ()


def test_amds_gpus_have_an_option_of_their_own() -> None:
    line = launched(site_of("apptainer", rocm=True), COMMAND, ())
    assert "--rocm" in line
    assert "--nv" not in line


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"image": "docker://x"}, "absolute path of a SIF"),
        ({"image": "-v", "engine": "shifter"}, "does not begin with a dash"),
        ({"image": "x", "engine": "shifter", "scratch": "$TMPDIR"}, "without \\$"),
        ({"image": "x", "engine": "srun_environment", "binds": ["/a"]}, "`mounts`"),
        ({"launch": ["uenv", "run"]}, "must be {command}"),
        ({"launch": ["x", "{image}", "{command}"]}, "image is None"),
        ({"launch": ["x", "{command}"], "image": "/a.sif"}, "image is /a.sif"),
        ({"srun_lines": ["--export=NONE"]}, "sets --export"),
        ({"srun_lines": ["--no-kil"]}, "sets --no-kil"),
        ({"srun_lines": ["-c 4"]}, "one long option"),
        ({"srun_lines": ["--x; rm"]}, "one long option"),
    ],
)
def test_keys_that_do_not_belong_together_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SlurmSite.model_validate(keys)


def test_only_slurm_has_options_of_srun() -> None:
    mine = ["run", "{image}", "{command}"]
    assert LocalSite(engine="pyxis", image="x", launch=mine).launch == tuple(mine)
    with pytest.raises(ValidationError, match="only a site of kind slurm"):
        LocalSite(engine="pyxis", image="x")


@pytest.mark.parametrize(
    "bind", ["/a,/b", "/a:b", "/a:/b:rx", "/a:/b:ro:x", '/a"', "/a\\:b", "/a\nb"]
)
def test_a_bind_that_would_be_read_otherwise_is_refused(bind: str) -> None:
    site = site_of("apptainer").model_copy(update={"binds": (bind,)})
    with pytest.raises(UserError, match="SRC, SRC:DST or SRC:DST:ro"):
        launched(site, COMMAND, ())


def test_a_folder_that_no_image_can_see_is_refused() -> None:
    with pytest.raises(UserError, match="colon"):
        launched(site_of("apptainer"), COMMAND, ("/a:/b",))
    with pytest.raises(UserError, match="a SIF file"):
        launched(site_of("apptainer", image="/a:b.sif"), COMMAND, ())


def test_without_gpus_an_image_has_no_option_for_them() -> None:
    assert "--nv" not in launched(site_of("apptainer", gpus_per_node=0), COMMAND, ())


@pytest.mark.parametrize("folder", ["/tmp", "/tmp/me", str(Path.home() / "me"), "/tmpfast"])
def test_tmp_is_in_apptainers_images_anyway(folder: str) -> None:
    line = launched(SlurmSite(image="/r.sif"), COMMAND, (folder,))
    assert (f"--bind={folder}:{folder}" in line) == (folder == "/tmpfast")
