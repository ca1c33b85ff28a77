"""Command line: argument parser, suggestions, and the commands ``fit`` and ``doctor``."""
