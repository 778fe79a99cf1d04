"""Apptainer images: recipe, build, signature and checks."""
