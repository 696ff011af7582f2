"""Spans against sets of offsets."""

from hypothesis import given
from hypothesis import strategies as st

from raftmq.pop.spans import Span, run, span

SETS = st.sets(st.integers(0, 300), min_size=1)


def of(offsets: set[int], base: int = 0) -> Span:
    """The span of these offsets, made from bits that begin at `base`."""
    made = span(base, sum(1 << offset - base for offset in offsets))
    assert made is not None
    return made


@given(SETS)
def test_span_is_the_set_it_was_made_of(offsets: set[int]) -> None:
    made = of(offsets)
    assert list(made.offsets()) == sorted(offsets)
    assert (made.size, made.base, made.stop) == (len(offsets), min(offsets), max(offsets) + 1)


@given(SETS)
def test_equal_sets_are_equal_spans(offsets: set[int]) -> None:
    assert of(offsets) == of(offsets, min(offsets))


@given(SETS, st.integers(1, 310))
def test_split_takes_the_first_messages(offsets: set[int], count: int) -> None:
    first, rest = of(offsets).split(count)
    assert list(first.offsets()) == sorted(offsets)[:count]
    assert list(rest.offsets() if rest else ()) == sorted(offsets)[count:]


@given(SETS, st.integers(0, 310))
def test_before_cuts_at_an_offset(offsets: set[int], at: int) -> None:
    before, after = of(offsets).before(at)
    assert list(before.offsets() if before else ()) == sorted(o for o in offsets if o < at)
    assert list(after.offsets() if after else ()) == sorted(o for o in offsets if o >= at)


def test_nothing_is_no_span() -> None:
    assert span(5, 0) is None
    assert run(5, 2, 3) == Span(5, 0b11, 3)
