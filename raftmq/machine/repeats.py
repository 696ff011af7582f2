"""Requests that were carried out, with their answers: a repeat changes nothing and gets the first.

A client whose answer was lost asks again, perhaps after a change by another client. The repeat must
not undo that change, so each request has a random number of its caller's own:

    request 7, "filter: paid"       -> version 40
    request 8, "filter: shipped"    -> version 41
    request 7 again                 -> version 40, and the filter is still "shipped"

Invariants:
- The set of known requests depends on the log alone.
"""

from collections.abc import Callable
from typing import Any

from raftmq.results import Changed, Result

DONE_MAX = 4096
"""Requests whose answers are remembered: far more than wait for an answer at one time."""


class Repeats:
    """The last requests that were carried out."""

    def __init__(self) -> None:
        # Request → the value of its result, the latest last.
        self._done: dict[int, Any] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._done

    def once(self, request: int, change: Callable[[], Result]) -> Result:
        """Carry out a change, unless `request` was carried out; 0: the request has no number."""
        if request in self._done:
            return Changed(self._done[request])
        result = change()
        # A refused request changed nothing, and may be carried out when it comes again.
        if request and isinstance(result, Changed):
            self._done[request] = result.value
            if len(self._done) > DONE_MAX:
                del self._done[next(iter(self._done))]
        return result

    def dump(self) -> list[Any]:
        """Requests and answers as plain values."""
        return list(self._done.items())

    def load(self, state: list[Any]) -> None:
        """The reverse of `dump`."""
        self._done = dict(state)
