"""LIKE: reading its pattern, and fitting a text to it in linear time.

A pattern is cut at its `%` into segments. The first must stand at the start of the text, the last
at its end, and those between are searched from left to right, each behind the one before: taking
the first place is never worse than a later one, so the search never goes back. A segment has a
fixed length, so a pattern full of `%` costs no more than one search a segment.

Invariants:
- The time is at most the product of the lengths of text and pattern; a regular expression of the
  whole pattern would take that to the power of the number of `%`.

Sources: SQL92 §8.5.
"""

import re
from collections.abc import Callable

from .formula import Atom, Pattern


def read_pattern(text: str, escape: str | None) -> Pattern:
    """The pattern of a LIKE; `escape` is one character or None.

    Raises:
        ValueError: the escape character stands before something that needs none.
    """
    segments: list[tuple[str | None, ...]] = []
    segment: list[str | None] = []
    characters = iter(text)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if character not in ("%", "_", escape):
                raise ValueError(f"after the escape {escape} only %, _ and {escape} may stand")
        elif character == "%":
            segments.append(_joined(segment))
            segment = []
            continue
        elif character == "_":
            segment.append(None)
            continue
        segment.append(character)
    return Pattern((*segments, _joined(segment)))


def like_atom(name: str, text: str, escape: str | None) -> Atom:
    """The atom of `name LIKE text ESCAPE escape`, without LIKE where that is possible.

    >>> like_atom("city", "%land", None)
    Atom(operator='ENDSWITH', name='city', constant='land')

    Raises:
        ValueError: as `read_pattern`.
    """
    if escape is None and "_" not in text:
        parts = text.split("%")
        return _simplest(name, parts) or Atom("LIKE", name, _pattern(parts))
    pattern = read_pattern(text, escape)
    if any(None in segment for segment in pattern.segments):
        return Atom("LIKE", name, pattern)
    parts = ["".join(run or "" for run in segment) for segment in pattern.segments]
    return _simplest(name, parts) or Atom("LIKE", name, pattern)


def _simplest(name: str, parts: list[str]) -> Atom | None:
    """The atom of these parts with `%` between, if a simpler operator has the same meaning."""
    match len(parts):
        case 1:
            return Atom("=", name, parts[0])
        case 2 if not parts[1]:
            return Atom("STARTSWITH", name, parts[0])
        case 2 if not parts[0]:
            return Atom("ENDSWITH", name, parts[1])
        case 3 if parts[1] and not (parts[0] or parts[2]):
            return Atom("CONTAINS", name, parts[1])
        case _:
            return None


def _pattern(parts: list[str]) -> Pattern:
    return Pattern(tuple((part,) if part else () for part in parts))


def _joined(parts: list[str | None]) -> tuple[str | None, ...]:
    """Neighbouring characters as one text."""
    runs: list[str | None] = []
    for part in parts:
        if part is not None and runs and runs[-1] is not None:
            runs[-1] += part
        else:
            runs.append(part)
    return tuple(runs)


def matcher(pattern: Pattern) -> Callable[[str], bool]:
    """A function that says whether a text fits."""
    first, *rest = map(_Segment, pattern.segments)
    if not rest:
        return lambda text: len(text) == first.length and first.is_at(text, 0)
    *middle, last = rest

    def fits(text: str) -> bool:
        end = len(text) - last.length
        if end < first.length or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        place = first.length
        for segment in middle:
            place = segment.find(text, place, end)
            if place < 0:
                return False
            place += segment.length
        return True

    return fits


class _Segment:
    """A piece of a pattern without a `%`."""

    __slots__ = ("_plain", "_search", "_start", "length")

    def __init__(self, runs: tuple[str | None, ...]) -> None:
        self.length = sum(1 if run is None else len(run) for run in runs)
        self._plain: str | None = None
        if None not in runs:
            self._plain = "".join(run or "" for run in runs)
            return
        compiled = re.compile(
            "".join("." if run is None else re.escape(run) for run in runs), re.DOTALL
        )
        self._start = compiled.match
        self._search = compiled.search

    def is_at(self, text: str, place: int) -> bool:
        """Whether the segment stands at this place of the text."""
        if self._plain is not None:
            return text.startswith(self._plain, place)
        return self._start(text, place) is not None

    def find(self, text: str, start: int, end: int) -> int:
        """The first place of the segment within these bounds; -1 if there is none."""
        if self._plain is not None:
            return text.find(self._plain, start, end)
        found = self._search(text, start, end)
        return found.start() if found else -1
