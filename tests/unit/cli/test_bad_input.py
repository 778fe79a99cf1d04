"""Bad input of every verb: exit code 2, a message that names it, no traceback, nothing written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from tests.fake_results import write_results

ROOT = Path(__file__).parents[3]
GIVEN = {
    **{
        f"{verb} {words}": said.replace("VERB", verb)
        for verb in ("run", "sweep")
        for words, said in {
            "": "--resume-from RESULTS",
            "--dry-run": "no SPEC was given",
            "x.yaml --resume-from results --dry-run": "leave SPEC and KEY=VALUE out",
            "x.yaml --resume-from results": "leave SPEC and KEY=VALUE out",
            "--resume --resume-from results": "one of them",
            "x.yaml repeats=2 --resume": "leave KEY=VALUE out",
            "x.yaml --retry-failed": "--retry-failed needs --resume or --resume-from",
            "--resume-from nowhere": "nowhere is not there",
            "x.yaml --address http://10.0.0.1:8265": "-- raysuite VERB",
        }.items()
    },
    "run x.yaml --resume --budget 5m": "--budget is only for new runs",
    **dict.fromkeys(
        (f"run x.yaml --budget {text}" for text in ("0s", "0.0h", "5", "5 m", "-5m", "5m5")),
        "valid: a time such as 90s, 5m or 1h",
    ),
    "sweep x.yaml --resume --dry-run": "leave --dry-run out, or leave out --resume",
    "sweep --resume-from results --dry-run": "leave --dry-run out, or leave out --resume",
    "scale": "no SCRIPT was given",
    "scale --resume-from results -- file": "leave SCRIPT out",
    "scale --workers 1,0 -- file": "--workers: got '1,0'; valid: whole numbers from 1 on",
    "sweep x.yaml search.trials=9 training.epochs=9 --resume": "leave KEY=VALUE out",
    "sweep x.yaml training.epochs=9 search.trials=9 --resume": "leave KEY=VALUE out",
    "plan": "Missing argument",
    "plan none.yaml": "none.yaml: cannot be",
    "plann": "No such command",
    "report results --out file": "is a file; give a folder",
    "report results --out file/below": "is a file; give a folder elsewhere",
    "report results --explain --out new --no-pictures": "leave --no-pictures, --out out",
    "report results --calibration c.yaml": "--explain",
    "report results --history --calibration c.yaml": "--explain only",
    "report results --history --baseline ddp --against x": "leave --baseline, --against out",
    "report results --explain --baseline ddp --against x": "leave --baseline, --against out",
    "report results --explain --history": "--explain writes no report; leave --history out",
    "report results --history --no-pictures": "leave --no-pictures out",
    "report results folder": "got 2 results folders",
    "report nowhere --history": "no results below nowhere",
    "calibrate results --out folder": "is a folder; give a file",
    "evaluate results --out file/below": "is a file; give a file elsewhere",
    "predict EXPERIMENTS/quickstart.yaml --calibration EXPERIMENTS/quickstart.yaml": (
        "machine: Field required"
    ),
    "watch folder": "is not a results folder",
    "models resnt18": "did you mean resnet18",
    "models a:b:c": "'a:b:c'",
    "models no_such_module:Net": "no module named 'no_such_module'",
    "models alexnet --size 32": "63 pixels or more",
    "models vgg11 --size 8 --stem large": "8 pixels to nothing",
    "models resnet18 --stem tall": "--stem: got 'tall'",
    "models tests.tiny_model:Tiny --size 16": "images of 3 x 16 x 16",
    "models resnet18 --size 0": "--size",
    "bench loaders digitz": "did you mean 'digits'",
    "bench loaders image_folder": "image_folder needs `path`",
    "bench loaders digits --format idx": "read as 'idx'",
    "bench loaders digits --augment mixup": "data.augment: got 'mixup'",
    "bench loaders digits --threads 0": "--threads: got '0'",
    "bench loaders digits --processes two": "--processes: got 'two'",
    "bench loaders digits --loader nativ": "called 'nativ'",
    "bench loaders digits --loader '{name: native'": "is not YAML",
    "bench loaders digits --loader '{name: dali, thread: 1}'": "thread: unknown key",
    "bench loaders no.yaml": "no.yaml: cannot be read",
    "bench loaders digits --out /proc/nowhere": "be written to",
    "bench loaders mnist --path /nowhere": "/nowhere",
    "bench batch EXPERIMENTS/quickstart.yaml training.global_batch=auto": "accumulate: auto",
    **dict.fromkeys(
        (
            "bench loaders script.yaml",
            "bench batch script.yaml",
            "simulate script.yaml --per-second 9",
            "recommend script.yaml",
            "predict script.yaml",
            "data check script.yaml",
        ),
        "script.yaml:2: script: a training script was given",
    ),
    "verify --strategy dpd": "'ddp'",
    "verify --strategy '{name: ddp, buckets: 1}'": "unknown key",
    "verify --strategy '{name: ddp'": "not valid YAML",
    "verify --strategy single": "one process",
    "verify --data digits": "--model",
    "verify --model reznet50": "did you mean",
    "verify --precision fp8": "fp32, bf16, fp16",
    "verify --clip-norm -1": "greater than 0",
    "verify --strategy '{name: deepspeed, zero_stage: 0, offload: optimizer}'": "zero_stage 1",
    **{
        f"{verb} {words} --address http://10.0.0.1:8265": f"job submit -- raysuite {verb} ..."
        for verb, words in {
            "scale": "",
            "bench batch": "x.yaml",
            "data make": "mnist",
            "cluster check": "",
        }.items()
    },
    "cluster up --nodes 2": "this machine",
    "cluster up --name ../x": "cannot be called",
    "cluster up --site nowhere": "'nowhere'",
    "cluster status --env": "no cluster",
    "cluster status --all --env": "leave --env out",
    "cluster status mine --all": "leave 'mine' out",
    "cluster down mine": "called 'mine'",
    "cluster down mine --all": "one of them",
    "cluster site show no-such": "'no-such'",
    "cluster site new --yes m/y": "name: got 'm/y'",
    "cluster site new --yes a --partition 'a\nb'": "command line: partition: got 'a\\nb'",
    "cluster site new --yes a --set tyme=3": "did you mean 'time'?",
    "cluster site new --yes a --set nodes=x": "nodes: got 'x'",
    "cluster site new --yes a --set nodes": "'nodes' is not key=value",
    "cluster site new --yes a --from nowhere": "valid: alps-clariden",
    "cluster site new --yes a --set kind=cloud": "valid: local, slurm, hosts",
    "image build r.sif --extras mpi": "extra 'mpi'; valid",
    "image build there.sif --mirror http://m.example/debian": "replace it with --force",
    "image build r.sif --mirror http://m.example/debian --sign none.pem": "no key none.pem",
    "image build file --dockerfile": "is a file; give a folder",
    "image build new --dockerfile --force --sign k": "leave --sign, --force out",
    "image verify none.sif": "build one",
    "data check nowhere": "give a folder",
    "data check nowhere.yaml": "nowhere.yaml",
    "data check . --name minst": "'mnist'",
    "data check . --name mnist --format binary": "'binary'",
    "data check nowhere --name mnist": "no folder",
    "data check tests.odd_sets:Odd --format idx": "is your own data set",
    "data convert nowhere x": "no folder",
    "data make minst": "'minst'",
    "data make mnist --size big": "such as 64, or 500x375",
    "data make mnist --format tfrecords": "folder or tfrecord",
    "data make mnist --address auto": "may",
    "data make mnist --scale laptop": "'mnist' is not one",
    **dict.fromkeys(
        (
            f"data make EXPERIMENTS/ddlbench.yaml --dry-run --{option}"
            for option in (
                *("images 9", "format idx", "fraction 0.1", "classes 9", "size 8", "out new"),
                *("content natural", "seed 0"),
            )
        ),
        "the options of its data sets",
    ),
    "data make EXPERIMENTS/ddlbench.yaml --scale huge": "valid: laptop",
}
"""A line, and words of its message. In the working folder are results, a file, a folder and
the spec of a training script."""


@pytest.mark.parametrize(("line", "said"), GIVEN.items(), ids=GIVEN)
def test_bad_input_exits_with_2_names_it_and_writes_nothing(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAYSUITE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "CACHE", "DATA"):
        monkeypatch.setenv(f"RAYSUITE_{name}", str(tmp_path / name))
    for program in ("apptainer", "debootstrap"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / program).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("file", "there.sif"):
        Path(name).touch()
    Path("folder").mkdir()
    Path("script.yaml").write_text("name: own\nscript: {command: file}\n")
    words = shlex.split(line.replace("EXPERIMENTS", str(ROOT / "experiments")))
    if "results" in words:
        write_results(Path("results"))
    before = {*tmp_path.rglob("*")}
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if words[0] in ("run", "sweep", "image"):
        assert done.stderr.count("\n") == 1
    assert {*tmp_path.rglob("*")} == before
