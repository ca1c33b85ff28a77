"""The one exception that means: what the user gave is wrong."""


class InputError(ValueError):
    """A wrong key, value, path or file. The message is one line that names it and says what to do.

    The command line prints the message and ends with exit code 2; no traceback is shown.
    """
