"""`python deploy/lab up`: a SLURM site of several hosts on this machine (docs/how-to/lab.md)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.command import app

if __name__ == "__main__":
    app(prog_name="lab")
