"""Runs and their directories: config, metrics, checkpoints and evaluations."""
