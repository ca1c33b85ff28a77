"""Trials of a sweep file, the processes that train them, and the results as a table and a plot."""
