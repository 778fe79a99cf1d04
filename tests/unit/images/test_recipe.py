"""Definition files: what is committed, what decides the digest, what they never hold."""

import re
import shutil
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.images.layers import ARCHITECTURES, EXTRAS, Bootstrap, Choice, Variant
from raysuite.images.recipe import (
    BASE,
    TOP,
    definitions,
    digest,
    file_names,
    ingredients,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("variant", Variant)
def test_the_committed_files_are_what_the_recipe_gives(variant: Variant) -> None:
    choice = Choice(variant)
    for layer, text in definitions(choice).items():
        path = ROOT / "containers" / file_names(choice)[layer]
        assert path.read_text("utf-8") == text, "raysuite image recipe writes it anew"


@pytest.mark.parametrize("variant", Variant)
def test_no_host_is_named_and_each_section_stands_once(variant: Variant) -> None:
    for text in definitions(Choice(variant)).values():
        assert "://" not in text
        sections = re.findall(r"^%\w+", text, re.MULTILINE)
        assert len(sections) == len(set(sections))


def test_the_layers_say_where_they_come_from() -> None:
    cpu, cuda = definitions(Choice(Variant.CPU)), definitions(Choice(Variant.CUDA))
    assert "Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: {{ mirror }}\n" in cpu[BASE]
    assert "Bootstrap: docker\nFrom: nvidia/cuda:13." in cuda[BASE]
    assert cpu[TOP].count("Bootstrap: localimage\nFrom: base.sif") == 1
    assert "RAYSUITE_HOROVOD_GPU=NCCL " in cuda[TOP]
    assert "RAYSUITE_HOROVOD_GPU= " in cpu[TOP]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The part of the checkout that an image is made of."""
    for path in ingredients(Choice(), ROOT):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return tmp_path


def test_the_same_lock_and_recipe_give_the_same_digest_anywhere(copy: Path) -> None:
    assert digest(Choice(), copy) == digest(Choice(), ROOT)
    assert re.fullmatch(r"[0-9a-f]{64}", digest(Choice(), ROOT))


@pytest.mark.parametrize("path", [path.relative_to(ROOT) for path in ingredients(Choice(), ROOT)])
def test_a_change_of_any_ingredient_changes_the_digest(copy: Path, path: Path) -> None:
    before = digest(Choice(), copy)
    (copy / path).write_bytes((copy / path).read_bytes() + b"\n")
    assert digest(Choice(), copy) != before


def test_each_choice_has_a_digest_of_its_own() -> None:
    choices = [Choice(variant, arch=arch) for variant in Variant for arch in ARCHITECTURES.values()]
    choices += [Choice(extras=EXTRAS[:count]) for count in range(len(EXTRAS))]
    assert len({digest(choice, ROOT) for choice in choices}) == len(choices)


def test_the_order_of_extras_does_not_matter() -> None:
    assert Choice(extras=("timm", "horovod")) == Choice(extras=("horovod", "timm"))


def test_every_extra_has_its_locked_requirements() -> None:
    for path in ingredients(Choice(), ROOT):
        assert path.is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": Variant.CPU, "bootstrap": Bootstrap.DOCKER}, "cpu from debootstrap"),
        ({"extras": ("horovod", "mpi")}, "the extra 'mpi'; valid are horovod, deepspeed"),
        ({"arch": "riscv"}, "valid are amd64 and arm64"),
    ],
)
def test_a_wrong_choice_names_the_valid_ones(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Choice(**arguments)  # type: ignore[arg-type]
