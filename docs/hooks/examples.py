"""The sections of docstrings that are headed ``Example:``, as code."""

import griffe


class Examples(griffe.Extension):
    """Griffe formats ``Examples:`` as code and ``Example:`` as prose."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rename the heading."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
