"""Evaluation of checkpoints and encoders under named protocols."""
