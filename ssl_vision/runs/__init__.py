"""Runs: a config becomes a run folder."""
