"""One process a node: starts Ray there, and the head's MLflow server, watches and ends them."""
