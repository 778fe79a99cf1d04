"""A sweep's results: the best trials, the effect of its parameters, and its cost."""
