"""Execute one RunPlan on one worker: no Ray, no MLflow, no command line."""
