"""The tracker `wandb`."""
