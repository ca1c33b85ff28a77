"""Trials of a sweep file, the runner of all trials, and the results as a table and a plot."""
