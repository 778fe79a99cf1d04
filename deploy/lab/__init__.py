"""A SLURM site of several hosts on one machine, made of namespaces (docs/lab.md)."""
