"""MLflow, fed from the journals: as they are written, or replayed later."""

from raysuite.track.sync import SyncSummary, prepare, sync

__all__ = ["SyncSummary", "prepare", "sync"]
