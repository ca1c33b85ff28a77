"""The values that a rule of evaluation may have."""

MOST_EPOCHS = 100_000
"""Of a classifier that is trained on features or images; published protocols have 500 at most."""


def check(rule: object, **allowed: bool) -> None:
    """Complains of the first field of a rule whose value is not allowed.

    Raises:
        ValueError: naming the field and its value.
    """
    for name, good in allowed.items():
        if not good:
            raise ValueError(f"{name}: out of range, got {getattr(rule, name)}")
