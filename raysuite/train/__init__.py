"""Execute one RunPlan on one worker, without Ray, MLflow and the command line of `raysuite`."""
