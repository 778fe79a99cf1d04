"""Records: the measurements of runs, and the figures that are computed from them."""

from typing import TYPE_CHECKING

from raysuite.lazy import names_of

if TYPE_CHECKING:
    from raysuite.records.batch_trials import BatchFound, BatchTried
    from raysuite.records.derive import STATUS_WORDS, RunFigures, results_figures, run_figures
    from raysuite.records.ends import (
        FAILED,
        STOPPED,
        FailReason,
        RunEnd,
        RunFailed,
        RunFinished,
        RunPruned,
        RunStopped,
        StopReason,
    )
    from raysuite.records.journal import Journal, Results, read_journal
    from raysuite.records.judged import RunJudged
    from raysuite.records.rows import Row, make_rows
    from raysuite.records.schema import (
        EpochFinished,
        GateVerdict,
        Record,
        RunCosts,
        RunStarted,
        SamplesSkipped,
        ScriptMeasured,
        Slot,
        StagesMeasured,
        TimeShares,
    )
    from raysuite.records.statistics import Ratio, Stat, ratio_of_means, summarize

__all__ = [
    "FAILED",
    "STATUS_WORDS",
    "STOPPED",
    "BatchFound",
    "BatchTried",
    "EpochFinished",
    "FailReason",
    "GateVerdict",
    "Journal",
    "Ratio",
    "Record",
    "Results",
    "Row",
    "RunCosts",
    "RunEnd",
    "RunFailed",
    "RunFigures",
    "RunFinished",
    "RunJudged",
    "RunPruned",
    "RunStarted",
    "RunStopped",
    "SamplesSkipped",
    "ScriptMeasured",
    "Slot",
    "StagesMeasured",
    "Stat",
    "StopReason",
    "TimeShares",
    "make_rows",
    "ratio_of_means",
    "read_journal",
    "results_figures",
    "run_figures",
    "summarize",
]
_MODULES = ("batch_trials", "derive", "ends", "journal", "judged", "rows", "schema", "statistics")
# imported on use: planning needs only the names
__getattr__ = names_of(__name__, __all__, _MODULES)
