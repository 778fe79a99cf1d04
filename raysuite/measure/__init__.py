"""Measurements of time, memory and energy, and of the environment of a run."""
