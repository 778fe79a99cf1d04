"""What was tried for a batch: the file that outlives workers, figures of each size, words."""

from __future__ import annotations

from pathlib import Path

from raysuite.records import BatchTried, Journal, read_journal
from raysuite.records.batch_trials import Stage, TriedFile, size_figures
from tests.fake_batches import batch_found


def tried(
    size: int, stage: Stage = "alone", speed: float | None = None, **more: object
) -> BatchTried:
    facts = {"stage": stage, "micro_batch": size, "fits": True, "images_per_second": speed, **more}
    return BatchTried.model_validate(facts)


def test_a_size_at_which_workers_died_does_not_fit(tmp_path: Path) -> None:
    file = TriedFile(tmp_path / "some" / "tried.jsonl")
    assert file.read() == []
    file.begin("alone", 2)
    file.end(tried(2))
    file.begin("together", 4)
    assert file.ended() == [tried(2)]
    died = file.read()[1]
    assert (died.stage, died.micro_batch, died.fits) == ("together", 4, False)
    file.begin("alone", 3)
    file.end(tried(3))
    assert file.read() == [tried(2), died, tried(3)]


def test_half_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "tried.jsonl"
    file = TriedFile(path)
    file.end(tried(2))
    with path.open("a") as stream:
        stream.write('{"begin": ["alo')
    assert file.read() == [tried(2)]


def test_a_size_whose_result_is_damaged_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "tried.jsonl"
    file = TriedFile(path)
    file.end(tried(2))
    file.begin("alone", 4)
    file.end(tried(4))
    path.write_bytes(path.read_bytes().replace(b'"micro_batch":4', b'"micro_batch":5'))
    assert file.read() == file.ended() == [tried(2)]
    file.begin("alone", 4)
    file.end(tried(4))
    assert file.read() == [tried(2), tried(4)]


def test_figures_of_each_size() -> None:
    found = size_figures(
        [
            tried(4, peak_bytes=[10, 60], limit_bytes=[100, 80]),
            tried(4, "together", 20.0, peak_bytes=[50, 40], limit_bytes=[100, 90]),
            tried(4, "together", 30.0, peak_bytes=[50, 45], limit_bytes=[100, 90]),
            tried(2, peak_bytes=[5, 6], limit_bytes=[100, 90]),
            tried(8, fits=False, message="out of memory on rank 1"),
        ]
    )
    assert [each.micro_batch for each in found] == [2, 4, 8]
    assert [each.fits for each in found] == [True, True, False]
    assert [each.peak_bytes for each in found] == [6, 50, None]
    assert found[1].limit_bytes == 90
    assert found[1].images_per_second is not None
    assert found[1].images_per_second.values == (20.0, 30.0)
    assert found[0].images_per_second is None
    assert found[2].message == "out of memory on rank 1"


def test_a_size_that_fits_only_alone_does_not_fit() -> None:
    """Its memory is that of all trials, as no full step ended."""
    (found,) = size_figures(
        [
            tried(16, peak_bytes=[9], limit_bytes=[6]),
            tried(16, "together", fits=False, peak_bytes=[7], limit_bytes=[8], message="first"),
            tried(16, "together", fits=False, message="second"),
        ]
    )
    assert (found.fits, found.message) == (False, "first")
    assert (found.peak_bytes, found.limit_bytes) == (9, 6)


def test_a_choice_that_noise_forbids_is_told() -> None:
    """A size with a mean 20 % above that of the one taken, in rounds that vary as much."""
    speeds = {16: (100.0, 101.0, 99.0), 32: (100.0, 160.0, 101.0), 64: (60.0, 61.0, 59.0)}
    sizes = [tried(size, "together", speed) for size, own in speeds.items() for speed in own]
    noisy = batch_found("a", goal="fastest", micro_batch=16, tried=sizes)
    assert noisy.not_told_apart == (32,)
    assert "within 5% of the highest; the timings vary so much that 32 may be" in noisy.words
    assert noisy.model_copy(update={"goal": "largest"}).not_told_apart == ()
    for once in ([sizes[0], *sizes[3:]], sizes[:4]):  # of a size with one round no spread is known
        assert noisy.model_copy(update={"tried": once}).not_told_apart == ()
    pair = [*sizes[:2], *sizes[3:5]]  # two rounds of two sizes
    assert noisy.model_copy(update={"tried": pair}).not_told_apart == (32,)
    for size, unsettled in ((32, ()), (64, (32,))):  # memory was exceeded in a later round
        late = [*sizes, tried(size, "together", 150.0, fits=False)]
        assert noisy.model_copy(update={"tried": late}).not_told_apart == unsettled
    clear = noisy.model_copy(update={"tried": [each for each in sizes if each.micro_batch != 32]})
    assert clear.words.endswith("mean throughput within 5% of the highest)")


def test_the_record_comes_back_from_a_journal_and_tells_itself(tmp_path: Path) -> None:
    sizes = [tried(16, peak_bytes=[2**30], limit_bytes=[2**31]), tried(16, "together", 1234.5)]
    record = batch_found("a", micro_batch=16, accumulate=3, global_batch=96, tried=sizes)
    file = tmp_path / "journal.jsonl"
    Journal(file).write(record)
    assert list(read_journal(file)) == [record]
    assert record.words == (
        "micro-batch 16 x 3 on each worker, a global batch of 96, found by trial "
        "(largest: no larger one fits)"
    )
    assert record.tried[0].words == "a micro-batch of 16 fits (1.0 GiB of 2.0 GiB)"
    assert record.tried[1].words == "a micro-batch of 16 fits, 1,234 samples/s"
    bytes_ = {"peak_bytes": [2**30, 3 * 2**29], "limit_bytes": [2**33, 2**31]}
    assert tried(8, **bytes_).words == "a micro-batch of 8 fits (1.5 GiB of 2.0 GiB)"
    over = tried(8, fits=False, message="rank 1 is full", **bytes_)
    assert over.words == "a micro-batch of 8 does not fit: rank 1 is full"
    once = record.model_copy(update={"accumulate": 1, "bound": "samples"})
    assert once.words.startswith("micro-batch 16 on each worker, a global batch of 96")
    assert once.words.endswith("needs more samples than the training set has)")
