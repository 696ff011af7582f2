"""Filters that are tags: `paid || shipped`, `*`.

A tag is a word without blanks, quotes and the signs of SQL, or any text in quotes. A word that SQL
reserves is no tag, so `TRUE` is SQL.

Sources: RocketMQ's tag expressions.
"""

import re

from .formula import TAG, TRUE, Atom, Formula, Values
from .literals import read_quoted
from .text import KEYWORDS

_BLANKS = r"[ \t\r\n\f]*+"
_TAG = r"""(?:'(?:[^']++|'')*+'|(?!--)[^ \t\r\n\f|'`"()=<>,*&!;]++)"""
_TAGS = re.compile(rf"{_BLANKS}(?:{_TAG}(?:{_BLANKS}\|\|{_BLANKS}{_TAG})*+)?+{_BLANKS}")
_ONE_TAG = re.compile(_TAG)


def is_tags(text: str) -> bool:
    """Is this a list of tags, rather than SQL? True also for `*` and the empty text."""
    return parse_tags(text) is not None


def parse_tags(text: str) -> Formula | None:
    """The formula; None: this is not a list of tags."""
    if text.strip(" \t\r\n\f") in ("", "*"):
        return TRUE
    if not _TAGS.fullmatch(text):
        return None
    words = _ONE_TAG.findall(text)
    if any(word.upper() in KEYWORDS for word in words):
        return None
    tags = tuple(dict.fromkeys(read_quoted(word) if word[0] == "'" else word for word in words))
    return Atom("=", TAG, tags[0]) if len(tags) == 1 else Atom("IN", TAG, Values(tags))
