"""Drive a sweep: Ray Tune runs in its own thread; the listener is called in the caller's thread."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from raysuite.cluster import private
from raysuite.cluster.variables import RUN_SETTINGS
from raysuite.orchestrate import stopping
from raysuite.orchestrate.capacity import Capacity
from raysuite.orchestrate.leaving_nodes import reporting
from raysuite.orchestrate.suite import Listener, fit, planned
from raysuite.plan import RunPlan
from raysuite.plan.trials import most_epochs
from raysuite.records import Results
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions
from raysuite.train.stop_together import Stop

_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # the newer output prints a table at any verbosity
    "RAY_AIR_NEW_OUTPUT": "0",
    # Tune's state is never read again: the journals replace it
    "TUNE_GLOBAL_CHECKPOINT_S": "100000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
}


def run(
    document: Document,
    results: Results,
    capacity: Capacity,
    listener: Listener,
    resume: bool = False,
) -> Stop | None:
    """Run the trials that RESULTS/search.json requests and that have not ended yet.

    Return the request that stopped the sweep before its end, or None. `resume`: the results contain
    trials of an earlier attempt; unfinished trials are resumed first, from their checkpoints.
    """
    found = results.search()
    assert found is not None, "results of a sweep"
    search = SearchOptions.model_validate(found["search"])
    for name, value in _TUNE.items():
        os.environ.setdefault(name, value)
    from raysuite.orchestrate.sweep.schedulers import JournaledScheduler
    from raysuite.orchestrate.sweep.trial_source import TrialSource, TuneShutdown

    if not (results.folder / "plan.json").exists():
        results.write_plans([])
    stopping.request_stop(results.folder, None)
    plans = planned(results)
    scheduler = JournaledScheduler(search, results, most_epochs(document, search))
    if resume:
        scheduler.replay(plans)
        for plan in plans:
            scheduler.settle(plan)
    events: SimpleQueue[RunPlan | str] = SimpleQueue()
    source = TrialSource(document, search, results, capacity, scheduler, events.put)
    with private.temporary_folder("rs-tune-") as folder, reporting(capacity.nodes, listener.say):
        tune_shutdown = TuneShutdown()
        tuner = _tuner(results, source, scheduler, tune_shutdown, str(folder))

        def shut_down() -> None:
            tune_shutdown.requested = source.stopped = True

        listener = _with_events(listener, events)
        error, stop = fit(tuner, results, listener, shut_down)
    listener.poll()
    results.settle_plans()
    if error is not None:
        raise error
    return None if source.is_done else stop


def _with_events(listener: Listener, events: SimpleQueue[RunPlan | str]) -> Listener:
    """A listener whose `poll` also handles the events that Ray Tune's thread has queued."""

    def poll() -> None:
        while not events.empty():
            each = events.get()
            if isinstance(each, RunPlan):
                listener.added(each)
            else:
                listener.say(each)
        listener.poll()

    return replace(listener, poll=poll)


def _tuner(results: Results, source: Any, scheduler: Any, tune_shutdown: Any, folder: str) -> Any:
    import ray
    from ray import tune

    from raysuite.orchestrate.sweep.trial import Setting, trainable

    # switch off Ray's messages on ended trials and on Tune's files, which repeat the journals
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    own = {name: value for name, value in os.environ.items() if name.startswith("RAYSUITE_")}
    own |= {name: os.environ[name] for name in RUN_SETTINGS if name in os.environ}
    setting = Setting(results=str(results.folder.absolute()), path=os.getcwd(), environment=own)
    here = f"node:{ray.util.get_node_ip_address()}"
    return tune.Tuner(
        # on the driver's node, without a CPU: the CPUs are for the trial's workers
        tune.with_resources(trainable(setting), {"CPU": 0, here: 0.0001}),
        tune_config=tune.TuneConfig(
            search_alg=source, scheduler=scheduler, num_samples=-1, reuse_actors=True
        ),
        run_config=tune.RunConfig(
            name="sweep", storage_path=folder, verbose=0, callbacks=[tune_shutdown]
        ),
    )
