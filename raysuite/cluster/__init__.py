"""A Ray cluster for one user: on this machine, in a SLURM allocation, or on listed hosts."""
