"""Runs of the same seeds -> paired differences and a verdict."""
