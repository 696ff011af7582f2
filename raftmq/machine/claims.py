"""Claims: a replicated table of work that was begun, for consumers that must not do it twice.

    claim("payment-17", by 5)   new: 5 has the key for the time it named
    claim("payment-17", by 5)   new again: the same claimant repeats after a lost answer
    claim("payment-17", by 6)   not new; the answer says for how long
    release("payment-17", by 5) gone: the work failed, others may try

A message may be delivered twice whatever a broker does: its consumer may die between the work and
the acknowledgement. A consumer that claims a key before it begins the work detects the repeat.

Invariants:
- A key has at most one running claim.
- There are at most `CLAIMS_MAX` claims; beyond them new claims are refused, never old ones dropped.

Sources: the deduplication tables of Notify's consumers.
"""

from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from raftmq.errors import Reason
from raftmq.results import Changed, Refused, Result

CLAIMS_MAX = 1_000_000
"""Claims of a data group: each takes about 300 bytes of memory."""
KEY_BYTES_MAX = 1024
"""The longest key."""
TTL_MS_MAX = 30 * 24 * 3600 * 1000
"""The longest that a claim may run."""
_SPARE_ROWS = 64
"""Void rows below which the heap is not rebuilt."""


class _Claim(NamedTuple):
    claimant: int
    until: int


class Claims:
    """All claims of a data group."""

    def __init__(self, claims_max: int = CLAIMS_MAX) -> None:
        self._claims_max = claims_max
        # (attachment, key) → the claimant, and the end of its claim.
        self._claims: dict[tuple[int, bytes], _Claim] = {}
        # (until, attachment, key); rows of claims that were released, or claimed again since, are
        # void. After a new claim there are no more of them than claims and `_SPARE_ROWS`.
        self._due: list[tuple[int, int, bytes]] = []

    def __len__(self) -> int:
        return len(self._claims)

    def claim(self, number: int, key: bytes, claimant: int, *, ttl_ms: int, now: int) -> Result:
        """Claim a key for a time; the result is [is it new, how long the claim runs]."""
        if not 1 <= len(key) <= KEY_BYTES_MAX or not 0 < ttl_ms <= TTL_MS_MAX:
            message = f"a key has 1 to {KEY_BYTES_MAX} bytes and a claim runs 1 to {TTL_MS_MAX} ms"
            return Refused(Reason.BAD_ARGUMENT, message)
        known = self._claims.get((number, key))
        if known is not None and known.until > now:
            return Changed([known.claimant == claimant, known.until - now])
        if known is None and len(self._claims) >= self._claims_max:
            message = f"{self._claims_max} claims are kept at most: claim for a shorter time"
            return Refused(Reason.TOO_LARGE, message)
        self._claims[number, key] = _Claim(claimant, now + ttl_ms)
        heappush(self._due, (now + ttl_ms, number, key))
        self._tidy()
        assert len(self._due) >= len(self._claims), "a claim that never runs out"
        return Changed([True, ttl_ms])

    def release(self, number: int, key: bytes, claimant: int) -> Result:
        """Give a claim up; the result says whether it was this claimant's."""
        known = self._claims.get((number, key))
        is_ours = known is not None and known.claimant == claimant
        if is_ours:
            del self._claims[number, key]
        return Changed([is_ours, 0])

    def pass_time(self, now: int) -> None:
        """Forget claims whose time is over."""
        due = self._due
        while due and due[0][0] <= now:
            until, number, key = heappop(due)
            known = self._claims.get((number, key))
            if known is not None and known.until == until:
                del self._claims[number, key]
        assert len(due) >= len(self._claims), "a claim that never runs out"

    def close(self, numbers: set[int]) -> None:
        """Attachments were deleted: forget their claims."""
        for at in [at for at in self._claims if at[0] in numbers]:
            del self._claims[at]
        self._tidy()
        assert len(self._due) >= len(self._claims), "a claim that never runs out"

    def _tidy(self) -> None:
        # A released claim leaves its row, which would otherwise stay for up to 30 days.
        if len(self._due) > 2 * len(self._claims) + _SPARE_ROWS:
            self._due = [(claim.until, *at) for at, claim in self._claims.items()]
            heapify(self._due)

    def dump(self) -> list[Any]:
        """The claims as plain values."""
        return [[*at, *claim] for at, claim in self._claims.items()]

    def load(self, rows: list[Any]) -> None:
        """The reverse of `dump`."""
        for number, key, claimant, until in rows:
            self._claims[number, key] = _Claim(claimant, until)
            heappush(self._due, (until, number, key))
