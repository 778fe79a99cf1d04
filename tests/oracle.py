"""The figures of a report computed independently: plain JSON, pandas and scipy, not `records`.

docs/explanation/method.md defines every figure; this file and `raysuite.records` implement it
separately, so that an error in one shows as a difference from the other.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

from raysuite.records import Results
from raysuite.report import Report, collect
from raysuite.report.build import contents

LEVEL = 0.95
RUN_COLUMNS = (
    "throughput_images_per_s",
    "epoch_s",
    "final_accuracy",
    "time_to_accuracy_s",
    "peak_process_bytes",
    "peak_device_bytes",
    "status",
    "gate",
)
MEANS = (
    "throughput_images_per_s",
    "epoch_s",
    "data_wait_share",
    "final_accuracy",
    "best_accuracy",
    "time_to_accuracy_s",
    "peak_process_bytes",
    "mean_process_bytes",
    "grown_process_bytes",
    "peak_device_bytes",
    "mean_device_bytes",
    "skipped_samples",
)
Values = dict[str, Any]
Difference = tuple[str, str, Any, Any]
"""Row, column, the report's value, the oracle's value."""


@dataclass
class Recount:
    """Figures of runs and rows, in the order of rows.json."""

    runs: list[Values] = field(default_factory=list)
    rows: list[Values] = field(default_factory=list)


def differences(results: Results, report: Report | None = None) -> list[Difference]:
    """Every figure of rows.json and rows.csv that differs from the oracle's by more than 1e-9.

    `report` is the report of `results`, by default the one without options.
    """
    report = report or collect(results)
    files = contents(report)
    written = json.loads(files["rows.json"])
    names = [row["name"] for row in written["rows"]]
    bases = [names.index(b) if (b := row["baseline"]) in names else None for row in written["rows"]]
    found = recount(results.folder, bases if "baseline" in report.options else None)
    lines = list(csv.DictReader(io.StringIO(files["rows.csv"])))
    wanted_runs = [{column: run[column] for column in RUN_COLUMNS} for run in found.runs]
    return [
        *_differing("rows.json runs", written["runs"], wanted_runs),
        *_differing("rows.json rows", written["rows"], found.rows),
        *_differing("rows.csv", lines, found.rows),
    ]


def _differing(
    place: str, written: Sequence[Values], wanted: Sequence[Values]
) -> Iterator[Difference]:
    compared = 0
    for row, (line, again) in enumerate(zip(written, wanted, strict=True)):
        for column, value in again.items():
            if place == "rows.csv":
                if (key := column.replace(".", "_")) not in line:
                    continue  # the list of the repeats' values
                said, expected = _number(line[key]), _number("" if value is None else str(value))
            else:
                said, expected = _at(line, column), value
            compared += 1
            if not _equal(said, expected):
                yield f"{place}[{row}]", column, said, expected
    assert compared or not wanted, f"nothing of {place} was compared"


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


def _number(cell: str) -> float | str | None:
    try:
        return float(cell)
    except ValueError:
        return cell or None


def _equal(written: Any, wanted: Any) -> bool:
    """Whether two values agree; infinities and NaN are null in JSON."""
    if isinstance(written, list) and isinstance(wanted, list):
        return len(written) == len(wanted) and all(map(_equal, written, wanted))
    if isinstance(wanted, float) and not math.isfinite(wanted) and written is None:
        return True
    if isinstance(written, bool) or isinstance(wanted, bool):
        return written is wanted
    if isinstance(written, int | float) and isinstance(wanted, int | float):
        return math.isclose(written, wanted, rel_tol=1e-9, abs_tol=1e-15)
    return bool(written == wanted)


def recount(folder: Path, baselines: Sequence[int | None] | None = None) -> Recount:
    """All figures of a results folder.

    `baselines` holds for each row the index of its baseline; without it, that is the row of equal
    options, but for the number of workers and a batch found by trial in all runs of a row, that
    has the fewest.
    """
    found = Recount()
    by_trial: list[str | None] = []
    plans = json.loads((folder / "plan.json").read_text("utf-8"))
    for added in folder.glob("plan-*.jsonl"):
        plans += map(json.loads, added.read_text("utf-8").splitlines())
    for plan in plans:
        file = folder / "runs" / plan["run_id"] / "journal.jsonl"
        lines = _lines(file)
        found.runs.append(_run(plan, lines))
        by_trial.append(next((r["key"] for r in lines if r["kind"] == "batch_found"), None))
    groups: dict[str, list[int]] = {}
    for number, plan in enumerate(plans):
        groups.setdefault(_variant(plan), []).append(number)
    samples = []
    for numbers in groups.values():
        row, kept = _row([plans[n] for n in numbers], [found.runs[n] for n in numbers])
        found.rows.append(row)
        samples.append(kept)
    firsts = [plans[numbers[0]] for numbers in groups.values()]
    ways = [{by_trial[n] for n in numbers} for numbers in groups.values()]
    keys = [way.pop() if len(way) == 1 else None for way in ways]
    works = [(_work(plan), plan["workers"]) for plan in firsts]
    repeated = [len(each) > 1 for each in samples]
    groups_of = {
        work: [n for n, each in enumerate(works) if each == work and repeated[n]] for work in works
    }
    several = sum(len(group) > 1 for group in groups_of.values())
    sides = {n: b for n, b in enumerate(baselines or _baselines(firsts, keys)) if b is not None}
    apart = sum(works[n] != works[b] and repeated[n] and repeated[b] for n, b in sides.items())
    for number, base in sides.items():
        group = groups_of[works[number]]
        if works[number] == works[base] and {number, base} <= {*group}:
            own = [samples[n] for n in group]
            level = 1 - (1 - LEVEL) / max(1, several)
            reach = _reach_of_pair(own, group.index(number), group.index(base), level)
        else:
            reach = _reach(samples[number], samples[base], 1 - (1 - LEVEL) / max(1, apart))
        part = firsts[base]["workers"] / firsts[number]["workers"]
        scales = number == base or part != 1
        row = _scaling(samples[number], samples[base], reach, part, scales)
        low = row["efficiency.low"]
        found.rows[number] |= row | {"efficiency_above_one": low is not None and low > 1}
    return found


def _lines(file: Path) -> list[Values]:
    lines: list[Values] = []
    if not file.is_file():
        return lines
    for line in file.read_text("utf-8", errors="replace").split("\n"):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
            lines.append({**read, "kind": read["kind"]})
        except (ValueError, TypeError, KeyError):
            continue  # cut off by a crash
    return lines


def _work(plan: Values) -> str:
    """The network and the images, in whatever format they are stored."""
    data = {key: value for key, value in plan["spec"]["data"].items() if key != "format"}
    return json.dumps([plan["spec"]["model"], data], sort_keys=True)


def _variant(plan: Values) -> str:
    spec = {key: value for key, value in plan["spec"].items() if key != "seed"}
    return json.dumps({"spec": spec, "device": plan["device"]}, sort_keys=True)


def _baselines(plans: Sequence[Values], found: Sequence[str | None]) -> list[int]:
    frame = pd.DataFrame(
        {
            "series": [_series(plan, key) for plan, key in zip(plans, found, strict=True)],
            "workers": [plan["workers"] for plan in plans],
        }
    )
    return [int(i) for i in frame.groupby("series")["workers"].transform("idxmin")]


def _series(plan: Values, found: str | None) -> str:
    """All options but the number of workers, and what was found by trial for it."""
    spec = {
        f"{block}.{key}": value
        for block, options in plan["spec"].items()
        if block != "seed"
        for key, value in (options.items() if isinstance(options, dict) else [("", options)])
    }
    asked = {}
    if found is not None:
        spec.pop(found)
        asked = {k: v for k, v in plan["label"].items() if k not in ("resources.workers", "seed")}
    spec.pop("resources.workers")
    return json.dumps([spec, asked], sort_keys=True)


def _run(plan: Values, lines: Sequence[Values]) -> Values:
    starts = [n for n, line in enumerate(lines) if line["kind"] == "run_started"]
    last = starts[-1] if starts else -1
    ends = [r for r in lines[last + 1 :] if r["kind"] in _ENDS]
    verdicts = [line for line in lines if line["kind"] == "gate_verdict"]
    epochs = _epochs(lines, starts)
    end = ends[-1] if ends else None
    finished = end if end is not None and end["kind"] == "run_finished" else None
    gate = _gate(plan, verdicts, end)
    run: Values = {
        "status": "missing" if end is None else _ENDS[end["kind"]],
        "gate": gate,
        "final_accuracy": None,
        "best_accuracy": None,
        "skipped_samples": _skipped(lines[last + 1 :]),
        "val_images": plan["dataset"]["val_samples"] - (_skipped(lines[last + 1 :], "val") or 0),
        "diverged": end is not None and end.get("reason") == "diverged",
        "round": (plan["repeat"], plan["seed"]),
        "began": lines[starts[-1]]["time"] if starts else None,
        **_memory(finished),
    }
    if len(epochs) and not run["diverged"]:
        run["final_accuracy"] = float(epochs["val_accuracy"].iloc[-1])
        run["best_accuracy"] = float(epochs["val_accuracy"].max())
    told = gate in ("passed", "not needed") and len(epochs) > 0
    run |= _speeds(plan, epochs) if told else dict.fromkeys(_SPEEDS)
    return run | ({"time_to_accuracy_s": None} if run["diverged"] else {})


_ENDS = {
    "run_finished": "finished",
    "run_failed": "failed",
    "run_pruned": "pruned",
    "run_stopped": "stopped",
}
_SPEEDS = ("throughput_images_per_s", "epoch_s", "data_wait_share", "time_to_accuracy_s")


def _epochs(lines: Sequence[Values], starts: Sequence[int]) -> pd.DataFrame:
    """The epochs that count: not repeated later, not set aside by a later start."""
    frame = pd.DataFrame(
        [{"at": n, **line} for n, line in enumerate(lines) if line["kind"] == "epoch_finished"]
    )
    if frame.empty:
        return frame
    frame = frame.drop_duplicates("epoch", keep="last")
    for start in starts:
        first = lines[start].get("first_epoch", 0)
        frame = frame[~((frame["at"] < start) & (frame["epoch"] >= first))]
    return frame


def _gate(plan: Values, verdicts: Sequence[Values], end: Values | None) -> str:
    if end is not None and end.get("reason") == "gate":
        return "failed"
    if verdicts:
        return "passed" if verdicts[-1]["passed"] else "failed"
    return "not needed" if plan["spec"]["strategy"]["name"] == "single" else "not checked"


def _speeds(plan: Values, epochs: pd.DataFrame) -> Values:
    seconds = float(epochs["steady_seconds"].sum())
    whole = epochs["steady_images"] == epochs["images"]
    if "attempts" in epochs:
        whole &= epochs["attempts"] == 1
    steady = epochs[whole]
    steady = epochs if steady.empty else steady
    waited = float(steady["data_wait_seconds"].map(np.mean).sum())
    target = plan["spec"]["training"].get("target_accuracy")
    met = epochs[epochs["val_accuracy"] >= target] if target is not None else epochs[:0]
    return {
        "throughput_images_per_s": epochs["steady_images"].sum() / seconds if seconds > 0 else None,
        "epoch_s": float(steady["seconds"].mean()),
        "data_wait_share": waited / float(steady["seconds"].sum()),
        "time_to_accuracy_s": None if met.empty else float(met["elapsed_seconds"].iloc[0]),
    }


def _skipped(lines: Sequence[Values], split: str = "") -> int | None:
    found = [line for line in lines if line["kind"] == "samples_skipped"]
    counts = [line["skipped"] for line in found if split in ("", line["split"])]
    return sum(counts) if counts else None


def _memory(finished: Values | None) -> Values:
    names = ("peak_process", "mean_process", "grown_process", "peak_device", "mean_device")
    memory: Values = dict.fromkeys(f"{name}_bytes" for name in names)
    if finished is None:
        return memory
    process, start, device = (
        np.array(finished[f"{kind}_bytes"], dtype=float)
        for kind in ("peak_process", "start_process", "peak_device")
    )
    if process.size:
        memory["peak_process_bytes"] = float(process.max())
        memory["mean_process_bytes"] = float(process.mean())
    if process.size and process.size == start.size:
        memory["grown_process_bytes"] = float((process - start).max())
    if device.size and device.max() > 0:
        memory["peak_device_bytes"] = float(device.max())
        memory["mean_device_bytes"] = float(device.mean())
    return memory


def _row(plans: Sequence[Values], runs: Sequence[Values]) -> tuple[Values, pd.DataFrame]:
    caught = any(run["gate"] == "failed" for run in runs)
    timed = [
        run
        for run in runs
        if not caught
        and (run["status"] == "finished" or run["diverged"])
        and run["gate"] in ("passed", "not needed")
    ]
    counted = [run for run in timed if not run["diverged"]]
    diverged = len(counted) < len(timed)
    met = sum(run["time_to_accuracy_s"] is not None for run in counted)
    row: Values = {
        "workers": plans[0]["workers"],
        "global_batch": plans[0]["global_batch"],
        "device": plans[0]["device"],
        "runs": len(runs),
        "runs_counted": len(counted),
        "target_met": met,
        "diverged": diverged,
    }
    for name in MEANS:
        known = [run[name] for run in timed if run[name] is not None]
        of_the_lucky = name == "time_to_accuracy_s" and met < len(counted)
        if of_the_lucky or (diverged and "accuracy" in name):
            known = []
        images = min(run["val_images"] for run in counted or runs)
        row |= {f"{name}.{part}": value for part, value in _mean(name, known, images).items()}
    speeds = [
        (run["round"], run["began"], run["throughput_images_per_s"])
        for run in timed
        if run["throughput_images_per_s"] is not None
    ]
    return row, pd.DataFrame(speeds, columns=["round", "began", "speed"])


def _mean(name: str, values: Sequence[float], images: int) -> Values:
    if not values:
        return {"mean": None, "low": None, "high": None, "n": 0, "values": []}
    mean, ends = float(np.mean(values)), (None, None)
    half = None
    if len(values) > 1:
        half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * stats.sem(values))
    if name in ("final_accuracy", "best_accuracy"):
        ends = _of_accuracy(mean, half or 0.0, images)
    elif half is not None and name == "data_wait_share" and 0 < mean < 1:
        middle, reach = special.logit(mean), half / (mean * (1 - mean))
        ends = (special.expit(middle - reach), special.expit(middle + reach))
    elif half is not None and mean > 0 and name != "data_wait_share":
        with np.errstate(over="ignore"):
            ends = (mean * np.exp(-half / mean), mean * np.exp(half / mean))
    elif half is not None:
        ends = (mean - half, mean + half)
    low, high = (None if end is None else float(end) for end in ends)
    return {"mean": mean, "low": low, "high": high, "n": len(values), "values": list(values)}


def _of_accuracy(mean: float, half: float, images: int) -> tuple[float, float]:
    """Wilson's interval of a share of `images`, and the spread over seeds, in squares."""
    z = stats.norm.isf((1 - LEVEL) / 2)
    root = np.sqrt(z * z / images * (mean * (1 - mean) + z * z / images / 4))
    low, high = ((mean + z * z / images / 2 + s * root) / (1 + z * z / images) for s in (-1, 1))
    return (
        max(0.0, mean - np.hypot(mean - max(low, 0.0), half)),
        min(1.0, mean + np.hypot(min(high, 1.0) - mean, half)),
    )


def _by_round(sides: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """[rounds, sides] of throughputs over their side's mean; None unless there are five rounds or
    more, all complete and in turn."""
    shares = [side.assign(share=side["speed"] / side["speed"].mean()) for side in sides]
    runs = pd.concat(shares, keys=range(len(sides)), names=["side", "run"])
    whole = runs.pivot_table(values="share", index="round", columns="side")
    if len(whole) < 5 or len(runs) != whole.size or whole.isna().any(axis=None):
        return None
    times = runs.groupby("round")["began"].agg(["min", "max"]).sort_values("min")
    in_turn = (times["max"].to_numpy()[:-1] < times["min"].to_numpy()[1:]).all()
    return whole if in_turn else None


def _reach(ours: pd.DataFrame, base: pd.DataFrame, level: float) -> float | None:
    """How far the interval of log(ours / base) reaches; None where either side has one run."""
    if min(len(ours), len(base)) < 2 or ours is base:
        return None
    if (paired := _by_round([ours, base])) is not None:
        apart = paired[0] - paired[1]
        return float(stats.t.isf((1 - level) / 2, len(apart) - 1) * stats.sem(apart))
    u, v = (stats.sem(side["speed"]) ** 2 / side["speed"].mean() ** 2 for side in (ours, base))
    if u + v == 0:
        return 0.0
    freedom = (u + v) ** 2 / (u**2 / (len(ours) - 1) + v**2 / (len(base) - 1))
    return float(stats.t.isf((1 - level) / 2, freedom) * np.sqrt(u + v))


def _reach_of_pair(group: Sequence[pd.DataFrame], one: int, two: int, level: float) -> float | None:
    """The same of two of a group, all pairs of which hold together at the level."""
    sides = len(group)
    if sides == 2 or one == two:
        return _reach(group[one], group[two], level)
    if (whole := _by_round(group)) is not None:
        freedom = (sides - 1) * (len(whole) - 1)
        about = whole.sub(whole.mean(axis=1), axis=0)
        own = stats.sem(whole[one] - whole[two]) ** 2
        parts = 2 / len(whole)
    else:
        shares = [side["speed"] / side["speed"].mean() for side in group]
        freedom = sum(map(len, shares)) - sides
        about = pd.concat([share - 1 for share in shares])
        own = sum(stats.sem(shares[each]) ** 2 for each in (one, two))
        parts = 1 / len(shares[one]) + 1 / len(shares[two])
    pooled = np.square(about - about.mean()).to_numpy().sum() / freedom
    pairs = sides * (sides - 1) / 2
    return float(stats.t.isf((1 - level) / 2 / pairs, freedom) * max(own, pooled * parts) ** 0.5)


def _scaling(
    ours: pd.DataFrame, base: pd.DataFrame, reach: float | None, part: float, scales: bool
) -> Values:
    """Speed-up and efficiency, whose interval reaches so far on the logarithm."""
    ends: dict[str, float | None] = dict.fromkeys(("value", "low", "high"))
    means = [side["speed"].mean() for side in (ours, base) if len(side)]
    if len(means) == 2 and min(means) > 0:
        ends["value"] = float(means[0] / means[1])
        if ours is base:
            ends |= {"low": 1.0, "high": 1.0}
        elif reach is not None:
            with np.errstate(over="ignore"):  # two wild repeats tell nothing: infinity
                ends["low"], ends["high"] = (
                    float(ends["value"] * np.exp(side)) for side in (-reach, reach)
                )
    scaled = {
        name: end * part if scales and end is not None else None for name, end in ends.items()
    }
    return {
        **{f"speed_up.{name}": value for name, value in ends.items()},
        **{f"efficiency.{name}": value for name, value in scaled.items()},
    }
