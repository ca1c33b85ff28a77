"""Report: from run folders to a page to look at."""
