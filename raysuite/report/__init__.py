"""Make tables, plots and one self-contained page from Records."""

from raysuite.report.build import build
from raysuite.report.collect import Report, collect

__all__ = ["Report", "build", "collect"]
