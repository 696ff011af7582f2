"""Random streams of a client beside its first one, so that new choices leave old ones as they are.

    times = stream(random, "invisible")        # `random` draws the same as without this line

Invariants:
- Equal states of `random` and equal names give equal streams.
"""

from copy import copy
from random import Random


def stream(random: Random, name: str) -> Random:
    """A stream of its own, by the state that `random` is in; `random` stays as it is."""
    return Random(f"{name} {copy(random).getrandbits(64)}")
