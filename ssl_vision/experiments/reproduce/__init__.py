"""Reproduction of a paper's tables, with measured numbers beside the published ones."""
