"""The messages about delayed messages.

| kind | request, answer | body of the request | body of the answer |
|---|---|---|---|
| CANCEL | `CancelDelayed`, `DelayedCancelled` | - | - |

The answer to PRODUCE (`messages.Produced`) says whether a batch waits.
"""

from .messages import _Wire


class CancelDelayed(_Wire, frozen=True):
    """Take back delayed messages of one partition group. It may be repeated."""

    partition_group: int
    """The partition group's number; the request goes to its leader."""
    queues: list[int]
    """For each message the number of its queue; 4,096 at the most."""
    dues: list[int]
    """For each message when it falls due, milliseconds since 1970: its delivery time as sent."""
    numbers: list[int]
    """For each message its number: `Produced.number` plus its position in the batch."""
    request: int = 0
    """A random number, equal in each repeat; a repeat then gets the first answer. 0: none."""


class DelayedCancelled(_Wire, frozen=True):
    """The cancellation is on the disks of a majority."""

    outcomes: list[int]
    """For each message: 1, it is never delivered; 0, no such message waits: it was cancelled
    before, or never existed; -1, its time has come, and it is delivered."""
