"""Texts of others on a terminal, where no character of them may move a cursor or set a colour."""

import json


def printable(text: str) -> str:
    r"""A name or a text on one line of a terminal: characters that are not printable are escaped.

    >>> print(printable("a\nb \x1b[31m \u00fc"))
    a\nb \x1b[31m ü
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """A text of several lines, each of them printable."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    r"""A JSON text of the same value, in which all is printable but newlines: JSON itself escapes
    the characters below U+0020 alone.

    >>> print(printable_json('"a\\n \u009b31m \u202e \u00fc"'))
    "a\n \u009b31m \u202e ü"
    """
    if text.replace("\n", " ").isprintable():
        return text
    # Characters that are not printable stand within strings.
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )
