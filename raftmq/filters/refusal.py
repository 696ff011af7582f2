"""The one error of this folder is `FilterSyntaxError` of `raftmq.errors`; here are its hints."""

from collections.abc import Iterable, Sequence
from typing import Final

from raftmq import words
from raftmq.errors import FilterSyntaxError

from .text import KEYWORDS, name_text

__all__ = ["FilterSyntaxError", "did_you_mean", "foreign", "hint"]

_NO_ARITHMETIC: Final = "; a filter has no arithmetic: write the result as a number"
_HINTS: Final = {
    "!": "; different is <> or !=",
    "&": "; write AND or &&",
    "|": "; write OR or ||",
    "=~": "; a filter has no regular expressions: write LIKE, CONTAINS, STARTSWITH or ENDSWITH",
    "?": "; a filter has no c ? a : b: write (c AND a) OR (NOT c AND b)",
    "[": "; a filter has no lists and maps: a property is one value",
    ";": "; a filter is one condition",
    "#": "; a remark is -- or /* */, and odd property names stand in backticks",
    **dict.fromkeys("*/%+-^~", _NO_ARITHMETIC),
}
_EQUAL: Final = frozenset(("=", "==", "!="))
_INSTEAD: Final = {
    "string.contains": "; write name CONTAINS 'x'",
    "string.startsWith": "; write name STARTSWITH 'x'",
    "string.endsWith": "; write name ENDSWITH 'x'",
    "include": "; write name IN ('x', 'y')",
}
"""Functions of aviator → the condition that does the same."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to this one; empty if none is close."""
    return words.did_you_mean(word.upper(), known)


def hint(tokens: Sequence[str], at: int) -> str:
    """What to write in place of a token that is no operator; empty: nothing comes to mind."""
    token = tokens[at]
    if token == "=":
        return "; equal is = or ==" if tokens[at - 1] in _EQUAL else ""
    if token.upper() in KEYWORDS:
        return ""
    return _HINTS.get(token) or did_you_mean(token, KEYWORDS)


def foreign(tokens: Sequence[str], at: int) -> tuple[str, int] | None:
    """What is wrong, and the number of the token, if a call or a path ends an operand.

    `tokens[at]` is the first token that cannot follow; None: it belongs to neither.
    """
    before = tokens[at - 1]
    if tokens[at] not in ("(", ".") or not _is_word(before) or before.upper() in KEYWORDS:
        return None
    end = at
    while tokens[end] == "." and _is_word(tokens[end + 1]):
        end += 2
    name = "".join(tokens[at - 1 : end])
    if tokens[end] == "(":
        instead = _INSTEAD.get(name) or did_you_mean(name, KEYWORDS)
        return f"{name}(...) is a function, and a filter has none{instead}", at - 1
    if end == at:
        return None
    return f"a property's name with a dot stands in backticks: {name_text(name)}", at


def _is_word(token: str) -> bool:
    return token[:1].isalpha() or token[:1] in ("_", "$")
