"""Write journals into MLflow, during the runs or later."""

from raysuite.track.sync import SyncSummary, prepare, sync

__all__ = ["SyncSummary", "prepare", "sync"]
