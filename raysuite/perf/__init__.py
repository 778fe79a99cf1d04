"""Calibrate cost models from journals; predict, simulate, recommend and explain with them."""
