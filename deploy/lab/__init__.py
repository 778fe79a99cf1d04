"""A SLURM site of several hosts on one machine, made of namespaces (docs/how-to/lab.md)."""
