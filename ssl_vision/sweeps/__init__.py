"""A sweep file -> trained cells, a table and a plot."""
