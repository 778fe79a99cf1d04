"""What is read of an image, with a program in place of Apptainer that answers as it does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.images import inspect
from raysuite.images.apptainer import EngineError
from raysuite.images.recipe import Choice, Variant, digest

ROOT = Path(__file__).parents[3]
CHOICE = Choice(Variant.CUDA, extras=("timm",))


class Program:
    """Files beside the program: what a subcommand prints, and those that fail."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / "apptainer"
        path.write_text(
            f"#!/bin/sh\ncd {folder}\n"
            'for each in inspect exec sign verify test; do case " $* " in *" $each "*)\n'
            'echo "$*" > asked; cat "$each.out" 2>/dev/null; test -e "$each.err" || exit 0\n'
            'cat "$each.err" >&2; exit 1;; esac; done\n'
        )
        path.chmod(0o755)

    def answers(self, action: str, text: str) -> None:
        (self._folder / f"{action}.out").write_text(text)

    def fails(self, action: str, text: str) -> None:
        (self._folder / f"{action}.err").write_text(text)

    @property
    def asked(self) -> list[str]:
        return (self._folder / "asked").read_text().split()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    made = Program(tmp_path / "bin")
    labels = {"data": {"attributes": {"labels": {"raysuite": "1"}}}}
    made.answers("inspect", json.dumps(labels))
    facts = {"digest": digest(CHOICE, ROOT), "variant": "cuda", "arch": CHOICE.arch}
    made.answers("exec", json.dumps({**facts, "extras": ["timm"]}))
    return made


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "r.sif").write_bytes(b"12345")
    return tmp_path / "r.sif"


def test_an_image_has_its_facts_its_labels_and_its_size(program: Program, image: Path) -> None:
    found = inspect.describe(image)
    assert (found.path, found.size_bytes) == (str(image), 5)
    assert (found.facts["variant"], found.labels) == ("cuda", {"raysuite": "1"})
    program.answers("inspect", json.dumps({"data": {"attributes": {"labels": None}}}))
    assert inspect.describe(image).labels == {}


@pytest.mark.parametrize(
    ("action", "words"), [("inspect", "can read: no SIF"), ("exec", r"not built by .*\(no SIF\)")]
)
def test_what_is_no_image_of_raysuite_is_refused(
    program: Program, image: Path, action: str, words: str
) -> None:
    program.fails(action, "no SIF\n")
    with pytest.raises(UserError, match=words):
        inspect.describe(image)
    with pytest.raises(UserError, match="there is no image"):
        inspect.describe(image.with_name("missing.sif"))


def test_a_recipe_is_that_of_the_same_choice_and_checkout(program: Program, image: Path) -> None:
    assert inspect.recipe(image, ROOT).passed
    facts = {"digest": digest(CHOICE, ROOT), "variant": "cuda", "arch": CHOICE.arch}
    program.answers("exec", json.dumps({**facts, "extras": []}))
    assert not inspect.recipe(image, ROOT).passed
    other = {"amd64": "arm64", "arm64": "amd64"}[CHOICE.arch]
    wanted = digest(replace(CHOICE, arch=other), ROOT)
    facts = {**facts, "digest": wanted, "arch": other, "extras": list(CHOICE.extras)}
    program.answers("exec", json.dumps(facts))
    assert inspect.recipe(image, ROOT).passed


def test_a_signature_is_verified_by_the_key_or_the_keyring(program: Program, image: Path) -> None:
    key = image.with_name("key.pem")
    with pytest.raises(UserError, match="there is no key"):
        inspect.signature(image, key)
    key.touch()
    for given, how, by in (
        (key, ["--key", str(key)], str(key)),
        (None, ["--local"], "a key of this machine's keyring"),
    ):
        assert inspect.signature(image, given) == inspect.Check("signature", True, f"by {by}")
        assert program.asked == ["verify", *how, str(image)]
    inspect.sign_image(image, key)
    assert program.asked == ["sign", "--key", str(key), str(image)]
    program.fails("verify", "INFO: one\nFATAL: not signed\n\n")
    wanted = inspect.Check("signature", False, "FATAL: not signed")
    assert inspect.signature(image, None) == wanted
    program.fails("sign", "FATAL: no key\n")
    with pytest.raises(EngineError, match="apptainer sign: FATAL: no key"):
        inspect.sign_image(image, key)


def test_the_images_own_test_lists_its_parts_or_its_last_errors(
    program: Program, image: Path
) -> None:
    program.answers("test", "torch 2\n\nray 3\n")
    assert inspect.test(image) == inspect.Check("test", True, "torch 2, ray 3")
    program.fails("test", "a\nb\n")
    assert inspect.test(image) == inspect.Check("test", False, "ray 3; a; b")
