"""Classes of contrastive objectives, selected by the module that defines them."""

import ssl_vision.objectives as o

PRESETS = [
    value
    for value in vars(o).values()
    if isinstance(value, type)
    and value.__module__ == "ssl_vision.objectives.contrastive"
    and value is not o.Contrastive
]
"""The published objectives of the InfoNCE family."""
