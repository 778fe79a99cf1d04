"""MLflow, written from the journals: while they are written, or later."""

from raysuite.track.sync import SyncSummary, prepare, sync

__all__ = ["SyncSummary", "prepare", "sync"]
