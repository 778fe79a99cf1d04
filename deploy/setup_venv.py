"""Make .venv: the locked packages, Horovod built here, and raysuite itself, editable.

With --before-horovod, it ends before Horovod is built and Python files are compiled; the next
set-up continues there.
Standard library only. Needs Python 3.11 to 3.13 with venv, git, and for Horovod a C++ compiler.
If an optional package cannot be installed, the set-up prints the reason, continues and succeeds.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import horovod_wheel

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "containers" / "requirements"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "raysuite-setup.json"
LOG = VENV / "raysuite-setup.log"
CACHE = Path(os.environ.get("RAYSUITE_CACHE", Path.home() / ".cache" / "raysuite")).expanduser()
# tools: Ray's runtime_env={"pip": [...]} installs with the pip of a copy of this environment
REQUIRED = ("base", "dev", "docs", "tools")
OPTIONAL = ("horovod", "deepspeed", "dali", "timm", "schedulefree", "postgres")
ASKED = ("fabric", "accelerate", "tensorflow", "jax", "tensorboard", "wandb")
"""Installed if EXTRAS names them, such as tensorflow,jax; extras installed earlier are kept."""
# pip, setuptools and wheel download Horovod's source; uv does everything else.
TOOLS = ("uv==0.13.8", "pip", "setuptools", "wheel")
# Half of all Python files are tests, or belong to packages that no run imports.
OF_RUNS = (
    "PIL alembic deepspeed fastapi google mlflow mpmath narwhals networkx numpy nvidia "
    "opentelemetry pandas pydantic ray rich scipy sklearn sqlalchemy sympy torch triton"
)
STARTED = time.monotonic()


class SetupError(Exception):
    """The environment cannot be made; the message gives the reason and what to do."""


def say(message: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:4.0f} s] {message}", flush=True)


def private_uv() -> Path:
    """The pinned uv, in a separate environment in the cache; installed on first use."""
    pins = REQUIREMENTS / "tools.txt"
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = CACHE / f"{TOOLS[0].replace('==', '-')}-python{python}"
    ready = home / "raysuite-ready"
    if not (ready.exists() and ready.read_text() == wanted and (home / "bin" / "uv").exists()):
        say(f"installing {TOOLS[0]} into {home}")
        try:
            import ensurepip  # noqa: F401  (Debian's python3 comes without it)
        except ImportError:
            raise SetupError(
                f"{sys.executable} cannot make environments: its venv module is missing; "
                f"on Debian or Ubuntu: apt-get install python{python}-venv; "
                "or name another Python: make setup PYTHON=/path/to/python3.11"
            ) from None
        run(sys.executable, "-m", "venv", "--clear", home)
        pip = (home / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "--quiet", "--require-hashes", "-r", pins)
        ready.write_text(wanted)
    return home / "bin" / "uv"


def uv_environment(uv: Path) -> dict[str, str]:
    """The variables for uv, including pip's settings of index and certificate.

    Extra indexes and folders of wheels are left out: the lock's hashes fit one index's files.
    """
    environment = dict(os.environ)
    python = uv.parent / "python"
    answer = subprocess.run(
        (python, "-m", "pip", "config", "list"), capture_output=True, text=True, check=False
    )
    for variable, setting in (("UV_DEFAULT_INDEX", "index-url"), ("SSL_CERT_FILE", "cert")):
        for line in answer.stdout.splitlines():
            name, _, value = line.partition("=")
            if name.rpartition(".")[2] == setting:
                environment.setdefault(variable, str(ast.literal_eval(value)))
    environment.pop("VIRTUAL_ENV", None)
    return environment


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Run a command; if it fails, raise SetupError with the end of its output."""
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if VENV.exists():
        with LOG.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{done.stdout}")
    if done.returncode:
        name = " ".join(Path(str(part)).name for part in command[:4])
        end = "\n".join(done.stdout.splitlines()[-15:])
        raise SetupError(f"`{name} …` ended with {done.returncode}:\n{end}")


def input_key() -> str:
    """A hash over everything that determines the content of .venv."""
    digest = hashlib.sha256()
    inputs = [ROOT / "pyproject.toml", horovod_wheel.PATCH, *REQUIREMENTS.glob("*.txt")]
    inputs += Path(__file__).parent.glob("*.py")
    for path in sorted(inputs):
        digest.update(path.read_bytes())
    gpu = horovod_wheel.gpu_choice()
    lacking = horovod_wheel.missing_tools(gpu)
    digest.update(repr((str(ROOT), sys.version_info[:3], gpu, lacking)).encode())
    return digest.hexdigest()


def state() -> dict[str, object]:
    """The last set-up's result; empty if it is out of date or .venv no longer works."""
    try:
        stamp: dict[str, object] = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    if stamp.get("key") != input_key():
        return {}
    code = (
        "import importlib.metadata as m, raysuite, pydantic; m.version('ray'), m.version('torch')"
    )
    works = subprocess.run((PYTHON, "-c", code), cwd=VENV, capture_output=True, check=False)
    return stamp if works.returncode == 0 else {}


def asked() -> list[str]:
    """The extras that EXTRAS names. Raises SetupError for an unknown one."""
    names = [name.strip() for name in os.environ.get("EXTRAS", "").split(",") if name.strip()]
    unknown = sorted(set(names) - {*ASKED, *OPTIONAL})
    if unknown:
        raise SetupError(f"EXTRAS names {', '.join(unknown)}; valid: {', '.join(ASKED)}")
    return [name for name in ASKED if name in names]


def kept() -> list[str]:
    """The extras that an earlier set-up installed."""
    try:
        return list(json.loads(STAMP.read_text())["extras"])
    except (OSError, ValueError, KeyError):
        return []


def install_packages(uv: Path, env: dict[str, str], extras: list[str]) -> dict[str, str]:
    """Install the locked packages; returns the optional sets that failed, each with its reason."""
    optional = (*OPTIONAL, *extras)
    install = (uv, "pip", "install", "--quiet", "--python", PYTHON, "--require-hashes")

    def sets(*names: str) -> list[str | Path]:
        return [part for name in names for part in ("-r", REQUIREMENTS / f"{name}.txt")]

    try:
        run(*install, *sets(*REQUIRED, *optional), env=env)
        return {}
    except SetupError:
        say("not all at once; trying the optional packages one by one")
    run(*install, *sets(*REQUIRED), env=env)
    failed = {}
    for name in optional:
        try:
            run(*install, *sets("base", name), env=env)
        except SetupError as error:
            failed[name] = f"{str(error).splitlines()[-1].strip()}; see {LOG}"
    return failed


def compile_bytecode() -> None:
    """Compile raysuite's modules that changed, as `compile_packages` does with all others."""
    run(PYTHON, "-m", "compileall", "-q", ROOT / "raysuite")


def compile_packages() -> None:
    """Compile the Python files of the packages that runs import.

    Otherwise, with PYTHONDONTWRITEBYTECODE or a read-only folder, every worker of every run
    compiles torch's files. Files that are not valid Python, such as templates, are left out.
    """
    say("compiling the packages' Python files")
    (packages,) = (VENV / "lib").glob("python*/site-packages")
    tests = f"{re.escape(str(packages))}.*/(tests?|testing)/"
    command = (PYTHON, "-m", "compileall", "-qq", "-j", "0", "-x", tests)
    folders = [packages / name for name in OF_RUNS.split()]
    subprocess.run((*command, *folders), stdout=subprocess.DEVNULL, check=False)


def start_horovod(uv: Path, env: dict[str, str], pool: Executor) -> Callable[[], Path]:
    """Install the packages that Horovod's build needs, and start it; return a function that waits.

    A build for GPUs imports torch, so it starts only when this function is called. A build whose
    packages failed to install starts then too.
    """
    install = (uv, "pip", "install", "--quiet", "--python", PYTHON, "--no-deps")
    locked = [part for name in ("base", "horovod") for part in ("-c", REQUIREMENTS / f"{name}.txt")]
    if not horovod_wheel.gpu_choice():
        try:
            run(*install, "torch", "setuptools", "packaging", "cmake", *locked, env=env)
            return pool.submit(build_horovod, uv, env).result
        except SetupError:
            pass
    return lambda: build_horovod(uv, env)


def build_horovod(uv: Path, env: dict[str, str]) -> Path:
    """Build or fetch the wheel; raises HorovodError."""
    code = "import importlib.metadata as m, sys; v = sys.version_info; "
    code += "print(m.version('torch'), f'cp{v[0]}{v[1]}')"
    torch_version, tag = subprocess.check_output((PYTHON, "-c", code), text=True).split()
    target = horovod_wheel.Environment(PYTHON, torch_version, tag, horovod_wheel.gpu_choice())
    say(
        f"Horovod {tag}, torch {torch_version}, {target.gpu or 'CPU'} "
        "(a first build takes about a minute on two cores)"
    )
    return horovod_wheel.wheel(target, uv, CACHE, env, say)


def install_horovod(uv: Path, env: dict[str, str], wheel: Path) -> None:
    """Install the wheel; raises SetupError."""
    install = (uv, "pip", "install", "--quiet", "--python", PYTHON, "--no-deps", "--reinstall")
    run(*install, wheel, env=env)


def set_up(before_horovod: bool = False) -> None:
    """Bring .venv up to date; raises SetupError if a required package cannot be installed."""
    before = kept()
    extras = [name for name in ASKED if name in {*before, *asked()}]
    if extras == before and (stamp := state()):
        compile_bytecode()
        report(stamp)
        return
    uv = private_uv()
    env = uv_environment(uv)
    say(f"making {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}")
    run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, VENV, env=env)
    STAMP.unlink(missing_ok=True)
    LOG.write_text("")
    say("installing the locked packages (a first download takes minutes)")
    with ThreadPoolExecutor() as pool:
        wheel = None if before_horovod else start_horovod(uv, env, pool)
        off = install_packages(uv, env, extras)
        editable = ("--no-deps", "--no-build-isolation", "--editable", ROOT)
        run(uv, "pip", "install", "--quiet", "--python", PYTHON, *editable, env=env)
        if wheel is None:
            return
        compile_packages()
        if "horovod" not in off:
            try:
                install_horovod(uv, env, wheel())
            except (horovod_wheel.HorovodError, SetupError) as error:
                off["horovod"] = str(error)
                # A Horovod that was built for another torch must not count as working.
                run(uv, "pip", "uninstall", "--quiet", "--python", PYTHON, "horovod", env=env)
    compile_bytecode()
    stamp = {"key": input_key(), "off": off, "extras": extras}
    STAMP.write_text(json.dumps(stamp, indent=2) + "\n")
    report(stamp)


def report(stamp: dict[str, object]) -> None:
    """Print the parts that are off, with the reason, or that all parts are there."""
    off = stamp["off"]
    assert isinstance(off, dict)
    for name, reason in off.items():
        say(f"{name} is off: {reason}")
    if off:
        say(f"all else works without; to try again: rm {STAMP.relative_to(ROOT)} && make setup")
    say("ready: .venv/bin/raysuite doctor tries every part")


if __name__ == "__main__":
    try:
        set_up(before_horovod="--before-horovod" in sys.argv[1:])
    except (SetupError, horovod_wheel.HorovodError) as error:
        sys.exit(f"setup: {error}")
