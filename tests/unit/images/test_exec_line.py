"""Values reach the inside of an image as they are, or are refused."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.errors import UserError
from raysuite.images.exec_line import exec_line, variable

TEXTS = st.text(st.characters(codec="utf-8"))


def as_apptainer_reads(text: str) -> dict[str, str]:
    """`--env` as pflag's StringToString takes it apart (string_to_string.go, Set)."""
    fields = [text.strip('"')] if text.count("=") == 1 else next(csv.reader(io.StringIO(text)))
    return {field.partition("=")[0]: field.partition("=")[2] for field in fields}


@given(value=TEXTS)
def test_a_variable_arrives_as_it_was_or_is_refused(value: str) -> None:
    try:
        text = variable("NAME", value)
    except UserError:
        assert "\0" in value or (value.endswith('"') and "=" not in value)
        return
    if "=" in value and ("\r" in value or "\n" in value):
        assert text == '"NAME={}"'.format(value.replace('"', '""'))  # Python's csv ends lines here
    else:
        assert as_apptainer_reads(text) == {"NAME": value}


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "A,B", "é", "$(id)"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="letters, digits and _"):
        variable(name, "x")


def test_the_whole_line() -> None:
    line = exec_line(
        "/images/r.sif",
        binds=["/data:/data:ro", "/project"],
        gpus=True,
        scratch="/local/ssd",
        environment={"NCCL_DEBUG": "INFO", "X": "a=b,c"},
    )
    assert line == [
        *("apptainer", "--quiet", "exec", "--no-eval", "--nv"),
        *("--bind", "/data:/data:ro", "--bind", "/project", "--bind", "/local/ssd"),
        *("--env", "PYTHONPATH=", "--env", "PYTHONHOME="),
        *("--env", "NCCL_DEBUG=INFO", "--env", '"X=a=b,c"'),
        "/images/r.sif",
    ]


@pytest.mark.parametrize("scratch", ["/tmp", "/tmp/me", None])
def test_tmp_is_there_anyway(scratch: str | None) -> None:
    assert "--bind" not in exec_line("/r.sif", scratch=scratch)


def test_a_folder_that_only_begins_like_tmp_is_bound() -> None:
    assert "/tmpfast" in exec_line("/r.sif", scratch="/tmpfast")


def test_the_callers_own_pythonpath_wins() -> None:
    line = exec_line("/r.sif", environment={"PYTHONPATH": "/mine"})
    assert "PYTHONPATH=/mine" in line
    assert "PYTHONPATH=" not in line


@pytest.mark.parametrize(
    "bind", ["data", "/a,/b", "/a:b", "/a:/b:rx", "/a:/b:ro:x", '/a"', "/a\\:b", "/a\nb", ""]
)
def test_a_bind_that_would_be_read_otherwise_is_refused(bind: str) -> None:
    with pytest.raises(UserError, match="SRC, SRC:DST or SRC:DST:ro"):
        exec_line("/r.sif", binds=[bind])


@pytest.mark.parametrize("image", ["r.sif", "docker://x", "/a:b.sif", "", "-v"])
def test_an_image_is_an_absolute_path(image: str) -> None:
    with pytest.raises(UserError, match="absolute path of a SIF file"):
        exec_line(image)


def test_a_scratch_folder_with_a_colon_is_refused() -> None:
    with pytest.raises(UserError, match="colon"):
        exec_line("/r.sif", scratch="/a:/b")
