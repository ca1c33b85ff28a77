"""What the command line tells apart: wrong input and an interruption, from all that is a fault."""


class InputError(ValueError):
    """A wrong key, value, path or file. The message is one line that names it and says what to do.

    The command line prints the message and ends with exit code 2; no traceback is shown.
    """


class Interrupted(BaseException):
    """A signal ended a run whose state is saved. The exit code is 128 + its number, as a shell has it.

    Args:
        signal: its number.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal
