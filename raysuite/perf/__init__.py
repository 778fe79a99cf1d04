"""Cost models: calibrated from journals, they predict, simulate, recommend and explain."""
