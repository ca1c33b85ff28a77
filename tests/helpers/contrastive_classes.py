"""Classes of contrastive objectives, by where they are defined."""

import ssl_vision.objectives as o

PRESETS = [
    value
    for value in vars(o).values()
    if isinstance(value, type) and value.__module__ == "ssl_vision.objectives.presets"
]
"""The published objectives of the InfoNCE family."""
