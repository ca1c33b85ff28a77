"""Command line: argument parser, suggestions, and the commands ``fit``, ``validate`` and ``doctor``."""
