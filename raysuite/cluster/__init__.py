"""A Ray cluster for one user: on this machine, or inside a SLURM allocation."""
