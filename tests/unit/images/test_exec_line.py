"""Values reach the inside of an image as they are, or are refused."""

import pytest

from raysuite.errors import UserError
from raysuite.images.engine import exec_line


def test_the_whole_line() -> None:
    line = exec_line(
        "/images/r.sif",
        binds=["/data:/data:ro", "/project"],
        gpus=True,
        scratch="/local/ssd",
    )
    assert line == [
        *("apptainer", "--quiet", "exec", "--no-eval", "--nv"),
        *("--bind", "/data:/data:ro", "--bind", "/project", "--bind", "/local/ssd"),
        *("--env", "PYTHONPATH=", "--env", "PYTHONHOME="),
        "/images/r.sif",
    ]


@pytest.mark.parametrize("scratch", ["/tmp", "/tmp/me", None])
def test_tmp_is_there_anyway(scratch: str | None) -> None:
    assert "--bind" not in exec_line("/r.sif", scratch=scratch)


def test_a_folder_that_only_begins_like_tmp_is_bound() -> None:
    assert "/tmpfast" in exec_line("/r.sif", scratch="/tmpfast")


def test_amds_gpus_have_an_option_of_their_own() -> None:
    line = exec_line("/r.sif", gpus=True, rocm=True)
    assert "--rocm" in line
    assert "--nv" not in line


@pytest.mark.parametrize(
    "bind", ["data", "/a,/b", "/a:b", "/a:/b:rx", "/a:/b:ro:x", '/a"', "/a\\:b", "/a\nb", ""]
)
def test_a_bind_that_would_be_read_otherwise_is_refused(bind: str) -> None:
    with pytest.raises(UserError, match="SRC, SRC:DST or SRC:DST:ro"):
        exec_line("/r.sif", binds=[bind])


@pytest.mark.parametrize("image", ["r.sif", "docker://x", "/a:b.sif", "", "-v"])
def test_an_image_is_an_absolute_path(image: str) -> None:
    with pytest.raises(UserError, match="a SIF file"):
        exec_line(image)


def test_a_scratch_folder_with_a_colon_is_refused() -> None:
    with pytest.raises(UserError, match="colon"):
        exec_line("/r.sif", scratch="/a:/b")
