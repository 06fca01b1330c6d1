"""Where candidates come from: container tags, package versions."""
