"""Options of ``fit`` and the classes that they name, read from catalogue.json without importing torch."""

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from ssl_vision.descriptions import read_catalogue

_ABBREVIATIONS = ("al.", "Eq.", "Fig.", "e.g.", "i.e.")


class Option(NamedTuple):
    """An option.

    Args:
        name: dotted name, of an option of a class below the class, such as "views.size".
        default: default value as it is written on the command line; None if a value is required.
        values: type of the values; "class" where an object is expected.
        text: description, or "".
    """

    name: str
    default: str | None
    values: str
    text: str


class ClassDescription(NamedTuple):
    """A class that options can name.

    Args:
        name: name of the class.
        sentence: first sentence of its docstring.
        options: options of its constructor; those of a dataclass follow its name and a dot.
    """

    name: str
    sentence: str
    options: tuple[Option, ...]


@cache
def classes_of(option: str) -> dict[str, ClassDescription]:
    """Return the classes that an option such as ``model.objective`` accepts, by name, without abstract ones.

    The result is empty for an option that does not name a class of this package.
    """
    entries = read_catalogue()["classes"].get(option.rpartition(".")[2], ())
    return {
        name: ClassDescription(name, sentence, tuple(Option(*each) for each in options))
        for name, sentence, options in entries
    }


def options_of_fit(chosen: Mapping[str, str | None]) -> dict[str, Option]:
    """Return the options of ``fit`` by dotted name.

    Args:
        chosen: classes that options name; other options name their defaults.
    """
    options: dict[str, Option] = {}
    for key, default in read_catalogue()["defaults"].items():
        cls = classes_of(key).get(chosen.get(key) or default)
        for option in cls.options if cls else ():
            options[f"{key}.{option.name}"] = option._replace(name=f"{key}.{option.name}")
        options[key] = Option(key, default, "", "")
    for name, *others in read_catalogue()["options"]:
        options[name] = Option(name, *others)
    return options


@cache
def option_names() -> list[str]:
    """Return the names of the options of ``fit``, those of all classes among them."""
    names = dict.fromkeys(options_of_fit({}))
    for key in read_catalogue()["defaults"]:
        names |= {f"{key}.{option.name}": None for cls in classes_of(key).values() for option in cls.options}
    return list(names)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, with a capital letter and a full stop.

    Example:
        >>> first_sentence("width of the embeddings; 128 in the paper. Larger ones take memory.")
        'Width of the embeddings; 128 in the paper.'
    """
    ends = (match.start() + 1 for match in re.finditer(r"\. (?![a-z])", text))
    sentence = text[: next((end for end in ends if not text[:end].endswith(_ABBREVIATIONS)), len(text))]
    return capitalized(sentence if not sentence or sentence.endswith(".") else f"{sentence}.")


def capitalized(text: str) -> str:
    """Begin a text with a capital letter, unless it begins with a symbol or a name such as kNN.

    Example:
        >>> capitalized("width of the embeddings"), capitalized("kNN accuracy")
        ('Width of the embeddings', 'kNN accuracy')
    """
    return text[0].upper() + text[1:] if re.match(r"[a-z]+[ ,.:;]", text) and text[1].isalpha() else text
