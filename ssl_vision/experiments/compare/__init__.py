"""Tables of runs and paired comparisons of runs with equal seeds."""
