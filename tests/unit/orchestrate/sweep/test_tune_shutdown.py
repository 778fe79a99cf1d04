"""Ray Tune's loop, in a thread, ends when it is asked to."""

from __future__ import annotations

import pickle

import pytest

from raysuite.orchestrate.sweep.trial_source import TuneShutdown


def test_the_loop_ends_at_its_next_step_and_not_before():
    leaving = TuneShutdown()
    leaving.on_step_begin(1, [])
    leaving.requested = True
    with pytest.raises(SystemExit):
        leaving.on_step_begin(2, [])


def test_the_callback_can_be_pickled():
    assert not pickle.loads(pickle.dumps(TuneShutdown())).requested
