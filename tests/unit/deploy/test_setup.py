from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import horovod_wheel
import lock_requirements
import pytest
import setup_venv

ENVIRONMENT = horovod_wheel.Environment(Path("python"), "2.15.0", "cp311", gpu="")
FILES = sorted(setup_venv.REQUIREMENTS.glob("*.txt"))


def pins(name: str) -> dict[str, set[str]]:
    """Version by package; a package may stand twice, under different markers."""
    found: dict[str, set[str]] = {}
    for block in lock_requirements.requirements(lock_requirements.file_of(name).read_text()):
        package, version = re.match(r"([\w.-]+)==([^\s;]+)", block).groups()  # type: ignore[union-attr]
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_requirements_are_hashed_and_name_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert "--index" not in text
    for block in lock_requirements.requirements(text):
        assert "--hash=sha256:" in block, block


def test_files_agree_on_versions() -> None:
    agreed: dict[str, set[str]] = {}
    for name in ("base", *lock_requirements.EXTRAS):
        for package, versions in pins(name).items():
            assert agreed.setdefault(package, versions) == versions, package


def test_lock_covers_pyproject() -> None:
    project = tomllib.loads((setup_venv.ROOT / "pyproject.toml").read_text())["project"]
    groups = {"base": project["dependencies"], **project["optional-dependencies"]}
    base = pins("base")
    for name, wanted in groups.items():
        have = base if name == "base" else base | pins(name)
        for requirement in wanted:
            package = re.match(r"[\w.-]+", requirement).group()  # type: ignore[union-attr]
            assert package.lower() in have, f"{requirement}: run `make lock`"


def test_requirements_joins_hashes_to_their_package() -> None:
    text = "# head\na==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nb==2 --hash=sha256:3\n"
    first, second = lock_requirements.requirements(text)
    assert first == "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
    assert second.startswith("b==2")


def test_cache_key_changes_with_what_is_compiled_in() -> None:
    keys = {
        horovod_wheel.cache_key(environment)
        for environment in (
            ENVIRONMENT,
            replace(ENVIRONMENT, torch_version="2.14.0"),
            replace(ENVIRONMENT, python_tag="cp312"),
            replace(ENVIRONMENT, gpu="NCCL"),
        )
    }
    assert len(keys) == 4


def test_cache_key_changes_with_the_patch_and_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [horovod_wheel.cache_key(ENVIRONMENT)]
    monkeypatch.setitem(horovod_wheel.BUILD_FLAGS, "HOROVOD_WITHOUT_MPI", "0")
    keys.append(horovod_wheel.cache_key(ENVIRONMENT))
    monkeypatch.setattr(horovod_wheel, "PATCH", tmp_path / "patch")
    horovod_wheel.PATCH.write_bytes(b"another")
    keys.append(horovod_wheel.cache_key(ENVIRONMENT))
    assert len({*keys}) == 3


def test_a_cached_wheel_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    wheel = tmp_path / "wheels" / horovod_wheel.cache_key(ENVIRONMENT) / "horovod-1.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert horovod_wheel.wheel(ENVIRONMENT, Path("uv"), tmp_path, {}) == wheel


def test_without_a_compiler_the_message_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(horovod_wheel.HorovodError, match=r"lacks a C\+\+ compiler.* g\+\+"):
        horovod_wheel.wheel(ENVIRONMENT, Path("uv"), tmp_path, {})


def test_a_failing_build_keeps_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel, "missing_tools", lambda gpu: "")
    python = tmp_path / "tools" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho no such release >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(horovod_wheel.HorovodError, match=r"ended with 1\); see .*build\.log"):
        horovod_wheel.wheel(ENVIRONMENT, python.with_name("uv"), tmp_path, {})
    (log,) = tmp_path.glob("wheels/*/build.log")
    assert "no such release" in log.read_text()


def test_a_build_prints_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = threading.Event()

    def build(*_: object) -> Path:
        (log,) = tmp_path.rglob("build.log")
        log.write_text("-- found torch\n[  6%] Building a\n[ 53%] Building b\nwarning [99%]\n")
        assert first.wait(30)
        made = tmp_path / "horovod-0.28.1.whl"
        made.write_bytes(b"")
        return made

    def say(line: str) -> None:
        said.append(line)
        if " 53 % " in line:
            first.set()

    monkeypatch.setattr(horovod_wheel, "PROGRESS_S", 0.01)
    monkeypatch.setattr(horovod_wheel, "missing_tools", lambda gpu: "")
    monkeypatch.setattr(horovod_wheel, "_build", build)
    found = horovod_wheel.wheel(ENVIRONMENT, Path("uv"), tmp_path, {}, say)
    assert found.parent.parent == tmp_path / "wheels"
    assert first.is_set()
    lines = len(said)
    time.sleep(0.05)
    assert len(said) == lines  # none after its end


def test_set_up_compiles_raysuite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "raysuite" / "module.py"
    module.parent.mkdir()
    module.write_text("x = 1\n")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    for name, value in (("ROOT", tmp_path), ("PYTHON", sys.executable), ("VENV", tmp_path / "no")):
        monkeypatch.setattr(setup_venv, name, value)
    monkeypatch.setattr(setup_venv, "kept", list)
    monkeypatch.setattr(setup_venv, "state", lambda: {"off": {}})  # a set-up that was made already
    monkeypatch.delenv("EXTRAS", raising=False)
    monkeypatch.setattr(setup_venv, "STAMP", tmp_path / "stamp")
    setup_venv.set_up()
    assert [each.suffix for each in module.parent.rglob("module.*.pyc")] == [".pyc"]


def test_unknown_gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_HOROVOD_GPU", "MPI")
    with pytest.raises(horovod_wheel.HorovodError, match="it is NCCL"):
        horovod_wheel.gpu_choice()


def test_python_without_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_venv, "CACHE", tmp_path)
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(setup_venv.SetupError, match=r"apt-get install python3\.\d+-venv"):
        setup_venv.private_uv()


def test_pip_settings_hold_for_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    settings = "global.index-url='https://mirror.example/simple'\n:env:.cert='/ca.pem'\n"
    settings += "global.extra-index-url='https://more.example'\n"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{settings}END\n")
    python.chmod(0o755)
    for name in ("UV_DEFAULT_INDEX", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    environment = setup_venv.uv_environment(tmp_path / "uv")
    assert environment["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert environment["SSL_CERT_FILE"] == "/ca.pem"
    assert "https://more.example" not in environment.values()


def test_make_lists_its_targets() -> None:
    command = ["make", "--no-print-directory"]
    answer = subprocess.run(
        command, cwd=setup_venv.ROOT, capture_output=True, text=True, check=True
    )
    listed = [line.split()[0] for line in answer.stdout.splitlines()]
    runs = ["demo", "sweep", "study"]
    habits = ["setup", "lock", *runs, "docs", "check"]
    tests = ["test", *(f"test-{each}" for each in ("extras", "ray", "thorough", "fast"))]
    tests += ["mutants", "bench", "ui"]
    lab = ["lab-up", "lab-down", "lab-status", "lab-shell"]
    cluster = ["cluster-up", "cluster-status", "submit", "cluster-down"]
    assert listed == ["help", *habits, *tests, "image", "report", *lab, *cluster, "clean"]


@pytest.mark.parametrize("gpu", ["", "NCCL"])
def test_horovod_is_built_beside_the_download_and_for_gpus_after_it(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, installed = threading.Event(), []

    def build(*_: object) -> Path:
        started.set()
        return tmp_path / "horovod.whl"

    def packages(*_: object) -> dict[str, str]:
        assert started.wait(0 if gpu else 30) is not bool(gpu)
        return {}

    for name in ("run", "report", "compile_packages", "compile_bytecode"):
        monkeypatch.setattr(setup_venv, name, lambda *_, **__: None)
    monkeypatch.setattr(setup_venv, "private_uv", lambda: Path("uv"))
    monkeypatch.setattr(setup_venv, "uv_environment", lambda uv: {})
    monkeypatch.setattr(setup_venv, "build_horovod", build)
    monkeypatch.setattr(setup_venv, "install_packages", packages)
    monkeypatch.setattr(setup_venv, "install_horovod", lambda *given: installed.append(given[2]))
    monkeypatch.setattr(setup_venv, "VENV", setup_venv.ROOT / "no")
    for name in ("STAMP", "LOG"):
        monkeypatch.setattr(setup_venv, name, tmp_path / name)
    monkeypatch.delenv("EXTRAS", raising=False)
    monkeypatch.setenv("RAYSUITE_HOROVOD_GPU", gpu)
    setup_venv.set_up()
    assert installed == [tmp_path / "horovod.whl"]
    assert setup_venv.STAMP.exists()


def test_packages_of_runs_are_compiled_and_their_tests_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "tests" / "lib" / "python3.11" / "site-packages"
    for name in ("torch/a.py", "torch/testing/b.py", "pandas/tests/c.py", "sphinx/d.py"):
        file = packages / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setattr(setup_venv, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(setup_venv, "VENV", tmp_path / "tests")
    setup_venv.compile_packages()
    assert [each.parent.parent for each in packages.rglob("*.pyc")] == [packages / "torch"]
