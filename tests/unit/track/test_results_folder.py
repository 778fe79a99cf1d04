"""The identity of a results folder, and its lock."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from raysuite.records import Results
from raysuite.track import results_folder as folders
from raysuite.track.results_folder import digest, experiment_name, locked, results_id
from tests.fake_results import write_results
from tests.fake_sweeps import write_sweep


def test_the_id_stays_when_the_folder_moves(tmp_path):
    first = tmp_path / "a"
    first.mkdir()
    name = results_id(first)
    assert len(name) == 32
    moved = first.rename(tmp_path / "b")
    assert results_id(moved) == name


def test_processes_that_come_at_once_agree_on_the_id(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(results_id, [tmp_path] * 8))) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["results.id"]


def test_an_empty_id_is_replaced_and_not_shared_by_all_folders_that_lost_theirs(tmp_path):
    ids = set()
    for name, content in (("a", b""), ("b", b""), ("c", bytes(33))):
        (folder := tmp_path / name).mkdir()
        (folder / "results.id").write_bytes(content)
        ids.add(results_id(folder))
        assert results_id(folder) in ids
        assert [each.name for each in folder.iterdir()] == ["results.id"]
    assert sorted(map(len, ids)) == [32, 32, 32]


def test_a_folder_that_cannot_be_written_to_has_an_id_that_follows_from_its_plan(
    tmp_path, monkeypatch
):
    (tmp_path / "plan.json").write_text("[]")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(folders, "write_whole", refuse)
    wanted = hashlib.sha256(b"[]" + tmp_path.name.encode()).hexdigest()[:32]
    assert results_id(tmp_path) == results_id(tmp_path) == wanted
    assert not (tmp_path / "results.id").exists()
    (tmp_path / "results.id").write_bytes(b"written before\n")
    assert results_id(tmp_path) == "written before"


def test_one_at_a_time_and_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "PATIENCE", 0.1)
    with locked(tmp_path), pytest.raises(TimeoutError, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    shutil.rmtree(tmp_path)
    with locked(tmp_path):  # a folder without a lock is written without one
        pass


def test_an_experiment_has_the_name_of_the_spec_or_of_the_folder(tmp_path):
    results = Results(tmp_path / "folder")
    results.write_plans([])
    assert experiment_name(results) == "folder"
    assert experiment_name(write_results(tmp_path / "suite")) == "made-up"
    assert experiment_name(write_sweep(tmp_path / "sweep", trials=1)) == "made-up-sweep"


def test_digest_follows_names_and_contents(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("x")
    empty = digest(two)
    assert digest(one) != digest(two)
    two.write_text("x")
    assert digest(one) != digest(two) != empty
    before = digest(two)
    two.write_text("y")
    assert digest(two) != before
