"""Pretrained networks, built from runs, checkpoints and exported files."""
