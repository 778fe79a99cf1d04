"""Forms in which images lie on disk."""
