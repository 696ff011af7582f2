"""A sketch counts different values, whatever their order, repetition and splitting."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.pipeline.live import hyperloglog

ERROR = 1.04 / np.sqrt(hyperloglog.REGISTERS)


def codes(count: int, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Of different values, as hashes spread them."""
    random = np.random.default_rng(seed)
    ranks = np.minimum(random.geometric(0.5, count), hyperloglog.RANK_MAX)
    return (random.integers(0, hyperloglog.REGISTERS, count) * 64 + ranks).astype(np.int32)


@pytest.mark.parametrize("count", [1, 10, 300, 4_000, 11_000, 100_000, 1_000_000])
def test_estimate_is_within_its_error(count: int) -> None:
    found = []
    for seed in range(20):
        registers = hyperloglog.empty()
        hyperloglog.add(registers, codes(count, seed))
        found.append(hyperloglog.estimate(registers) / count - 1)
    # Twenty trials: the mean is within 4 / sqrt(20) of the error, and each within 4 of it.
    assert abs(np.mean(found)) <= ERROR * 4 / np.sqrt(20)
    assert np.max(np.abs(found)) <= ERROR * 4


@given(st.lists(st.integers(0, 300), max_size=5), st.integers(0, 9), st.randoms())
def test_parts_in_any_order_and_twice_come_to_the_same(
    sizes: list[int], seed: int, random: Random
) -> None:
    whole, parts = hyperloglog.empty(), hyperloglog.empty()
    pieces = [codes(size, seed + place) for place, size in enumerate(sizes)]
    for piece in pieces:
        hyperloglog.add(whole, piece)
    twice = [*pieces, *pieces[:2]]
    random.shuffle(twice)
    for piece in twice:
        hyperloglog.add(parts, piece[::-1])
    assert np.array_equal(whole, parts)
