"""Pickles read as data: NumPy's arrays come back, and nothing in a pickle is run."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.data.formats import cifar
from raysuite.data.formats.cifar import Array, load
from raysuite.errors import DataError
from tests import small_sets

PLANES = np.random.default_rng(0).integers(0, 256, (3, 3072)).astype(np.uint8)
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_plain_data_comes_back(value, protocol):
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("keys", [str, str.encode])
@pytest.mark.parametrize("shape", [(3, 3072), (3, 3, 32, 32)])
def test_batches_of_every_protocol(protocol, keys, shape, tmp_path):
    data = PLANES.reshape(shape)
    batch = {keys("data"): data, keys("labels"): [1, 9, 0], keys("filenames"): [b"a", b"b", b"c"]}
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(batch, protocol))
    found = cifar.read_batch(path)
    assert found.planes == PLANES.tobytes()
    assert list(found.labels) == [1, 9, 0]


def test_the_official_form_by_python_2_and_an_old_numpy():
    content = load(small_sets.python2_pickle([3, 1, 4], PLANES))
    assert b"numpy.core.multiarray" in small_sets.python2_pickle([3, 1, 4], PLANES)
    assert content["labels"] == [3, 1, 4]
    assert content["data"] == Array("u1", (3, 3072), PLANES.tobytes())
    assert content["filenames"][0] == "picture_0.png"


class Runs:
    """Runs a command where it is unpickled as usual."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_that_runs_code_is_refused_and_does_not(protocol, tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": PLANES, "labels": Runs(tmp_path / "run")}, protocol))
    with pytest.raises(DataError, match=r"it would call (posix|nt|os)\.mkdir") as raised:
        cifar.read_batch(path)
    assert str(path) in str(raised.value)
    assert not (tmp_path / "run").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "run").exists(), "the test's own pickle does nothing"


EVIL = {
    "class": b"cos\nsystem\n(S'x'\nR.",
    "instance": b"(S'x'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'x'\no.",
    "new": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"P1\n.",
    "result called": b"cnumpy\ndtype\n(S'u1'\ntR(tR.",
    "state of a value": b"]}b.",
    "buffer": b"\x80\x05\x97.",
    "nothing": b".",
    "empty": b"",
    "no end": b"]",
    "no mark": b"a.",
    "list of a mark": b"](a.",
    "missing memo": b"g7\n.",
    "append to a number": b"K\x01K\x02a.",
    "odd pairs": b"}(K\x01u.",
    "unhashable": b"}]K\x01s.",
    "put of nothing": b"q\x01.",
    "long number": b"L" + b"9" * 5000 + b"L\n.",
    "kind that is none": b"cnumpy.core.multiarray\nscalar\n(K\x01S'x'\ntR.",
}


@pytest.mark.parametrize("name", EVIL)
def test_anything_but_data_is_an_error(name):
    with pytest.raises(ValueError, match=r"^.+"):
        load(EVIL[name])


LARGE = 2**40
BOMBS = {
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", LARGE) + b"x.",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", LARGE) + b"x.",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", LARGE) + b"x.",
    "string": b"T" + struct.pack("<i", 2**31 - 1) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", LARGE) + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_lengths_that_are_not_there_cost_no_memory(name):
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"^.+"):
        load(BOMBS[name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_far_place_in_the_memo_costs_no_memory():
    with pytest.raises(ValueError, match="memo"):
        load(b"Nr\xff\xff\xff\xff.")


@pytest.mark.parametrize(
    "change",
    [
        {"labels": [1, 2]},
        {"labels": [1, 2, 10]},
        {"labels": [1, 2, -1]},
        {"labels": ["a", "b", "c"]},
        {"labels": None},
        {"data": PLANES.astype(np.int16)},
        {"data": PLANES[:, :-1]},
        {"data": PLANES.reshape(3, 32, 32, 3)},
        {"data": np.asfortranarray(PLANES)},
        {"data": PLANES.tobytes()},
        {"data": PLANES.astype(object)},
        {"labels": [], "data": PLANES[:0]},
    ],
)
def test_what_is_no_batch_is_named(change, tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": PLANES, "labels": [1, 2, 3]} | change))
    with pytest.raises(DataError, match=f"{path}: .* a batch of CIFAR-10"):
        cifar.read_batch(path)


@given(st.data())
def test_mutated_pickles_are_an_error_or_a_value(data):
    content = bytearray(small_sets.python2_pickle([3, 1, 4], PLANES[:, :8]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    try:
        load(bytes(content))
    except ValueError:
        return
