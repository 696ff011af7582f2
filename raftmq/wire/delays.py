"""The messages about delayed messages.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| CANCEL | `CancelDelayed`, `DelayedCancelled` | - | - |

That a batch waits is said in the answer to PRODUCE (`messages.Produced`).
"""

from .messages import _Wire


class CancelDelayed(_Wire, frozen=True):
    """Take back delayed messages of one partition group. It may be repeated."""

    partition_group: int
    """The partition group."""
    queues: list[int]
    """For each message the number of its queue; 4,096 at the most."""
    dues: list[int]
    """For each when it falls due, milliseconds since 1970: its delivery time as it was sent."""
    numbers: list[int]
    """For each its number: `Produced.number` and its position in the batch."""
    request: int = 0
    """Random, the same when it is asked again, which gets the answer of the first; 0: none."""


class DelayedCancelled(_Wire, frozen=True):
    """It is on the disks of a majority."""

    outcomes: list[int]
    """For each: 1, it is never delivered; 0, no such message waits: it was cancelled before, or
    never was; -1, its time has come, and it is delivered."""
