"""A dict of bounded size that forgets its oldest entries, and counts them."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The last `limit` entries by the time when their key was first put.

    >>> recent = Recent(2)
    >>> for key in "abc":
    ...     recent.put(key, key.upper())
    >>> recent.get("a"), recent.get("c"), recent.forgotten
    (None, 'C', 1)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # A plain dict is slow at its old end: each look passes over the entries deleted there.
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.forgotten = 0
        """Entries that had to make room."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V) -> None:
        """Put an entry, in place of the one of that key; the oldest makes room."""
        self._entries[key] = value
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
            self.forgotten += 1

    def get(self, key: K) -> V | None:
        """The entry; None: there is none."""
        return self._entries.get(key)

    def pop(self, key: K) -> V | None:
        """Remove the entry and return it; None: there is none."""
        return self._entries.pop(key, None)

    def __iter__(self) -> Iterator[K]:
        """The keys, the oldest first."""
        return iter(self._entries)
