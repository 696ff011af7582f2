"""The one error of this folder: what is wrong with a filter's text, where, and what is right."""

from collections.abc import Iterable

from raftmq.errors import RaftmqError

_SHOWN_CHARACTERS = 60
"""Of the text before and after the place; a longer one is cut."""


class FilterSyntaxError(RaftmqError):
    """A filter's text cannot be read. Nothing was subscribed; correct the text.

    The message is three lines: what is wrong, the text around the place, and a caret below it.

    >>> from raftmq.filters import compile
    >>> try:
    ...     compile("city CONTAIN 'x'")
    ... except FilterSyntaxError as error:
    ...     print(error)
    CONTAIN is no operator; did you mean CONTAINS? (at character 6)
      city CONTAIN 'x'
           ^^^^^^^
    """

    def __init__(self, problem: str, *, text: str, position: int, length: int = 1) -> None:
        assert 0 <= position <= len(text), position
        self.problem = problem
        """What is wrong, one line."""
        self.text = text
        """The whole filter."""
        self.position = position
        """Characters before the place, from 0; the length of the text if it ends too early."""
        self.length = max(1, length)
        """Characters that are wrong."""
        super().__init__(f"{problem} (at character {position + 1})\n{self._marked()}")

    def _marked(self) -> str:
        start = max(0, self.position - _SHOWN_CHARACTERS)
        end = self.position + _SHOWN_CHARACTERS
        before = ("..." if start else "") + self.text[start : self.position]
        after = self.text[self.position : end] + ("..." if end < len(self.text) else "")
        carets = "^" * min(self.length, max(1, len(after)))
        return f"  {_one_line(before + after)}\n  {' ' * len(before)}{carets}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word closest to this one; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(word.upper(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _one_line(text: str) -> str:
    """Each control character as one space, so that the carets stand where they should."""
    return "".join(max(character, " ") for character in text)
