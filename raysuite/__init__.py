"""Train and benchmark deep networks on a Ray cluster, with figures that can be trusted."""

__version__ = "0.2.2"
