"""A sweep's results: the best trials, what its parameters did, and what it cost."""
