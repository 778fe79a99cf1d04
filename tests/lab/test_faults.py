"""Whatever breaks, a suite ends complete: each run recorded once, no metric lost or doubled."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.lab import faults
from tests.lab.fault_checks import check_journals, check_mlflow, check_nothing_is_left
from tests.lab.fault_cluster import FaultCluster
from tests.lab.place import LabPlace
from tests.marks import LAB_MARKS

pytestmark = [*LAB_MARKS, pytest.mark.thorough, pytest.mark.timeout(3600)]

REPEATS = int(os.environ.get("RAYSUITE_FAULT_REPEATS", "1"))
"""How often each fault strikes."""
CHOSEN = [name for name in os.environ.get("RAYSUITE_FAULTS", "").split(",") if name]
"""They strike one suite, one after the other. tests/lab/faults.py has all of them."""


@pytest.fixture
def cluster(lab: LabPlace) -> Iterator[FaultCluster]:
    made = FaultCluster(lab)
    made.up()
    yield made
    made.down()


@pytest.mark.skipif(not CHOSEN, reason="by hand: RAYSUITE_FAULTS=worker,raylet,node,...")
def test_a_suite_survives(cluster: FaultCluster) -> None:
    sequence: list[faults.Fault] = [getattr(faults, name) for name in CHOSEN]
    whole = sorted(sequence * REPEATS, key=lambda fault: fault.__name__ in faults.ALONE)
    cluster.submit("faults", [fault.__name__ in faults.ALONE for fault in whole])
    for seed, fault in enumerate(whole):
        began = time.monotonic()
        fault(cluster, seed)
        print(f"{fault.__name__}: {time.monotonic() - began:.0f} s", flush=True)
    cluster.wait(cluster.has_ended, "the end of the suite")
    check_journals(cluster.results())
    check_mlflow(cluster, cluster.results(), "faults")
    cluster.down()
    check_nothing_is_left(cluster)
