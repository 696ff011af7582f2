"""Masks as runs of neighbouring messages."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.consume.read_ahead import runs


@given(st.binary(max_size=6), st.integers(0, 60))
def test_runs_are_the_set_bits_from_a_position_on(mask: bytes, first: int) -> None:
    bits = [at for at in range(8 * len(mask)) if mask[at // 8] >> (at % 8) & 1]
    found = runs(mask, first)
    assert [at for start, stop in found for at in range(start, stop)] == [
        at for at in bits if at >= first
    ]
    assert all(after[0] > before[1] for before, after in pairwise(found))
