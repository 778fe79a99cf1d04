"""One agent process per node: starts, watches and ends Ray, and the MLflow server on the head."""
