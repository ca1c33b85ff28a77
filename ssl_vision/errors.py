"""Exceptions for wrong input and for interruptions; all other exceptions are faults of the program."""

from pathlib import Path


class InputError(ValueError):
    """Error for a wrong key, value, path or file, with a message of one line that says what to do.

    The command line prints the message and ends with exit code 2; no traceback is shown.
    """


class Interrupted(BaseException):
    """A run was ended by a signal after its state was saved; the exit code is 128 + the signal's number.

    Args:
        signal: number of the signal.
    """

    run: Path | None = None
    """Run directory, with which ``fit`` continues."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal
