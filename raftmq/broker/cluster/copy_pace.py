"""The pace at which this node copies logs to members that learn: `limits.copy_bytes_per_second`.

    a member that learns lacks records that left the cache
    read back 4 MiB | send | wait until 4 MiB are paid off | read back the next 4 MiB

Reads wait and not messages, so nothing lies in memory meanwhile, and nothing is read in vain. What
is in the cache goes at once: it is little. Voters that lag are not held up: the group needs their
votes.

Left out: snapshots, which are small beside logs.

Invariants:
- Over all groups, what is read back for members that learn is at most the rate, and one read more
  for each of them.
"""

from collections.abc import Callable

import trio


class CopyPace:
    """The pace of one node."""

    def __init__(self, bytes_per_second: Callable[[], int]) -> None:
        """`bytes_per_second` gives the rate that holds now; 0: without a bound."""
        self._rate = bytes_per_second
        # Bytes that were sent and are not paid off, at a moment.
        self._owed, self._at = 0.0, 0.0

    def sent(self, count: int) -> None:
        """Charge bytes that went to a member that learns."""
        self._pay()
        self._owed += count

    @property
    def pause(self) -> float:
        """Seconds until the next read for such a member."""
        self._pay()
        rate = self._rate()
        return self._owed / rate if rate else 0.0

    def _pay(self) -> None:
        now, rate = trio.current_time(), self._rate()
        self._owed = max(0.0, self._owed - (now - self._at) * rate) if rate else 0.0
        self._at = now
