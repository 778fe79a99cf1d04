"""One agent per node. It starts, watches and ends Ray and, on the head, the MLflow server."""
