"""What the environments of runs differ in, where that may show in their figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MEMORY_SHARE = 0.05
"""Nodes of one kind report slightly different sizes; less than this part is no difference."""
OF_THE_PLAN = {"CUDA_VISIBLE_DEVICES", "HOROVOD_GLOO_IFACE", "OMP_NUM_THREADS"}
"""Variables that Ray and raysuite set for each worker, by the plan of its run."""


def differing(environments: Sequence[dict[str, Any]]) -> list[str]:
    """What differs between them, in words; what one of them does not tell is no difference.

    Host names, jobs, folders and times are left out: they differ within one run.
    """
    names = {name for each in environments for name in each.get("variables") or {}} - OF_THE_PLAN
    told = [_facts(each) | _variables(each, sorted(names)) for each in environments]
    kinds = dict.fromkeys(kind for facts in told for kind in facts)
    found = [
        kind
        for kind in kinds
        if len({facts[kind] for facts in told if facts.get(kind) is not None}) > 1
    ]
    sizes = [size for each in environments if (size := each.get("memory_bytes"))]
    if sizes and min(sizes) < max(sizes) * (1 - MEMORY_SHARE):
        found.append("memory")
    return found


def _facts(environment: dict[str, Any]) -> dict[str, Any]:
    cpu, source = environment.get("cpu") or {}, environment.get("source") or {}
    return {
        "hardware or versions": environment.get("fingerprint"),
        "usable cores": cpu.get("usable_cores"),
        "logical cores": cpu.get("logical_cores"),
        "raysuite's commit": source.get("commit"),
        "uncommitted changes to raysuite": source.get("dirty"),
        "image": json.dumps(environment["image"]) if "image" in environment else None,
    }


def _variables(environment: dict[str, Any], names: Sequence[str]) -> dict[str, str]:
    variables = environment.get("variables")
    return {} if variables is None else {name: variables.get(name, "") for name in names}
