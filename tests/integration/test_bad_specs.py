"""What `raysuite run` refuses: one clear message, exit code 2, and nothing left in results/."""

from __future__ import annotations

import pytest

from tests.integration.workplace import Workplace

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

LEAST = """\
name: bad
model: own:Net
data: digits
strategy: ddp
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 1}
"""
BAD = [
    pytest.param(
        LEAST.replace("workers: 1", "workers: 3"),
        "bad.yaml:6: resources.workers: 3 workers x 1 CPU each need 3 CPUs, and the cluster has "
        "2 CPUs and 0 GPUs on 1 node(s); at most 2 workers fit",
        id="more workers than the cluster has",
    ),
    pytest.param(
        LEAST + "matrix: {resources.workers: [1, 3], loader: [native, dali]}\n",
        "bad.yaml:7: resources.workers: 3 workers x 1 CPU each need 3 CPUs",
        id="one of the matrix",
    ),
    pytest.param(
        LEAST.replace("own:Net", "own:Nett"),
        "bad.yaml:2: model.name: 'own:Nett' cannot be imported: 'own' has no 'Nett'",
        id="no such model",
    ),
    pytest.param(
        LEAST.replace("own:Net", "broken:Net"),
        "bad.yaml:2: model.name: 'broken:Net' cannot be imported: broken raised NameError: ",
        id="a module that raises",
    ),
    pytest.param(
        LEAST.replace("ddp", "{name: custom, target: 'nowhere:Ours'}"),
        "bad.yaml:4: strategy.target: 'nowhere:Ours' cannot be imported: no module named 'nowhere'",
        id="no such strategy",
    ),
    pytest.param(
        LEAST.replace("digits", "{name: image_folder, path: nothing-here, image_size: 8}"),
        "bad.yaml:3: data.path: no folder nothing-here",
        id="missing data set",
    ),
]


@pytest.mark.parametrize(("spec", "message"), BAD)
def test_one_clear_message(
    workplace: Workplace, cluster: dict[str, str], spec: str, message: str
) -> None:
    workplace.write("bad.yaml", spec)
    workplace.write("broken.py", "Net = Nett\n")
    refused = workplace.run("raysuite", "run", "bad.yaml", code=2, **cluster)
    assert refused.stdout == ""
    heading, *mistakes = refused.stderr.splitlines()
    assert heading == "error: 1 mistake"
    assert len(mistakes) == 1
    assert mistakes[0].strip().startswith(message)
    assert not (workplace.folder / "results").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense"])
def test_a_cluster_that_does_not_answer(workplace: Workplace, address: str) -> None:
    workplace.write("bad.yaml", LEAST)
    refused = workplace.run("raysuite", "run", "bad.yaml", "--address", address, code=2)
    assert refused.stdout == ""
    [message] = refused.stderr.splitlines()
    assert message.startswith(f"error: no Ray cluster answers at '{address}': ")
    assert not (workplace.folder / "results").exists()
