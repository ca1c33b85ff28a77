"""Runs: a config becomes a run directory."""
