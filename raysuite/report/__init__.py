"""Records -> tables, plots and one page that can be read anywhere."""

from raysuite.report.build import Report, build, collect

__all__ = ["Report", "build", "collect"]
