"""MLflow as a Sink: hears of each Record after the journal has it."""

from __future__ import annotations

import logging

from raysuite.records import EpochFinished, GateVerdict, Record, Results
from raysuite.track.entries import epoch_points, may_tell_speed
from raysuite.track.folder import experiment_name, locked
from raysuite.track.store import Store, quiet, tracking_address, without_password
from raysuite.track.sync import one_line
from raysuite.track.upload import Upload

_log = logging.getLogger(__name__)


class MlflowSink:
    """Writes Records into MLflow as they come, into the same runs that `sync` writes.

    The first failure is logged as a warning and ends it: training continues, the journal has
    everything, and `raysuite sync` writes it later.
    """

    def __init__(
        self, results: Results, tracking_uri: str | None = None, experiment: str | None = None
    ) -> None:
        self.results = results
        self.uri = tracking_address(tracking_uri)
        self.experiment = experiment
        self._upload: Upload | None = None
        self.broken = False

    def write(self, record: Record) -> None:
        """Take one Record; taking it twice does no harm. Raises nothing."""
        if self.broken:
            return
        try:
            with quiet(), locked(self.results.folder):
                self._write(record)
        except Exception as error:  # whatever a store throws, no training may fail by it
            self.broken = True
            _log.warning(
                "MLflow at %s could not be written (%s); the run continues, and `raysuite sync %s` "
                "writes it later",
                without_password(self.uri),
                one_line(error),
                self.results.folder,
            )

    def _write(self, record: Record) -> None:
        if self._upload is None:
            name = self.experiment or experiment_name(self.results)
            self._upload = Upload(self.results, Store(self.uri, name))
        if isinstance(record, GateVerdict):
            return  # a tag of the whole run, which is written at its end
        if not isinstance(record, EpochFinished):
            self._upload.write_run(record.run_id)
            return
        run = self._upload.figures(record.run_id)
        points = list(epoch_points(record, may_tell_speed(run)))
        self._upload.store.log(self._upload.child(run).info.run_id, points)
