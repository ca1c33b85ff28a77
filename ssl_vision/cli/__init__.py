"""Command line: argument parser, suggestions, and the commands ``fit``, ``data``, ``list`` and ``doctor``."""
