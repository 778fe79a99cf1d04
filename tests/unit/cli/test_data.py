"""`raysuite data`: what check, convert and make print, and how they end."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.cli.console import print_text
from raysuite.cli.data import (
    _as_data,
    _print_conversion,
    _print_report,
    _sizes,
    _span,
    _summary,
    data,
    parse_size,
)
from raysuite.data.convert import Summary
from raysuite.data.findings import Finding, Report
from raysuite.data.synthesis import plan_synthetic_set
from raysuite.data.synthesis.making import Made, locked
from raysuite.orchestrate.synthetic_data import NodeEnd
from raysuite.spec import parse_document
from raysuite.spec.data_set import DataOptions
from tests import small_sets


def check(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", "check", *map(str, arguments), "--workers", "1"])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    small_sets.write("imagenet-tfrecord", tmp_path / "set")
    return tmp_path / "set"


def spec(folder: Path, *blocks: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(
        "name: x\nmodel: resnet20\ntraining: {epochs: 1, batch_per_worker: 4}\n"
        f"data: {blocks[0]}\nmatrix: {{data: [{', '.join(blocks)}], seed: [1, 2]}}\n"
    )
    return path


def test_a_sound_set(shards: Path) -> None:
    result = check(shards)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout.startswith(f"{shards}: tfrecord\n")
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    assert rows["train"][1:4] == ["23", "0", "3"]
    assert rows["val"][1:4] == ["9", "0", "3"]
    assert result.stdout.endswith("no errors found\n")


def test_what_is_wrong_is_told_with_its_place(shards: Path) -> None:
    path = shards / "train-00001-of-00003"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    result = check(shards, "--no-decode")
    assert result.exit_code == 1
    assert f"1 wrong:\n  {path} at byte 0: the checksum of the record's data" in result.stdout
    told = json.loads(check(shards, "--json").stdout)
    assert (told["ok"], told["errors"]) == (False, 1)
    (finding,) = (each for each in told["findings"] if not each["note"])
    assert (finding["place"], finding["offset"], finding["kind"]) == (str(path), 0, "record")
    assert told["splits"]["val"]["images"] == 9


def test_counts_and_sizes_are_one_or_a_range() -> None:
    assert [_span(counts) for counts in ([], [7, 7], [1000, 30])] == ["0", "7", "30 to 1,000"]
    assert (_sizes({}), _sizes({(32, 24): 9})) == ("", "32 x 24")
    several = {(30, 40): 1, (20, 50): 2, (25, 45): 1}
    assert _sizes(several) == "20 to 30 x 40 to 50, most often 20 x 50"


def test_long_lists_are_cut(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysuite.cli.data.MOST_SHOWN", 2)
    for path in (shards / "idx_files").iterdir():
        path.unlink()
    result = check(shards)
    assert result.exit_code == 1
    assert "6 wrong:\n" in result.stdout
    assert result.stdout.count("there is no index") == 2
    assert "  and 4 more; --json shows them\n" in result.stdout
    assert check(shards, "--write-index").exit_code == 0
    assert check(shards).exit_code == 0


def test_the_sets_of_a_spec(shards: Path, tmp_path: Path) -> None:
    small_sets.write("mnist-idx", tmp_path / "mnist")
    blocks = (
        f"{{name: imagenet, format: tfrecord, path: {shards}}}",
        f"{{name: mnist, path: {tmp_path / 'mnist'}}}",
    )
    told = json.loads(check(spec(tmp_path, *blocks), "--json").stdout)
    assert [each["form"] for each in told] == ["tfrecord", "idx"]
    assert [each["splits"]["train"]["images"] for each in told] == [23, 23]


def test_one_damaged_set_of_a_spec_is_an_error(tmp_path: Path) -> None:
    for name in ("sound", "damaged"):
        small_sets.write("mnist-idx", tmp_path / name)
    images = next((tmp_path / "damaged").glob("t10k-images*"))
    images.write_bytes(images.read_bytes()[:-1])
    blocks = [f"{{name: mnist, path: {tmp_path / name}}}" for name in ("sound", "damaged")]
    result = check(spec(tmp_path, *blocks), "--json")
    assert [each["ok"] for each in json.loads(result.stdout)] == [True, False]
    assert result.exit_code == 1


def test_a_named_set_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_DATA", str(tmp_path))
    small_sets.write("cifar10-pickle", tmp_path / "cifar10-pickle")
    result = check("cifar10", "--format", "pickle")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "cifar10-pickle") in result.stdout
    missing = check("cifar10")
    assert missing.exit_code == 1
    assert "raysuite data make cifar10" in missing.stdout


def test_stated_names(tmp_path: Path) -> None:
    small_sets.write("imagenet-folder", tmp_path)
    (tmp_path / "val" / small_sets.SYNSETS[0]).rename(tmp_path / "away")
    assert check(tmp_path).exit_code == 1
    # of ImageNet, validation may lack classes: synthetic sets are small
    assert check(tmp_path, "--name", "imagenet").exit_code == 0


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("", {}),
        ("negative", {"file": 1}),
        ("lacking", {"image": 2}),
        ("float", {"image": 2}),
        ("four", {"image": 2}),
        ("half", {"image": 2}),
        ("label", {"label": 2}),
        ("below", {"label": 2}),
    ],
)
def test_ones_own_set(
    fault: str, wrong: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several parts, as large sets are."""
    monkeypatch.setattr("raysuite.data.formats.own._CHUNK", 5)
    block = f"{{name: 'tests.odd_sets:Odd', image_size: 8, options: {{fault: '{fault}'}}}}"
    result = check(spec(tmp_path, block), "--json", "--workers", 1)
    told = json.loads(result.stdout)
    assert Counter(each["kind"] for each in told["findings"] if not each["note"]) == wrong
    assert result.exit_code == (1 if wrong else 0)
    if fault != "negative":
        bad = wrong.get("image", 0) // 2
        assert [told["splits"][each]["unreadable"] for each in ("train", "val")] == [bad, bad]
        assert told["splits"]["train"]["images"] == 12
    if not fault:
        whole = {"images": 12, "unreadable": 0, "classes": {"a": 4, "b": 4, "c": 4}}
        assert told["splits"]["val"] == {**whole, "sizes": [[5, 6, 12]]}


@pytest.mark.parametrize("fault", ["drawn", "drawn_label"])
def test_samples_that_are_not_the_same_each_time(fault: str, tmp_path: Path) -> None:
    block = f"{{name: 'tests.odd_sets:Odd', image_size: 8, options: {{fault: {fault}}}}}"
    result = check(spec(tmp_path, block), "--json", "--workers", 1)
    assert result.exit_code == 1
    assert "another instance reads" in json.loads(result.stdout)["findings"][0]["message"]


@pytest.mark.parametrize("name", ["digits", "python_topics"])
def test_a_set_without_files_of_a_user_has_nothing_to_check(name: str, tmp_path: Path) -> None:
    block = f"{{name: {name}}}" if name == "digits" else f"{{name: {name}, sequence: 8}}"
    for what in (spec(tmp_path, block), *(["digits"] if name == "digits" else [])):
        result = check(what)
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith(f"{name}: ")
        assert not result.stdout


def test_a_sample_that_is_no_pair_is_named_once_and_in_order_of_its_number(tmp_path: Path) -> None:
    block = "{name: 'tests.odd_sets:Odd', image_size: 8, options: {fault: dictionary}}"
    result = check(spec(tmp_path, block), "--json", "--workers", 1)
    found = json.loads(result.stdout)["findings"]
    train = [each for each in found if "train" in each["place"]]
    assert [each["place"].rpartition("[")[2] for each in train] == [f"{i}]" for i in range(12)]
    assert not any(each["place"] in each["message"] for each in found)
    assert all("a dict with 'image', 'label'" in each["message"] for each in found)


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("", ""),
        ("drawn", "it differs when another"),
        ("shape", "and 1 others cannot be stacked"),
    ],
)
def test_ones_own_set_of_another_task(fault: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: x\ntask: segmentation\nmodel: 'tests.task_sets:Maps'\n"
        "training: {epochs: 1, batch_per_worker: 4}\n"
        f"data: {{name: 'tests.odd_sets:masks', options: {{fault: '{fault}'}}}}\n"
    )
    result = check(path, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == bool(wrong)
    assert [told["splits"][each]["images"] for each in ("train", "val")] == [12, 3]
    places = [f"tests.odd_sets:masks(split='{each}')[2]" for each in ("train", "val")]
    assert [each["place"] for each in told["findings"]] == (places if wrong else [])
    assert all(each["message"].startswith(wrong) for each in told["findings"])


def test_ones_own_set_by_its_name() -> None:
    assert check("tests.odd_sets:Odd", "--workers", 1).exit_code == 0
    assert check("tests.odd_sets:Nowhere").exit_code == 1


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for split, count in (("train", 4), ("val", 2)):
        for name in ("ant", "bee"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (9, 7 + number)).save(folder / f"{number}.jpg")
    return tmp_path / "photos"


def test_every_verb_has_help_with_examples() -> None:
    listing = run("--help").stdout
    verbs = [command.name or "" for command in data.registered_commands]
    assert "convert" in verbs
    for verb in verbs:
        assert re.search(rf"^  {verb} ", listing, re.M)
        assert "Examples:" in run(verb, "--help").stdout, f"{verb} --help has no examples"


def test_the_summary_tells_what_lies_there_and_how_to_read_it(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "a: folder, #1"
    result = run("convert", source, target, "--shards", 2, "--workers", 1)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    first, second, spec = result.stdout.splitlines()
    assert first == f"{target}: 3 shards"
    assert second.startswith("8 training and 4 validation images of 2 classes, labels from 0, ")
    options = DataOptions(**parse_document(spec.removeprefix("in a spec: "), "x").data["data"])
    assert (options.path, options.classes) == (str(target), 2)
    again = run("convert", source, target, "--shards", 2)
    assert again.stdout.startswith(f"{target}: nothing to do: all 3 shards are complete\n")


def test_the_summary_as_json(source: Path, tmp_path: Path) -> None:
    result = run("convert", source, tmp_path / "x", "--json", "--workers", 1)
    told = json.loads(result.stdout)
    assert (told["train"], told["val"], told["shards"], told["skipped"]) == (8, 4, 2, [])


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path, as_json: bool) -> None:
    options = ["--json"] if as_json else []
    result = run("convert", source, tmp_path / "x", "--dry-run", "--shards", 4, *options)
    assert result.exit_code == 0
    assert not (tmp_path / "x").exists()
    if as_json:
        assert json.loads(result.stdout)["shards"] == {"train": 4, "val": 2}
    else:
        assert "train: 8 images into 4 shards\nval: 4 images into 2 shards\n" in result.stdout


def test_bad_images_end_with_2_and_skipped_ones_are_listed(source: Path, tmp_path: Path) -> None:
    bad = source / "val" / "bee" / "1.jpg"
    bad.write_text("not a picture")
    result = run("convert", source, tmp_path / "x", "--workers", 1)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: 1 image cannot be read")
    assert str(bad) in result.stderr
    skipped = run("convert", source, tmp_path / "x", "--bad", "skip", "--workers", 1)
    assert skipped.exit_code == 0
    assert f"skipped, because they cannot be read: 1\n  {bad}: " in skipped.stdout


def done(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_DATA", str(tmp_path / "sets"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_it_says_what_was_made_where_a_spec_looks_for_it(tmp_path: Path) -> None:
    made = done("make", "mnist", "--images", "40", "--workers", "1")
    assert made.stdout.startswith(
        f"{tmp_path}/sets/mnist-idx: 40 training and 10 validation images of 10 classes, "
        "28 x 28 grey, as idx, "
    )
    assert "images/s" in made.stdout
    assert made.stderr == ""
    again = done("make", "mnist", "--images", "40")
    assert "nothing was written" in again.stdout
    (tmp_path / "spec.yaml").write_text(
        "name: x\nmodel: resnet20\ndata: mnist\ntraining: {epochs: 1, global_batch: 20}\n"
    )
    (plan,) = json.loads(
        CliRunner().invoke(app, ["plan", str(tmp_path / "spec.yaml"), "--json"]).stdout
    )
    assert plan["steps_per_epoch"] == 2


def test_a_dry_run_makes_nothing(tmp_path: Path) -> None:
    told = done("make", "mnist", "--dry-run").stdout
    assert told == (
        f"{tmp_path}/sets/mnist-idx: 60,000 training and 10,000 validation images of 10 classes, "
        "28 x 28 grey, as idx, about 52.4 MiB\n"
    )
    plan = json.loads(done("make", "cifar10", "--fraction", "0.1", "--dry-run", "--json").stdout)
    assert (plan["train"], plan["val"], plan["form"]) == (5000, 1000, "binary")
    assert plan["bytes"] == 6000 * 3073
    assert not (tmp_path / "sets").exists()


def test_json_tells_what_lies_there(tmp_path: Path) -> None:
    words = ("make", "cifar10", "--images", "20", "--out", tmp_path / "c", "--workers", "1")
    first, again = (json.loads(done(*words, "--json").stdout) for _ in range(2))
    assert first["path"] == str(tmp_path / "c")
    assert (first["images"], first["drawn"], again["drawn"]) == (30, 30, 0)
    assert first["images_per_s"] > 0
    assert again["images_per_s"] is None
    assert again["digest"] == first["digest"]
    assert first["synthetic"]["seed"] == 0


def test_a_wait_for_another_writer_is_told_beside_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ExitStack()
    other.enter_context(locked(tmp_path / "c", lambda: None))

    def told(text: str, error: bool) -> None:
        other.close()
        print_text(text, error=error)

    monkeypatch.setattr("raysuite.cli.data.print_text", told)
    words = ("make", "cifar10", "--images", "20", "--out", tmp_path / "c", "--workers", "1")
    made = done(*words, "--json")
    assert "another process" in made.stderr
    assert json.loads(made.stdout)["images"] == 30


MADE = Made("/set", 100, 9, 4, 4, 100, 5.0, "a")


@pytest.mark.parametrize(
    ("second", "code", "words"),
    [
        (MADE, 0, ""),
        (replace(MADE, digest="b"), 1, "the nodes' data sets differ"),
        (None, 1, "1 of 2 nodes have no complete data set"),
    ],
)
def test_nodes_without_the_same_set_exit_with_1(
    second: Made | None, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [NodeEnd("n1", MADE, ""), NodeEnd("n2", second, "" if second else "no space")]
    there = nullcontext(SimpleNamespace(nodes=2))
    monkeypatch.setattr("raysuite.orchestrate.ray_cluster.connect", lambda _: there)
    monkeypatch.setattr("raysuite.orchestrate.synthetic_data.make_on_nodes", lambda *_: ends)
    asked = ("make", "mnist", "--address", "a:1")
    lines = done(*asked, code=code).stdout.splitlines()
    begins = ("n1  /set: ", "n2  /set: " if second else "n2  no space")
    assert [line.startswith(begin) for line, begin in zip(lines, begins, strict=True)] == [True] * 2
    made = done(*asked, "--json", code=code)
    nodes: list[dict[str, Any]] = json.loads(made.stdout)["nodes"]
    assert [(each["node"], each["error"], each.get("images")) for each in nodes] == [
        ("n1", "", 100),
        ("n2", "" if second else "no space", 100 if second else None),
    ]
    assert words in made.stderr


@pytest.mark.parametrize("form", ["folder", "tfrecord"])
def test_what_was_made_is_found_in_order(tmp_path: Path, form: str) -> None:
    words = ("--images", "20", "--size", "48x32", "--format", form, "--workers", "1")
    done("make", "imagenet", *words, "--out", tmp_path / "set")
    done("check", tmp_path / "set", "--name", "imagenet", "--format", form, "--workers", "1")


def test_another_set_in_the_way_exits_with_2() -> None:
    done("make", "mnist", "--images", "20", "--workers", "1")
    other = ("make", "mnist", "--images", "30", "--workers", "1")
    assert "give --force to replace it" in done(*other, code=2).stderr
    assert "30 training" in done(*other, "--force").stdout


@pytest.mark.parametrize(
    ("drawn", "rate", "words"),
    [
        (100, 20.0, "B; made in 5.0 s, 20 images/s"),
        (25, 5.0, "B; 75 of them were there already; made in 5.0 s, 5 images/s"),
        (0, None, "complete already, nothing was written"),
    ],
)
def test_a_rate_of_making_is_of_the_images_that_were_not_there(
    drawn: int, rate: float | None, words: str
) -> None:
    synthetic = plan_synthetic_set("mnist", "idx", images=86)
    made = Made("x", 100, 9, 4, drawn // 25, drawn, 5.0, "")
    assert _as_data(synthetic, made)["images_per_s"] == rate
    assert _summary(synthetic, made).endswith(words)


@pytest.mark.parametrize(
    ("written", "first"),
    [
        (3, "/t: 3 shards"),
        (1, "/t: 1 of 3 shards were written, the others were complete"),
        (0, "/t: nothing to do: all 3 shards are complete"),
    ],
)
def test_a_conversion_tells_what_it_wrote_and_what_it_left_out(
    written: int,
    first: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad: Any = (SimpleNamespace(path="a.jpg", reason="cut"), SimpleNamespace(path="b", reason="x"))
    conversion: Any = SimpleNamespace(
        target=Path("/t"),
        source=Path("/s"),
        synsets=False,
        classes=("a", "b"),
        shorter_side=None,
        passed_over=0,
    )
    summary = Summary(8, 4, 2, 1, 3, 2_500_000, written, bad)
    with monkeypatch.context() as patched:
        patched.setattr("raysuite.cli.data.MOST_SHOWN", 1)
        _print_conversion(conversion, summary)
    images = "8 training and 4 validation images of 2 classes, labels from 1, 2.5 MB"
    skipped = ["skipped, because they cannot be read: 2", "  a.jpg: cut"]
    more, spec = "  and 1 more, in /t/manifest.json", "in a spec: data: "
    block = '{name: tfrecord, path: "/t", classes: 2, image_size: 224}'
    lines = capsys.readouterr().out.splitlines()
    assert lines == [first, images, *skipped, more, f"{spec}{block}"]
    conversion.synsets, conversion.passed_over = True, 5
    _print_conversion(conversion, summary)
    *_, second, passed, last = capsys.readouterr().out.splitlines()
    assert second == "  b: x"
    assert passed.startswith("skipped, because they are not images: 5 files or folders;")
    assert last == f'{spec}{{name: imagenet, format: tfrecord, path: "/t"}}'


def test_notes_and_errors_are_counted_and_cut_each_by_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysuite.cli.data.MOST_SHOWN", 2)
    notes = [Finding(f"n{n}", -1, "file", "odd", note=True) for n in range(3)]
    wrong = [Finding(f"w{n}", n, "file", "bad") for n in range(2)]

    def printed(*findings: Finding) -> list[str]:
        _print_report(Report(Path("/set"), "", {}, findings))
        return capsys.readouterr().out.splitlines()

    more = "  and 1 more; --json shows them"
    cut = ["3 notes:", "  n0: odd", "  n1: odd", more]
    errors = ["2 wrong:", "  w0 at byte 0: bad", "  w1 at byte 1: bad"]
    assert printed(*wrong, *notes) == ["/set", *cut, *errors]
    assert printed(*notes[:1]) == ["/set", "1 note:", "  n0: odd", "no errors found"]


def test_a_size_is_of_a_square_or_width_and_height() -> None:
    assert [parse_size(each) for each in ("64", "500x375")] == [(64, 64), (500, 375)]


def test_the_sets_of_a_spec_are_a_list_also_if_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        f"name: x\nmodel: resnet20\ndata: {{name: mnist, root: {tmp_path}/m}}\n"
        "training: {epochs: 1, global_batch: 4}\n"
        "synthetic_data: {mnist: {images: 30, size: 14, seed: 5}}\n"
    )
    [made] = json.loads(done("make", file, "--dry-run", "--json").stdout)
    assert Path(made["path"]).parent == tmp_path / "m"
    assert (made["train"], made["seed"], made["content"]) == (30, 5, "natural")
    nothing = file.read_text().partition("synthetic_data")[0]
    file.write_text(nothing)
    assert json.loads(done("make", file, "--json").stdout) == []
    assert done("make", file).stdout == f"{file} has no `synthetic_data`; nothing was made\n"
