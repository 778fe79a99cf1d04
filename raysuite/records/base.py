"""What every Record has."""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field


class RecordBase(BaseModel):
    """One fact of one run."""

    # Unknown keys are ignored, so that older code reads newer journals. A run that diverged has
    # losses of NaN: written as null they could not be read again, and the epoch would be lost.
    model_config = ConfigDict(
        frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="constants"
    )

    run_id: str
    time: float = Field(default_factory=time.time)
