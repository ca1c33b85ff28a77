"""Evaluation: a checkpoint becomes a table, under a named protocol."""
