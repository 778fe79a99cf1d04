"""Format the measurements of loaders.py as Markdown."""

from __future__ import annotations

from typing import Any

from raysuite.units import human_bytes


def markdown(result: dict[str, Any]) -> str:
    """The page of benchmarks/results/loaders.md."""
    lines = ["# How fast images are loaded", "", *_head(result), "", *_verdict(result), ""]
    for name, rows in result["groups"].items():
        lines += [*_group(name, rows), ""]
    for name, reason in result["left_out"].items():
        lines += [f"Not measured: {name} ({reason.splitlines()[0]}).", ""]
    return "\n".join([*lines, *_steps(result), "", *_memory(result), "", *_where(result), ""])


def _head(result: dict[str, Any]) -> list[str]:
    rounds = next(iter(next(iter(result["groups"].values())).values()))["images_per_s"]["n"]
    size = human_bytes(result["mean_jpeg_bytes"])
    return [
        f"224-pixel random-resized crops, mirrored by chance and normalised, from 500 x 375 JPEGs "
        f"of {size} on average (`raysuite data make imagenet`); {result['width']} threads, "
        f"processes or tasks each; batches of {result['batch']}; "
        f"{result['images_of_a_timing']:,} images a timing; {rounds} rounds over all subjects in "
        "turn. A ratio is the geometric mean of the rounds' own ratios, with its 95 % interval. "
        "Files come from the page cache. Bare decoding: all pixels of each JPEG by libjpeg-turbo "
        "(simplejpeg), from memory into memory that is used again."
    ]


def _verdict(result: dict[str, Any]) -> list[str]:
    return [
        f"- {name}: {_ratio(each['ratio'])}; goal {each['goal']}: "
        f"{'reached' if each['reached'] else 'MISSED'}"
        for name, each in result["verdict"].items()
    ]


def _group(name: str, rows: dict[str, Any]) -> list[str]:
    lines = [
        f"## {name[0].upper()}{name[1:]}",
        "",
        "| subject | images/s | of bare decoding | over plain | CPU ms an image |",
        "| --- | --- | --- | --- | --- |",
    ]
    ordered = sorted(rows.items(), key=lambda pair: -pair[1]["images_per_s"]["mean"])
    for subject, row in ordered:
        cells = [
            _number(row["images_per_s"], "{:,.0f}"),
            *(_ratio(row[key]) if key in row else "" for key in ("of_limit", "over_plain")),
            _number(row["cpu_ms_per_image"], "{:.2f}"),
        ]
        lines.append(f"| {subject} | {' | '.join(cells)} |")
    return lines


def _steps(result: dict[str, Any]) -> list[str]:
    lines = [
        "## What each step gains",
        "",
        "One thread, from bytes in memory to normalised values; each way has one thing more than "
        "the one above it.",
        "",
        "| way | CPU ms an image | times as fast as the one above |",
        "| --- | --- | --- |",
    ]
    for name, row in result["steps"].items():
        gain = _ratio(row["gain"]) if "gain" in row else ""
        lines.append(f"| {name} | {_number(row['cpu_ms_per_image'], '{:.2f}')} | {gain} |")
    return lines


def _memory(result: dict[str, Any]) -> list[str]:
    lines = [
        "## Memory of an epoch",
        "",
        "Largest resident memory so far, of the process and its loading processes together; what "
        "they share counts in each.",
        "",
    ]
    for number, (name, found) in enumerate(result["memory"].items()):
        peaks = found["peak_bytes"]
        if number == 0:
            heads = " | ".join(f"after {share}" for share in peaks)
            lines += [f"| loader | images | {heads} |", "| --- " * (2 + len(peaks)) + "|"]
        cells = " | ".join(human_bytes(peak) for peak in peaks.values())
        lines.append(f"| {name} | {found['images']:,} | {cells} |")
    return lines


def _where(result: dict[str, Any]) -> list[str]:
    facts = result["environment"]
    cpu, versions = facts["cpu"], facts["versions"]
    named = (
        "raysuite",
        "torch",
        "torchvision",
        "pillow",
        "simplejpeg",
        "nvidia-dali-cuda120",
        "ray",
    )
    told = ", ".join(f"{name} {versions[name]}" for name in named if versions.get(name))
    return [
        f"Hardware: {cpu['model']}, {cpu['logical_cores']} logical cores. Versions: {told}, "
        f"Python {facts['python']}."
    ]


def _ratio(told: dict[str, Any]) -> str:
    return _number(told, "{:.2f}")


def _number(told: dict[str, Any], form: str) -> str:
    mean = form.format(told["mean"])
    if told["ci95"] is None:
        return mean
    low, high = (form.format(end) for end in told["ci95"])
    return f"{mean} ({low} to {high})"
