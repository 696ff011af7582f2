"""Pieces against sets of offsets with keys."""

from hypothesis import given
from hypothesis import strategies as st

from raftmq.pop.pieces import (
    JOINED_WIDTH_MAX,
    Piece,
    bits_of,
    divided,
    joined,
    joined_by_queue,
    pick,
    piece,
    positions,
)
from raftmq.pop.spans import Span

SETS = st.sets(st.integers(0, 300), min_size=1)


def of(offsets: set[int], attempt: int = 0, *, is_keyed: bool = True) -> Piece:
    """The piece of these offsets; each message's key is its offset + 1."""
    rising = sorted(offsets)
    keys = b"".join((offset + 1).to_bytes(4, "little") for offset in rising) if is_keyed else b""
    return Piece(rising[0], bits_of(rising), attempt, keys)


def told(found: Piece | None) -> set[int]:
    """The offsets of a piece, after a look at its keys."""
    if found is None:
        return set()
    offsets = list(found.span.offsets())
    if found.keys:
        assert found == of(set(offsets), found.attempt)
    assert found.size == len(offsets)
    assert found.stop == offsets[-1] + 1
    return set(offsets)


@given(SETS)
def test_bits_and_positions_are_reverse(offsets: set[int]) -> None:
    rising = sorted(offsets)
    assert [rising[0] + at for at in positions(bits_of(rising))] == rising
    assert positions(0) == []


@given(SETS, st.integers(1, 310), st.booleans())
def test_split_takes_the_first_messages_with_their_keys(
    offsets: set[int], count: int, is_keyed: bool
) -> None:
    first, rest = of(offsets, is_keyed=is_keyed).split(count)
    assert told(first) == set(sorted(offsets)[:count])
    assert told(rest) == set(sorted(offsets)[count:])


@given(SETS, SETS, st.integers(-400, 400), st.booleans())
def test_division_parts_a_piece_by_what_is_named_with_its_keys(
    offsets: set[int], named: set[int], moved: int, is_keyed: bool
) -> None:
    named = {offset + moved for offset in named}
    chosen = Span(min(named), bits_of(sorted(named)))
    taken, rest = divided(of(offsets, 3, is_keyed=is_keyed), chosen)
    assert told(taken) == offsets & named
    assert told(rest) == offsets - named
    assert {each.attempt for each in (taken, rest) if each} == {3}


@given(SETS)
def test_division_by_what_is_far_away_takes_nothing(offsets: set[int]) -> None:
    for base in (-(1 << 70), 1 << 70):
        assert divided(of(offsets), Span(base, 1)) == (None, of(offsets))


@given(SETS, st.integers(-5, 310))
def test_before_cuts_at_an_offset_with_keys(offsets: set[int], at: int) -> None:
    before, after = of(offsets).before(at)
    assert told(before) == {offset for offset in offsets if offset < at}
    assert told(after) == {offset for offset in offsets if offset >= at}


@given(SETS, SETS)
def test_pick_finds_the_keys_of_a_part(offsets: set[int], wanted: set[int]) -> None:
    whole, part = of(offsets), sorted(offsets & wanted)
    if part:
        chosen = bits_of(part) << part[0] - whole.base
        found = piece(whole.base, chosen, 0, pick(whole.keys, whole.bits, chosen))
        assert found == of(set(part))


@given(SETS, SETS, st.integers(0, 1), st.booleans())
def test_joined_pieces_are_both_or_refused(
    first: set[int], second: set[int], attempt: int, is_keyed: bool
) -> None:
    second -= first
    if not second:
        return
    both = joined(of(first, is_keyed=is_keyed), of(second, attempt, is_keyed=is_keyed))
    if attempt or (is_keyed and min(second) < max(first)):
        assert both is None
    else:
        assert told(both) == first | second


def test_pieces_that_lie_far_apart_are_not_joined() -> None:
    assert joined(Piece(0, 1), Piece(JOINED_WIDTH_MAX, 1)) is None
    assert joined(Piece(JOINED_WIDTH_MAX - 1, 1), Piece(0, 1)) is not None


@given(st.lists(st.tuples(st.integers(1, 2), SETS, st.integers(0, 1)), max_size=8), st.booleans())
def test_joining_by_queue_keeps_each_message(
    drawn: list[tuple[int, set[int], int]], is_keyed: bool
) -> None:
    seen: set[tuple[int, int]] = set()
    pieces: list[tuple[int, Piece]] = []
    for queue, offsets, attempt in drawn:
        fresh = {offset for offset in offsets if (queue, offset) not in seen}
        seen |= {(queue, offset) for offset in fresh}
        if fresh:
            pieces.append((queue, of(fresh, attempt, is_keyed=is_keyed)))

    def spread(pieces: list[tuple[int, Piece]]) -> list[tuple[int, int, int]]:
        return sorted((queue, each.attempt, n) for queue, each in pieces for n in told(each))

    found = joined_by_queue(pieces)
    assert spread(found) == spread(pieces)
    if not is_keyed:
        assert len(found) == len({(queue, each.attempt) for queue, each in pieces})
