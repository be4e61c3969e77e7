"""The tracker `mlflow`."""
