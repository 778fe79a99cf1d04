"""Records -> tables, plots and one page that can be read anywhere."""

from raysuite.report.build import build
from raysuite.report.collect import Report, collect

__all__ = ["Report", "build", "collect"]
