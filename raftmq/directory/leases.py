"""The leases of one member: jobs of which it makes sure that, if all goes well, no other does them.

    want("report")     asks for the lock each second            is_held("report") -> False
    the lock is here   prolonged every 2.5 s                    is_held("report") -> True
    cut off for 5 s    the others may have it 15 s after        is_held("report") -> False
                       it was last prolonged

A lock is free for the others `LEASE_SECONDS` after it was last prolonged, by the wall clocks of
those that ask. Its holder gives up after `HOLD_SECONDS`, by a clock that only goes forward, and a
client that has the lease through it `HOLD_SECONDS` later at the latest. So a lease has two holders
at once only if their wall clocks differ by more than the rest, or if pysyncobj's states have
drifted apart. Work that must not be done twice uses a claim (`raftmq.client.pop.claims`), which is
in the log of messages.

Invariants:
- A lease that is lost is wanted still: it is asked for again.
- In a new epoch, which knows no locks, a member that did not have the lease asks for it
  `LEASE_SECONDS` after the first leader was known here. That leader had a majority: from then on no
  holder in an older epoch could prolong, so all of them have given up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from raftmq.wire.directory import HOLD_SECONDS, LEASE_SECONDS

ASK_SECONDS = 1.0
"""Between two times that a lock is asked for."""
KEEP_SECONDS = HOLD_SECONDS / 2
"""Between two times that all locks are prolonged."""


@dataclass(slots=True)
class _Lease:
    """A lease that is wanted."""

    since: float = -inf
    """When the call was made that last got or prolonged it; -inf: it is not held."""
    due: float = -inf
    """When it is asked for again."""
    had: bool = False
    """Whether it was held when the epoch began."""


class Leases:
    """The leases that one member wants or has."""

    def __init__(self, own: str, now: Callable[[], float], wall: Callable[[], float]) -> None:
        """
        Args:
            own: the member's name among the holders of locks.
            now: a clock that only goes forward, in seconds.
            wall: wall-clock time in seconds.
        """
        self._own = own
        self._now = now
        self._wall = wall
        self._leases: dict[str, _Lease] = {}
        self._keep_due = 0.0
        self._release_due = -inf
        self._free_at = inf

    def want(self, name: str) -> None:
        """Get a lease, sooner or later, and keep it."""
        self._leases.setdefault(name, _Lease())

    def give_up(self, name: str) -> None:
        """Release a lease, or want it no longer."""
        if self._leases.pop(name, None) is not None:
            self._release_due = -inf

    def is_held(self, name: str) -> bool:
        """Whether this member has the lease now."""
        lease = self._leases.get(name)
        return lease is not None and self._is_held(lease)

    def _is_held(self, lease: _Lease) -> bool:
        return self._now() - lease.since < HOLD_SECONDS

    def enter(self) -> None:
        """A new epoch has begun."""
        self._free_at = inf
        for lease in self._leases.values():
            # The holder may ask at once; all others wait until it must have given up.
            lease.had = self._is_held(lease)
            lease.due = -inf

    def tick(self, locks: Any) -> None:
        """Ask for what is wanted, and prolong what is held. Called while a leader is known."""
        now = self._now()
        self._free_at = min(self._free_at, now + LEASE_SECONDS)
        if now >= self._release_due:
            self._release_due = now + ASK_SECONDS
            # Not only those just given up: a release or the answer to `acquire` may have been lost,
            # and `prolongate` prolongs all locks of a member.
            for name in locks.names_of(self._own):
                if name not in self._leases:
                    locks.release(name, self._own)
        for name, lease in self._leases.items():
            is_due = now >= lease.due and (lease.had or now >= self._free_at)
            if is_due and not self._is_locked(locks, name):
                lease.due = now + ASK_SECONDS
                self._acquire(locks, name, lease)
        if now >= self._keep_due and self._leases:
            self._keep_due = now + KEEP_SECONDS
            self._prolong(locks)

    def _is_locked(self, locks: Any, name: str) -> bool:
        return bool(locks.isAcquired(name, self._own, self._wall()))

    def _acquire(self, locks: Any, name: str, lease: _Lease) -> None:
        now = self._now()

        def done(is_mine: bool | None, reason: int) -> None:
            if not reason and is_mine:
                lease.since = max(lease.since, now)

        locks.acquire(name, self._own, self._wall(), callback=done)

    def _prolong(self, locks: Any) -> None:
        now, held = self._now(), dict(self._leases)

        def done(_result: None, reason: int) -> None:
            for name, lease in held.items():
                if not reason and self._is_locked(locks, name):
                    lease.since = max(lease.since, now)

        locks.prolongate(self._own, self._wall(), callback=done)
