"""A paper's tables as data -> the same tables with own numbers beside."""
