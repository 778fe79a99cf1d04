"""One form on disk a file, behind `raysuite.data.source.Source`."""
