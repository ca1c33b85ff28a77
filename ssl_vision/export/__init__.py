"""A trained backbone for others: files for other libraries, one line of Python, features of a folder."""
