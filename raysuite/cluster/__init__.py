"""A Ray cluster of one's own: on this machine, or inside a SLURM allocation."""
