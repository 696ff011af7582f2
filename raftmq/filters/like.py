"""LIKE: reading its pattern, and fitting a text to it in almost linear time.

A pattern is cut at its `%` into segments. The first must stand at the start of the text, the last
at its end, and those between are searched from left to right, each behind the one before: taking
the first place is never worse than a later one, so the search never goes back. A segment has a
fixed length, so a pattern full of `%` costs no more than one search over the text.

A segment is searched by the cheapest way that no text makes long:

| segment | search |
|---|---|
| without `_` | `str.find` |
| with `_`, at most `SEARCH_MAX` characters | a regular expression |
| longer | its longest text by `str.find`, and comparing the rest there; |
| | beyond `COMPARED_MAX` characters compared in vain, Fourier transforms |

For the transforms each letter of the segment becomes a root of unity, a point on the unit circle;
`_` and all other letters become 0. At each place of the text, the segment's points (conjugated) are
multiplied with those of the text, and added. The real part of the sum is the number of the
segment's letters if they all stand there, and less if one differs:

| segment `a_b` as -1, 0, 1 | text `aab` as -1, -1, 1 | 1 + 0 + 1 = 2 |
|---|---|---|
| | text `aaa` as -1, -1, -1 | 1 + 0 - 1 = 0 |

A transform gives the sums of a whole block of places, in the block's length times its logarithm.

Invariants:
- The time is at most in proportion to the length of the text times the logarithm of the pattern's;
  comparing at each place would take the product of the lengths, and a regular expression of the
  whole pattern that to the power of the number of `%`.

Sources: SQL92 §8.5. Fischer and Paterson, String matching and other products, 1974; Clifford and
Clifford, Simple deterministic wildcard matching, 2007.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .formula import Atom, Pattern

if TYPE_CHECKING:
    import numpy as np

SEARCH_MAX: Final = 64
"""Characters of a segment up to which it is compared at each place of the text."""
COMPARED_MAX: Final = 16_384
"""Characters of a longer segment that one search compares in vain: 0.1 ms at most."""
BLOCK_MIN: Final = 4096
"""Characters that one transform takes at least, unless the text is shorter."""


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

    __slots__ = ("_anchor", "_before", "_plain", "_runs", "_search", "_start", "length")

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
        self._runs = runs
        # The longest run, and how many characters stand before it.
        self._anchor = max((run or "" for run in runs), key=len)
        before = runs[: runs.index(self._anchor)] if self._anchor else ()
        self._before = sum(1 if run is None else len(run) for run in before)

    def is_at(self, text: str, place: int) -> bool:
        """Whether the segment stands at this place of the text."""
        if self._plain is not None:
            return text.startswith(self._plain, place)
        return self._start(text, place) is not None

    def find(self, text: str, start: int, end: int) -> int:
        """The first place of the segment within these bounds; -1 if there is none."""
        if self._plain is not None:
            return text.find(self._plain, start, end)
        if self.length > SEARCH_MAX:
            return self._find_long(text, start, end)
        found = self._search(text, start, end)
        return found.start() if found else -1

    def _find_long(self, text: str, start: int, end: int) -> int:
        last = end - self.length
        if last < start:
            # `str.find` would count a negative end from the end of the text.
            return -1
        end_of_anchor = last + self._before + len(self._anchor)
        for _ in range(COMPARED_MAX // self.length + 1):
            found = text.find(self._anchor, start + self._before, end_of_anchor)
            if found < 0:
                return -1
            start = found - self._before
            if self.is_at(text, start):
                return start
            start += 1
        if start > last:
            return -1
        places = candidates(self._runs, text, start, end)
        return next((place for place in places if self.is_at(text, place)), -1)


def candidates(runs: Sequence[str | None], text: str, start: int, end: int) -> Iterator[int]:
    """The places between `start` and `end` at which these runs may stand, in rising order.

    See the heading for the sums of points. With k letters, a wrong letter takes at least
    1 - cos(2π / k) from the sum, and k is at most 16,384, the length of a filter: 7e-8, of which
    half is allowed for. The transform errs by less than 1e-9 in blocks of this size. So each place
    where the runs stand is given, and few others, if any: the caller compares.
    """
    # numpy is for batches and hostile texts: a client's start does not wait for it.
    import numpy as np

    letters = _code_points("".join("\0" if run is None else run for run in runs))
    is_letter = np.repeat(
        [run is not None for run in runs], [1 if run is None else len(run) for run in runs]
    )
    distinct, ranks = np.unique(letters[is_letter], return_inverse=True)
    points = np.exp(2j * np.pi / len(distinct) * np.arange(len(distinct)))
    segment = np.zeros(len(letters), np.complex128)
    segment[is_letter] = points[ranks]
    # Letters above the segment's highest one share the last entry, which stays 0.
    point_of = np.zeros(int(distinct[-1]) + 2, np.complex128)
    point_of[distinct] = points

    # A wrong letter of the segment's is at least one step away on the circle, any other is at 0.
    lost = min(1 - np.cos(2 * np.pi / len(distinct)), 1.0) if len(distinct) > 1 else 1.0
    least = len(ranks) - lost / 2
    size = min(max(BLOCK_MIN, 8 * len(segment)), end - start)
    size = 1 << (size - 1).bit_length()
    transformed = np.conj(np.fft.fft(segment, size))
    for at in range(start, end - len(segment) + 1, size - len(segment) + 1):
        codes = _code_points(text[at : min(at + size, end)])
        block = point_of[np.minimum(codes, len(point_of) - 1)]
        sums = np.fft.ifft(np.fft.fft(block, size) * transformed).real
        for place in np.flatnonzero(sums[: len(codes) - len(segment) + 1] > least).tolist():
            yield at + place


def _code_points(text: str) -> "np.ndarray":
    import numpy as np

    # Texts of filters may have half a pair of surrogates, as may texts of applications.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
