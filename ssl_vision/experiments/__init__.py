"""Many runs: sweeps, papers' tables, paired comparisons."""
