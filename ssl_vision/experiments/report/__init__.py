"""HTML reports of runs, and maps of objectives."""
