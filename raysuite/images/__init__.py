"""Apptainer images: the recipe, its build, and how a command runs inside."""
