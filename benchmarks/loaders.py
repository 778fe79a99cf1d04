"""How fast ImageNet's images are loaded: raysuite's loaders beside a plain ImageFolder, and both
beside bare decoding.

    make bench            (or: python benchmarks/loaders.py [--quick] [--repeats N] [--data FOLDER])

224-pixel random-resized crops from 500 x 375 JPEGs of about 100 KB, made by `raysuite data make`.
All subjects are timed in turn, in several rounds, and compared by their ratio in each round.
Writes benchmarks/results/loaders.json and .md; exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from loader_memory import prepared_at
from loader_report import markdown
from loader_rounds import LoaderSubject, Rate, Subject, rounds
from loader_steps import steps
from plain_imagefolder import PlainImageFolder

from raysuite.data import Prepared, cache_dir
from raysuite.measure.environment import environment
from raysuite.orchestrate.loader_timings import decoding_limit, reading_limit
from raysuite.records.statistics import Stat, summarize
from raysuite.spec.loaders import (
    DaliOptions,
    LoaderOptions,
    MemoryOptions,
    NativeOptions,
    RayDataOptions,
    SyntheticOptions,
)

HERE = Path(__file__).parent
BATCH = 64
WIDTH = 2
"""Number of threads, processes or tasks of every subject."""
LIMIT, READING, PLAIN = "bare decoding", "reading alone", "plain ImageFolder + DataLoader"
GOAL_OF_LIMIT, GOAL_OVER_PLAIN = 1.0, 1.3
LOADERS: dict[str, LoaderOptions] = {
    "native threads": NativeOptions(threads=WIDTH),
    "native threads, uint8": NativeOptions(threads=WIDTH, transport="uint8"),
    "native threads, scaled": NativeOptions(threads=WIDTH, decode="scaled"),
    "native processes": NativeOptions(processes=WIDTH),
    "native processes, float32": NativeOptions(processes=WIDTH, transport="float32"),
    "dali": DaliOptions(threads=WIDTH),
    "memory": MemoryOptions(threads=WIDTH),
    "synthetic": SyntheticOptions(),
}
WITH_RAY: dict[str, LoaderOptions] = {"ray_data": RayDataOptions(tasks=WIDTH)}
DECODE_ALIKE = ("native threads", "native threads, uint8", "native processes", "dali", "ray_data")
"""Loaders that may be named as the best: all decode each image, to equal pixels up to rounding."""
IN_MEMORY = ("native threads", "native processes", "dali")


def main(arguments: argparse.Namespace) -> int:
    """Measure, print and write; return 1 if a goal is missed."""
    torch.set_num_threads(1)
    few, many = (400, 400) if arguments.quick else (2_000, 20_000)
    prepared = prepared_at(_made(arguments.data, few))
    images = arguments.images or (256 if arguments.quick else 1_600)
    subjects, left_out = _subjects(prepared, images)
    groups = {"loaders": _measured(subjects, arguments.repeats, images)}
    ray_rates, ray_left_out = _with_ray(prepared, arguments.repeats, images)
    groups |= {"with Ray": ray_rates} if ray_rates else {}
    part = min(images, 512)
    ways = steps(prepared, part, BATCH)
    result = {
        "images_of_a_timing": images,
        "batch": BATCH,
        "width": WIDTH,
        "mean_jpeg_bytes": _mean_bytes(prepared),
        "groups": {name: _compared(rates) for name, rates in groups.items()},
        "left_out": left_out | ray_left_out,
        "steps": _steps(_measured(ways, arguments.repeats, part)),
        "memory": _memory(_made(arguments.data, many)),
        "environment": environment(),
    }
    result["verdict"] = _verdict(result["groups"])
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "loaders.json").write_text(json.dumps(result, indent=1) + "\n")
    text = markdown(result)
    (HERE / "results" / "loaders.md").write_text(text)
    print(text)
    return 0 if all(each["reached"] for each in result["verdict"].values()) else 1


def _made(folder: Path, images: int) -> Path:
    """The folder of a synthetic ImageNet with `images` training images; it is made once."""
    out = folder / f"imagenet-{images}"
    words = ["data", "make", "imagenet", "--images", str(images), "--size", "500x375"]
    subprocess.run(
        [sys.executable, "-m", "raysuite", *words, "--out", str(out)], check=True, stdout=sys.stderr
    )
    return out


def _mean_bytes(prepared: Prepared) -> float:
    sizes = [path.stat().st_size for path in (prepared.files / "train").rglob("*.JPEG")]
    return sum(sizes) / len(sizes)


def _subjects(prepared: Prepared, images: int) -> tuple[dict[str, Subject], dict[str, str]]:
    """The subjects that are timed without Ray, and the reasons why loaders are left out."""
    found: dict[str, Subject] = {
        LIMIT: decoding_limit(prepared, WIDTH, images, "train"),
        READING: reading_limit(prepared, WIDTH, "train"),
        PLAIN: PlainImageFolder(prepared.files, WIDTH, BATCH),
    }
    more, left_out = _loaders(prepared, LOADERS)
    return found | more, left_out


def _loaders(
    prepared: Prepared, options: Mapping[str, LoaderOptions]
) -> tuple[dict[str, Subject], dict[str, str]]:
    found: dict[str, Subject] = {}
    left_out: dict[str, str] = {}
    for name, each in options.items():
        try:
            found[name] = LoaderSubject(prepared, each, BATCH, torch.device("cpu"))
        except Exception as error:  # a missing part, or too little memory: continue without it
            left_out[name] = str(error)
    return found, left_out


def _with_ray(
    prepared: Prepared, repeats: int, images: int
) -> tuple[dict[str, list[Rate]], dict[str, str]]:
    """Time Ray Data, and the limit once more, because Ray's own processes use the CPUs too."""
    import ray

    try:
        ray.init("local", num_cpus=WIDTH, log_to_driver=False, configure_logging=False)
    except Exception as error:
        return {}, dict.fromkeys(WITH_RAY, f"Ray does not start: {error}")
    try:
        found, left_out = _loaders(prepared, WITH_RAY)
        limit: dict[str, Subject] = {LIMIT: decoding_limit(prepared, WIDTH, images, "train")}
        return (_measured(limit | found, repeats, images) if found else {}), left_out
    finally:
        ray.shutdown()


def _measured(subjects: Mapping[str, Subject], repeats: int, images: int) -> dict[str, list[Rate]]:
    def told(name: str, repeat: int, rate: Rate) -> None:
        words = f"{rate.images_per_s:8,.0f} images/s  {rate.cpu_ms_per_image:6.2f} ms CPU an image"
        print(f"round {repeat + 1} of {repeats}: {words}  {name}", file=sys.stderr, flush=True)

    try:
        return rounds(subjects, repeats, images, told)
    finally:
        for subject in subjects.values():
            subject.close()


def _compared(rates: dict[str, list[Rate]]) -> dict[str, Any]:
    """Throughput of each subject, and its ratios to LIMIT and to PLAIN."""
    rows: dict[str, Any] = {}
    for name, timings in rates.items():
        row: dict[str, Any] = {
            "images_per_s": _told([each.images_per_s for each in timings]),
            "cpu_ms_per_image": _told([each.cpu_ms_per_image for each in timings]),
            "timings": [asdict(each) for each in timings],
        }
        for key, other in (("of_limit", LIMIT), ("over_plain", PLAIN)):
            if other in rates:
                pairs = zip(timings, rates[other], strict=True)
                row[key] = _ratio([own.images_per_s / base.images_per_s for own, base in pairs])
        rows[name] = row
    return rows


def _steps(rates: dict[str, list[Rate]]) -> dict[str, Any]:
    """Processor time of each variant, and the ratio of the previous variant's time to it."""
    rows: dict[str, Any] = {}
    before: list[Rate] | None = None
    for name, timings in rates.items():
        rows[name] = {"cpu_ms_per_image": _told([each.cpu_ms_per_image for each in timings])}
        if before is not None:
            pairs = zip(before, timings, strict=True)
            gains = [old.cpu_ms_per_image / new.cpu_ms_per_image for old, new in pairs]
            rows[name]["gain"] = _ratio(gains)
        before = timings
    return rows


def _told(values: list[float]) -> dict[str, Any]:
    stat = summarize(values)
    assert isinstance(stat, Stat)
    ends = (
        None
        if stat.half_width is None
        else [stat.mean - stat.half_width, stat.mean + stat.half_width]
    )
    return {"mean": stat.mean, "ci95": ends, "n": stat.n}


def _ratio(of_rounds: list[float]) -> dict[str, Any]:
    """The geometric mean of the rounds' ratios; its reciprocal is the mean of 1/ratio."""
    told = _told([math.log(each) for each in of_rounds])
    ends = told["ci95"] and [math.exp(end) for end in told["ci95"]]
    return {"mean": math.exp(told["mean"]), "ci95": ends, "n": told["n"]}


def _memory(folder: Path) -> dict[str, Any]:
    """Peak memory of an epoch with each loader of IN_MEMORY."""
    script = str(HERE / "loader_memory.py")
    peaks = {}
    for name in IN_MEMORY:
        words = [str(folder), LOADERS[name].model_dump_json(), str(BATCH)]
        done = subprocess.run([sys.executable, script, *words], stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            peaks[name] = json.loads(done.stdout.splitlines()[-1])
            print(f"memory of an epoch, {name}: {peaks[name]}", file=sys.stderr, flush=True)
    return peaks


def _verdict(groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether each goal is reached by the mean ratio over all rounds."""
    rows = {name: row for group in groups.values() for name, row in group.items()}
    best = max(
        (name for name in DECODE_ALIKE if name in rows),
        key=lambda name: rows[name]["images_per_s"]["mean"],
    )
    native = max(
        (name for name in ("native threads", "native processes") if name in rows),
        key=lambda name: rows[name]["images_per_s"]["mean"],
    )
    same = "native processes"
    return {
        f"the best loader ({best}), of bare decoding": _goal(rows[best]["of_limit"], GOAL_OF_LIMIT),
        f"{native}, over the plain way": _goal(rows[native]["over_plain"], GOAL_OVER_PLAIN),
        f"{same}, over the plain way": _goal(rows[same]["over_plain"], GOAL_OVER_PLAIN),
    }


def _goal(ratio: dict[str, Any], goal: float) -> dict[str, Any]:
    return {"ratio": ratio, "goal": goal, "reached": ratio["mean"] >= goal}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=cache_dir() / "bench", help="where it is made")
    parser.add_argument("--repeats", type=int, default=7, help="rounds over all subjects")
    parser.add_argument("--images", type=int, default=None, help="of one timing")
    parser.add_argument("--quick", action="store_true", help="400 images: does it work?")
    sys.exit(main(parser.parse_args()))
