"""Definition files: what is committed, what decides the digest, what they never hold."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.images.recipe import (
    ARCHITECTURES,
    BASE,
    CUDA_IMAGES,
    EXTRAS,
    LEAST_DRIVERS,
    TOP,
    Choice,
    Variant,
    arguments,
    digest,
    dockerfile,
    files,
    filled,
    ingredients,
    placeholders,
)
from raysuite.measure.environment import LEAST_DRIVER

ROOT = Path(__file__).parents[3]
COMPAT = "/usr/local/cuda/compat"


def text_of(layer: str, variant: Variant = Variant.CPU) -> str:
    """A definition file as Apptainer reads it."""
    return filled(files(ROOT)[layer].read_text("utf-8"), arguments(Choice(variant)))


@pytest.mark.parametrize("layer", [BASE, TOP])
def test_no_host_is_named_and_each_section_stands_once(layer: str) -> None:
    text = files(ROOT)[layer].read_text("utf-8")
    assert "://" not in text
    sections = re.findall(r"^%\w+", text, re.MULTILINE)
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize("layer", [BASE, TOP])
def test_every_argument_has_a_default_which_is_that_of_the_cpu_variant(layer: str) -> None:
    text = files(ROOT)[layer].read_text("utf-8")
    section = text.partition("%arguments\n")[2].partition("\n\n")[0]
    defaults = dict(line.split("=", 1) for line in section.splitlines())
    assert set(defaults) == set(placeholders(text))
    assert defaults.items() - {("mirror", "none")} <= arguments(Choice()).items()


OLD = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version: 12\n"
NEW = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"


@pytest.mark.parametrize(
    ("variant", "version", "model", "there"),
    [
        (Variant.CUDA, OLD, "NVIDIA A100-SXM4-40GB", True),
        (Variant.CUDA, OLD, "NVIDIA GeForce RTX 3090", False),
        (Variant.CUDA, NEW, "NVIDIA A100-SXM4-40GB", False),
        (Variant.CUDA, "", "", False),
        (Variant.CUDA12, OLD, "NVIDIA A100-SXM4-40GB", False),
    ],
)
@pytest.mark.parametrize("before", ["", "/opt/lib"])
def test_cuda_compat_is_on_the_path_where_it_works(
    variant: Variant, version: str, model: str, there: bool, before: str, tmp_path: Path
) -> None:
    lines = text_of(TOP, variant).splitlines()
    wanted = [each for each in lines if each.startswith(("export CUDA_C", "export LD_LIB"))]
    script = "\n".join(wanted).replace("/proc/driver/nvidia", str(tmp_path))
    if version:
        (tmp_path / "gpus" / "0").mkdir(parents=True)
        (tmp_path / "version").write_text(version)
        (tmp_path / "gpus" / "0" / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n")
    said = subprocess.run(
        ["sh", "-euc", f'{script}\nprintf %s "$LD_LIBRARY_PATH"'],
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": before},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout == ":".join(filter(None, [COMPAT if there else "", before])), said.stderr


def test_base_image_and_torch_have_one_cuda() -> None:
    """To the minor version: Horovod's kernels are compiled with the image's."""
    folder = ROOT / "containers" / "requirements"
    for variant, name, runtime in (
        (Variant.CUDA, "base", "nvidia-cuda-runtime"),
        (Variant.CUDA12, "cuda12", "nvidia-cuda-runtime-cu12"),
    ):
        found = re.search(rf"^{runtime}==(\d+\.\d+)\.", (folder / f"{name}.txt").read_text(), re.M)
        assert found is not None
        assert CUDA_IMAGES[variant].startswith(f"nvidia/cuda:{found[1]}.")
        assert LEAST_DRIVERS[variant] == LEAST_DRIVER[int(found[1].partition(".")[0])]


def test_a_cuda12_image_has_no_cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    from setup_image import for_cuda12

    folder = ROOT / "containers" / "requirements"
    base, other = (folder / "base.txt").read_text(), (folder / "cuda12.txt").read_text()
    names = re.compile(r"^([\w.-]+)==", re.MULTILINE)
    left, new = set(names.findall(for_cuda12(base))), set(names.findall(other))
    assert not left & new
    gone = set(names.findall(base)) - left
    assert {"torch", "torchvision", "triton", "nvidia-nccl-cu13"} <= gone
    assert all(each.startswith(("nvidia-", "cuda-")) for each in gone - new)
    assert not re.search(r"cu13", for_cuda12(base) + other)
    assert for_cuda12(base).count("--hash") > len(left), "hashes go and stay with their packages"


def test_a_variant_is_a_distribution_with_its_packages_and_horovods_backend() -> None:
    cpu, cuda = text_of(BASE), text_of(BASE, Variant.CUDA)
    assert "Bootstrap: debootstrap\n" in cpu
    assert "OSVersion: bookworm\nMirrorURL: {{ mirror }}\n" in cpu
    assert "Bootstrap: docker\nFrom: nvidia/cuda:13." in cuda
    for variant, backend in ((Variant.CPU, ""), (Variant.CUDA12, "NCCL")):
        post = text_of(TOP, variant).partition("%post\n")[2].partition("python3 ")[0]
        said = subprocess.run(
            ["sh", "-c", f'{post}printf %s "$RAYSUITE_HOROVOD_GPU"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout == backend


def test_an_image_does_not_take_the_sites_python() -> None:
    script = text_of(TOP).partition("%environment\n")[2].partition("\n%")[0]
    said = subprocess.run(
        ["sh", "-euc", f'{script}\nprintf %s "$PYTHONPATH$PYTHONHOME-$PYTHONNOUSERSITE-$PATH"'],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/of/a/module", "PYTHONHOME": "/of/a/module"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "-1-/opt/raysuite/.venv/bin:/usr/bin:/bin"


@pytest.mark.parametrize("variant", Variant)
def test_a_dockerfile_runs_the_same_scripts(variant: Variant) -> None:
    made = dockerfile(Choice(variant), ROOT)
    assert f"\nFROM {arguments(Choice(variant))['image']} AS base\n" in made
    assert "\nFROM base AS raysuite\nADD context /opt/raysuite\n" in made
    assert 'ENV PATH="/opt/raysuite/.venv/bin:$PATH"\nENV PYTHONPATH= ' in made
    assert made.endswith('\nENTRYPOINT ["raysuite"]\n')
    assert "{{" not in made
    scripts = re.findall(r"(?s)<<'END'\n(.*?)\nEND\n", made)
    for layer, script in zip((BASE, TOP), scripts, strict=True):
        post = text_of(layer, variant).partition("%post\n")[2].partition("\n\n")[0]
        wanted = [line.strip() for line in post.splitlines() if "/.singularity.d/" not in line]
        assert script.splitlines() == wanted


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


LOCKS = (*EXTRAS, "base", "horovod-source", "tools")
BUILT_WITH = [
    *(Path("containers", "requirements", f"{name}.txt") for name in LOCKS),
    *(
        each.relative_to(ROOT)
        for pattern in ("containers/*.*", "deploy/setup_*.py", "deploy/horovod_wheel.py")
        for each in sorted(ROOT.glob(pattern))
    ),
]


@pytest.mark.parametrize("path", BUILT_WITH, ids=str)
def test_a_change_of_any_ingredient_changes_the_digest(copy: Path, path: Path) -> None:
    before = digest(Choice(), copy)
    (copy / path).write_bytes((copy / path).read_bytes() + b"\n")
    assert digest(Choice(), copy) != before


def test_patches_are_listed_by_name_whatever_the_order_of_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    for number in (3, 0, 7, 1, 9, 4, 8, 2, 6, 5):
        (tmp_path / "containers" / f"{number}.patch").touch()
    found = [each.name for each in ingredients(Choice(), tmp_path) if each.suffix == ".patch"]
    assert found == [f"{number}.patch" for number in range(10)]


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
        ({"extras": ("horovod", "mpi")}, "extra 'mpi'; valid"),
        ({"arch": "riscv"}, "valid: amd64 and arm64"),
    ],
)
def test_a_wrong_choice_names_the_valid_ones(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Choice(**arguments)  # type: ignore[arg-type]
