"""Valid ranges of the options of evaluation."""

MOST_EPOCHS = 100_000
"""Maximum number of epochs of a classifier; published protocols have at most 500."""


def check(rule: object, **allowed: bool) -> None:
    """Check the fields of a rule.

    Raises:
        ValueError: a value is out of range; the message states the field and its value.
    """
    for name, valid in allowed.items():
        if not valid:
            raise ValueError(f"{name}: out of range, got {getattr(rule, name)}")
