"""Work with many runs: sweeps, papers, comparisons and report pages.

Nothing outside imports it but the commands and ``ssl_vision.api``.
"""
