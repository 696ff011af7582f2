"""LIKE finds what its definition says, and no text makes the search long."""

import re
from itertools import pairwise
from math import log2
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftmq.filters import compile as compile_filter
from raftmq.filters import like
from raftmq.filters.like import matcher, read_pattern

A, B = "a" * 8_000, "b" * 8_000


def fits(pattern: str, text: str) -> bool:
    """SQL92 §8.5, letter by letter: the places of the text that the pattern has reached so far."""
    reached = {0}
    for letter in pattern:
        if letter == "%":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            inside = (at for at in reached if at < len(text))
            reached = {at + 1 for at in inside if letter in ("_", text[at])}
    return len(text) in reached


def found(pattern: str, text: str) -> bool:
    return matcher(read_pattern(pattern, None))(text)


def _use_all_ways_on_short_texts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(like, "SEARCH_MAX", 1)
    patch.setattr(like, "COMPARED_MAX", 3)
    patch.setattr(like, "BLOCK_MIN", 1)


@given(st.text(alphabet="ab\0%__", max_size=10), st.text(alphabet="aaab\0\U0001f600", max_size=120))
@example("%a_b%", "a" * 100 + "ab")
@example("%a__%_a", "aaa")
@example("%_%a_b_%__", "a" * 60 + "b" + "a" * 60)
@settings(max_examples=1_000)
def test_all_ways_find_what_the_definition_says(pattern: str, text: str) -> None:
    expected = fits(pattern, text)
    assert found(pattern, text) is expected
    with pytest.MonkeyPatch.context() as patch:
        _use_all_ways_on_short_texts(patch)
        assert found(pattern, text) is expected


@given(st.text(alphabet=st.characters(exclude_characters="%"), min_size=2, max_size=40), st.data())
def test_any_letters_are_found_and_told_apart(segment: str, data: st.DataObject) -> None:
    wild = data.draw(st.integers(0, len(segment) - 1))
    pattern = f"%{segment[:wild]}_{segment[wild + 1 :]}%"
    at = data.draw(st.integers(0, len(segment) - 1))
    changed = segment[:at] + data.draw(st.characters()) + segment[at + 1 :]
    text = changed * 9 + data.draw(st.sampled_from(["", segment]))
    with pytest.MonkeyPatch.context() as patch:
        _use_all_ways_on_short_texts(patch)
        assert found(pattern, text) is fits(pattern, text)


@pytest.mark.parametrize("letters", [2, 3, 16_000])
def test_transform_sees_one_wrong_letter_among_thousands(letters: int) -> None:
    alphabet = [chr(0x4E00 + each) for each in range(letters)]
    segment = [alphabet[each % letters] for each in range(16_000)]
    text = "".join(segment)
    for at in (0, 7_777, 15_999):
        # The neighbour on the circle is the letter that takes the least from the sum.
        wrong = alphabet[(alphabet.index(segment[at]) + 1) % letters]
        runs = ("".join(segment[:100]), None, "".join(segment[101:]))
        for other in (wrong, "\0"):
            bad = "x" * 150_000 + text[:at] + other + text[at + 1 :] + "x" * 16_000
            assert not list(like.candidates(runs, bad, 0, len(bad)))
            places = list(like.candidates(runs, bad + text, 0, len(bad) + len(text)))
            assert places == [len(bad)]


class Work:
    """Characters compared by regular expressions, and those that transforms go through."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done = 0.0
        patch.setattr(
            like,
            "re",
            SimpleNamespace(compile=self._compile, escape=re.escape, DOTALL=re.DOTALL),
        )
        fft = np.fft.fft

        def counted(values: Any, size: int) -> Any:
            self.done += 2 * size * log2(size)
            return fft(values, size)

        patch.setattr(np.fft, "fft", counted)

    def _compile(self, pattern: str, flags: int) -> Any:
        compiled = re.compile(pattern, flags)
        length = len(pattern.replace("\\", ""))

        def search(text: str, start: int, end: int) -> Any:
            self.done += length * max(end - start - length, 0)
            # As far as the test goes, a search in vain is as good as a search.
            return compiled.search(text, start, end) if length < 100 else None

        def match(text: str, start: int) -> Any:
            self.done += length
            return compiled.match(text, start)

        return SimpleNamespace(search=search, match=match)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (f"%_{A}b%", "a"),
        (f"%{A[:4_000]}_{A[:4_000]}b%", "a"),
        (f"%{'a_' * 8_000}b%", "a"),
        (f"%{'_a' * 4_000}{A}b%", "a"),
        (f"%{'a_b_' * 4_000}c%", "ab"),
        (f"%b{'_' * 16_000}b_c%", "b"),
        (f"%{'_' * 16_000}b%", "a"),
        (f"%{'_' + 'a' * 64 + 'b%'}", "a"),
        ("%" + f"_{A[:98]}b%" * 160, "a"),
        (f"%_{A}{B[:8_000]}%", A + B[:7_999]),
    ],
)
def test_work_on_a_long_text_is_bounded_by_its_length(pattern: str, text: str) -> None:
    text = (text * (300_000 // len(text)))[:300_000]
    with pytest.MonkeyPatch.context() as patch:
        work = Work(patch)
        assert compile_filter(f"p LIKE '{pattern}'").matches({"p": text}) is False
    assert work.done < 100 * len(text)


def test_many_segments_share_the_work_on_a_text() -> None:
    """Each segment is searched from the place that the one before has reached."""
    pattern = "%" + f"_{A[:98]}b%" * 150
    text = (A[:1_000] + "b") * 149 + A
    with pytest.MonkeyPatch.context() as patch:
        work = Work(patch)
        assert compile_filter(f"p LIKE '{pattern}'").matches({"p": text}) is False
    assert work.done < 200 * len(text)


def test_places_of_a_long_segment_come_in_rising_order_over_blocks() -> None:
    text = "a" * 50_000
    places = list(like.candidates(("a", None, "a"), text, 10, 49_000))
    assert places == list(range(10, 49_000 - 2))
    assert all(a < b for a, b in pairwise(places))
