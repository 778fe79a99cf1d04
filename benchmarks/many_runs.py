"""What large suites cost: CPU seconds and peak memory of the commands that read every run.

    python benchmarks/many_runs.py [RUNS ...] [--only COMMAND ...]

One run is trained; the journals of the others are copies of its own with other losses and times,
each drawn from a normal distribution of 2 % around the trained one's. A fifth as many variants as
runs, five repeats each. Linear growth means that ten times the runs take ten times the seconds.

Written to benchmarks/results/many_runs.json and .md, each figure in the place of its last one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pairs import HERE, call, machine, write

from raysuite.measure.environment import environment
from raysuite.plan import make_plans
from raysuite.records import EpochFinished, Results, RunStarted
from raysuite.records.base import checked_line
from raysuite.spec import parse_document

FILE = HERE / "results" / "many_runs.json"
REPEATS = 5
SPEC = """
name: many
model: resnet20
data: {{name: digits, image_size: 16}}
training: {{epochs: 3, global_batch: 64, checkpoint_every: 0}}
resources: {{workers: 1, device: cpu}}
repeats: {repeats}
matrix: {{optimizer.lr: [{rates}]}}
"""
COMMANDS = {
    "plan": ("plan", "{spec}", "--json"),
    "report": ("report", "{results}"),
    "watch": ("watch", "{results}", "--once"),
    "history": ("report", "{root}", "--history"),
    "resume": ("run", "--resume-from", "{results}", "--no-mlflow", "--quiet"),
    "sync": ("sync", "{results}"),
    "sync again": ("sync", "{results}"),
}


def spec_of(runs: int, repeats: int = REPEATS) -> str:
    """A spec with `runs` runs."""
    rates = ", ".join(f"{0.01 + 1e-6 * each:.6f}" for each in range(runs // repeats))
    return SPEC.format(repeats=repeats, rates=rates)


def trained(folder: Path) -> Results:
    """Train one run, whose journal is the pattern of all others; return its results."""
    (folder / "one.yaml").write_text(spec_of(1, 1))
    call("-m", "raysuite.train", "one.yaml", folder=folder)
    return Results.open(folder / "results" / "many")


def copied(pattern: Results, runs: int, root: Path) -> Results:
    """Results of `runs` runs, whose journals are varied copies of that of `pattern`'s only run."""
    chance = random.Random(0)
    results = Results.create(root)
    document = parse_document(spec_of(runs), "many.yaml")
    plans = [each.model_dump(mode="json") for each in make_plans(document)]
    results.write_plans(plans)
    for name in ("results.id", "spec.yaml"):
        if (pattern.folder / name).exists():
            shutil.copy(pattern.folder / name, results.folder)
    records = pattern.records(pattern.plans()[0]["run_id"])
    began = records[0].time
    for index, plan in enumerate(plans):
        factor = chance.gauss(1, 0.02)
        lines = []
        for record in records:
            changed: dict[str, Any] = {"run_id": plan["run_id"]}
            changed["time"] = record.time + index * 0.1 + (record.time - began) * (factor - 1)
            if isinstance(record, RunStarted):
                changed["plan"] = plan
            if isinstance(record, EpochFinished):
                for key in ("seconds", "steady_seconds", "train_loss", "val_loss"):
                    if (value := getattr(record, key, None)) is not None:
                        changed[key] = value * factor
            lines.append(checked_line(record.model_copy(update=changed)) + b"\n")
        file = results.journal_file(plan["run_id"])
        file.parent.mkdir(parents=True)
        file.write_bytes(b"".join(lines))  # at once: record by record, each is flushed
    return results


def measured(command: tuple[str, ...], folder: Path) -> dict[str, float]:
    """CPU seconds and peak memory in MiB of a command with its children."""
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "raysuite", *command],
        os.environ,
        file_actions=[
            (
                os.POSIX_SPAWN_OPEN,
                1,
                str(folder / "out.txt"),
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
                0o600,
            ),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    _, status, used = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} failed:\n{(folder / 'out.txt').read_text()[-3000:]}")
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}


def of_size(
    pattern: Results, runs: int, folder: Path, asked: Collection[str]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Measure each command in `asked` on results of `runs` runs; yield its name and figures."""
    spec = folder / "many.yaml"
    spec.write_text(spec_of(runs))
    results = copied(pattern, runs, folder / "results" / "many")
    words = {"spec": spec, "results": results.folder, "root": folder / "results"}
    for name in asked:
        found = measured(tuple(word.format(**words) for word in COMMANDS[name]), folder)
        print(f"{runs} runs, {name}: {found['cpu_s']:.1f} CPU s, {found['peak_mib']:.0f} MiB")
        yield name, found


def page(kept: dict[str, Any]) -> str:
    sizes = sorted(kept["sizes"], key=int)
    head = ["command", *(f"{int(each):,} runs" for each in sizes)]
    lines = ["# What large suites cost", "", "CPU seconds (peak memory), n = 1 each.", ""]
    lines += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name in COMMANDS:
        cells = [kept["sizes"][each].get(name) for each in sizes]
        shown = [f"{c['cpu_s']:.1f} ({c['peak_mib']:.0f} MiB)" if c else "" for c in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", kept["machine"], ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=int, default=[100, 1000, 10000])
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    asked = parser.parse_args()
    kept: dict[str, Any] = {"sizes": {}}
    if FILE.exists():
        kept = json.loads(FILE.read_text())
    kept["machine"] = machine(environment(), "raysuite", "mlflow", "numpy")
    with tempfile.TemporaryDirectory() as scratch:
        pattern = trained(Path(scratch))
        for runs in asked.runs:
            folder = Path(scratch) / str(runs)
            folder.mkdir()
            own = kept["sizes"].setdefault(str(runs), {})
            for name, found in of_size(pattern, runs, folder, asked.only):
                own[name] = found
                write(FILE.stem, kept, page(kept))


if __name__ == "__main__":
    main()
