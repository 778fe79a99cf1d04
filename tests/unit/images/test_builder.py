"""What a build is asked to do, and what stops it before it starts."""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest

from raysuite.errors import MissingPartError, UserError
from raysuite.images import builder as building
from raysuite.images.apptainer import EngineError, engine, streamed
from raysuite.images.builder import Order, build, check, checkout, commands, write_context
from raysuite.images.recipe import BASE, TOP, Choice, Variant, digest, this_architecture

ROOT = Path(__file__).parents[3]
MIRROR = "http://mirror.example/debian"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program called apptainer, first on PATH, that does nothing: its path."""
    path = tmp_path / "bin" / "apptainer"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return str(path)


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return Order(Choice(), tmp_path / "r.sif", ROOT, shelf=tmp_path / "shelf", mirror=MIRROR)


def test_the_two_commands(program: str, order: Order) -> None:
    lines = commands(order, Path("/work folder"))
    downloads = f"{order.shelf}/downloads-{order.base.stem}"
    common = [program, "build", "--force", "--bind", "/work folder/lent:/mnt"]
    common += ["--bind", f"{downloads}:/mnt/cache"]
    common += ["--mksquashfs-args", "-comp zstd -Xcompression-level 3"]
    half = str(order.base).replace(".sif", ".part.sif")
    base = ["bootstrap=debootstrap", "image=debian:bookworm", f"mirror={MIRROR}", "variant=cpu"]
    top = ["variant=cpu", "least_driver=0"]
    for layer, given, end in (
        (BASE, base, [half, "base.def"]),
        (TOP, top, [f"{order.out.parent}/r.part.sif", "raysuite.def"]),
    ):
        arguments = [part for each in given for part in ("--build-arg", each)]
        assert lines[layer] == [*common, *arguments, *end]


def test_nvidias_image_needs_no_mirror(program: str, order: Order) -> None:
    cuda = dataclasses.replace(order, choice=Choice(Variant.CUDA))
    assert not [part for part in commands(cuda, Path("/work"))[BASE] if "mirror=" in part]


def test_a_definition_of_ones_own_gets_the_arguments_that_it_uses(
    program: str, order: Order
) -> None:
    own = dataclasses.replace(order, own={BASE: "Bootstrap: scratch\n", TOP: "{{ variant }}\n"})
    lines = commands(own, Path("/work"))
    assert "--build-arg" not in lines[BASE]
    assert lines[TOP].count("--build-arg") == 1


def test_the_kept_base_is_that_of_the_same_definition(order: Order) -> None:
    fewer = dataclasses.replace(order, choice=Choice(extras=()))
    own = dataclasses.replace(order, own={BASE: "Bootstrap: scratch\n", TOP: ""})
    other = dataclasses.replace(order, choice=Choice(arch=OTHER))
    assert order.base == fewer.base
    driver = dataclasses.replace(order, choice=Choice(Variant.CUDA))
    made_of = {each.base.stem.rpartition("-")[2] for each in (order, own, other, driver)}
    assert len(made_of) == 4


def test_without_apptainer_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingPartError, match="site's module"):
        engine()


OTHER = {"amd64": "arm64", "arm64": "amd64"}[this_architecture()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choice": Choice(arch=OTHER)}, f"on a machine with the architecture {OTHER}"),
        ({"out": Path("/nowhere/r.sif")}, "NAME.sif in a folder"),
        ({"out": Path("/tmp/r.img")}, "NAME.sif in a folder"),
        ({"out": Path("/tmp/r:1.sif")}, "without colons"),
        ({"scratch": Path("/nowhere")}, "--scratch: /nowhere"),
    ],
)
def test_what_would_fail_late_fails_at_once(
    order: Order, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check(dataclasses.replace(order, **changes))  # type: ignore[arg-type]


def test_only_a_fresh_debian_needs_debootstrap(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_path", lambda: "")
    with pytest.raises(UserError, match="debootstrap is not on PATH"):
        check(order)
    check(dataclasses.replace(order, choice=Choice(Variant.CUDA)))
    check(dataclasses.replace(order, own={BASE: "Bootstrap: scratch\n", TOP: ""}))


def test_a_base_is_built_once_and_an_image_appears_when_it_is_complete(
    program: str, order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(program).write_text(
        "#!/bin/sh\nfor each; do half=$image image=$each; done\n"
        'test -e "$half" && echo "left over: $half"\n'
        'echo "$image $APPTAINER_TMPDIR $(ls) $(ls lent)" | tr "\\n" " "; echo\n'
        'if [ "$image" = "$FAILS.def" ]; then echo broken; exit 3; fi\n'
        'echo made > "$half"\n'
    )
    monkeypatch.setattr(building, "write_context", lambda order, context: "digest")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    own = dataclasses.replace(order, own={BASE: "a", TOP: "b"}, scratch=scratch)
    said: list[str] = []
    first = build(own, said.append)
    assert (first.path, first.digest, first.size_bytes) == (order.out, "digest", 5)
    assert list(first.seconds) == ["base", "context", "raysuite"]
    assert said[1].split()[:2] == ["base.def", str(scratch)]
    assert {"lent", "raysuite.def", "cache", "settings.json"} <= set(said[1].split())
    assert said[-1].split()[:3] == ["raysuite.def", str(scratch), "base.def"]
    assert first.log.read_text().count("\n") == 1 + 2
    assert [each.name for each in own.shelf.glob("*.sif")] == [own.base.name]
    second = build(own, said.append)
    assert list(second.seconds) == ["context", "raysuite"]
    assert second.log.read_text().count("\n") == 1 + 1, "of this build alone"
    order.out.write_text("kept")
    monkeypatch.setenv("FAILS", "raysuite")
    with pytest.raises(EngineError, match="broken"):
        build(own, said.append)
    assert order.out.read_text() == "kept"
    assert [*scratch.iterdir()] == []


def test_an_installed_raysuite_has_no_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkout() == ROOT
    monkeypatch.setattr(building.raysuite, "__file__", str(tmp_path / "raysuite/__init__.py"))
    with pytest.raises(UserError, match="clone raysuite with git"):
        checkout()


def test_the_context_holds_the_lock_the_wheel_and_the_facts(order: Order, tmp_path: Path) -> None:
    context = tmp_path / "context"
    found = write_context(order, context)
    facts = json.loads((context / "facts.json").read_text())
    (wheel,) = (context / "dist").glob("raysuite-*.whl")
    assert facts["digest"] == found == digest(order.choice, ROOT)
    assert facts["wheel_sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert facts["extras"] == ["horovod", "deepspeed", "dali", "timm"]
    for name in ("containers/requirements/base.txt", "deploy/setup_image.py"):
        assert (context / name).read_bytes() == (ROOT / name).read_bytes()
    assert not (context / "containers/requirements/dev.txt").exists()


def test_every_line_is_heard_and_kept_below_the_earlier_ones_at_once(tmp_path: Path) -> None:
    heard: list[str] = []
    kept: list[list[str]] = []
    log = tmp_path / "log"
    log.write_text("$ raysuite image build\n")

    def say(line: str) -> None:
        heard.append(line)
        kept.append(log.read_text().splitlines())

    script = "echo out; echo err >&2; pwd; echo $RAYSUITE_X"
    streamed(
        ["sh", "-c", script],
        log,
        say,
        cwd=tmp_path,
        environment={"RAYSUITE_X": "x y"},
    )
    assert heard == ["out", "err", str(tmp_path), "x y"]
    assert kept == [["$ raysuite image build", *heard[: n + 1]] for n in range(4)]


def test_a_failure_shows_the_logs_end(tmp_path: Path) -> None:
    end = r"ended with exit status 3; .*log; its end:\n(  \d+\n)*  40$"
    with pytest.raises(EngineError, match=end):
        streamed(
            [sys.executable, "-c", "for i in range(41): print(i)\nraise SystemExit(3)"],
            tmp_path / "log",
            lambda line: None,
            cwd=tmp_path,
            environment={},
        )


def test_an_interruption_ends_the_build(tmp_path: Path) -> None:
    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streamed(
            ["sh", "-c", "echo started; sleep 1000; touch late"],
            tmp_path / "log",
            interrupted,
            cwd=tmp_path,
            environment={},
        )
    assert not (tmp_path / "late").exists()
