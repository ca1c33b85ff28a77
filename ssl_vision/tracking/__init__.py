"""Tracking of runs by services."""
