"""How bytes travel between two machines of a simulated world, and how names are looked up there.

Sources: RFC 6298 §5 for the times of retransmissions; CPython's `getaddrinfo` for what it raises.
"""

from collections import deque
from collections.abc import Callable
from random import Random

Strike = Callable[[bytes, Callable[[], None]], bytes]
"""Gets a piece and the call that resets its connection; returns the bytes that travel."""

BASE_SECONDS = 0.0002
"""Shortest time that a piece takes."""
RESEND_SECONDS = 0.2
"""A lost piece is sent again after this long, then after twice as long."""
RESEND_SECONDS_MAX = 120.0
"""The longest time between two tries."""
LOSSES_MAX = 4
"""A piece that is lost this many times in a row breaks its connection."""
USER_TIMEOUT_SECONDS = 925.0
"""An end whose bytes are not acknowledged gives up after this long, unless its socket says
otherwise: fifteen tries (`tcp_retries2`)."""


class Link:
    """How bytes travel from one machine to another."""

    __slots__ = (
        "blocks", "delay_seconds", "is_heavy", "lag_share", "loss_share", "pieces", "rate",
        "source", "strikes", "swallows", "target",
    )  # fmt: skip

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        """The machine that sends."""
        self.target = target
        """The machine that receives."""
        self.blocks = 0
        """How many faults block it."""
        self.swallows = 0
        """How many faults let everything vanish that is sent along it."""
        self.delay_seconds = 0.0
        """Mean of an exponential delay."""
        self.is_heavy = False
        """One delay in twenty is ten times as long."""
        self.lag_share = 0.0
        """Share of the pieces that are held up, for up to a fifth of a second."""
        self.loss_share = 0.0
        """Share of the sends of pieces that are lost."""
        self.rate = 0.0
        """Bytes per second; 0: no bound."""
        self.strikes: deque[Strike] = deque()
        """Calls for the next pieces: each changes a piece, or breaks its connection."""
        self.pieces = 0
        """Pieces sent along it so far."""

    @property
    def is_plain(self) -> bool:
        """True if no fault affects the link."""
        return not (
            self.blocks or self.swallows or self.delay_seconds or self.lag_share
            or self.loss_share or self.rate or self.strikes
        )  # fmt: skip

    @property
    def burdens(self) -> list[str]:
        """Names of the effects on a piece that travels now."""
        met = (
            ("pieces delayed", self.delay_seconds),
            ("pieces overtaken", self.lag_share),
            ("pieces slowed", self.rate),
            ("pieces lost", self.loss_share),
        )
        return [effect for effect, amount in met if amount > 0]

    def delay(self, random: Random, size: int) -> float | None:
        """How long a piece of `size` bytes takes in seconds; None: it is lost for good."""
        seconds = BASE_SECONDS
        if self.delay_seconds:
            heavy = 10 if self.is_heavy and random.random() < 0.05 else 1
            seconds += random.expovariate(1 / self.delay_seconds) * heavy
        if random.random() < self.lag_share:
            seconds += random.random() * 0.2
        if self.rate:
            seconds += size / self.rate
        losses = 0
        while self.loss_share and random.random() < self.loss_share:
            seconds += RESEND_SECONDS * 2**losses
            losses += 1
            if losses == LOSSES_MAX:
                return None
        return seconds

    def heal(self) -> None:
        """End all faults of the link but those that block it or let things vanish."""
        self.delay_seconds = self.lag_share = self.loss_share = self.rate = 0.0
        self.is_heavy = False
        self.strikes.clear()


def resolve(host: str, port: int) -> None:
    """Look an address up as the system's resolver does for Python: an error in the text raises
    `UnicodeError`, `ValueError` or `OverflowError`, none of which is an `OSError`."""
    if not -(2**63) <= port < 2**63:
        raise OverflowError("Python int too large to convert to C long")
    if "\0" in host:
        raise ValueError("embedded null character")
    host.encode("idna")
    if not 0 <= port < 2**16:
        raise OverflowError("getsockaddrarg: port must be 0-65535.")


def retransmission(since: float, now: float) -> float:
    """When a piece is next sent, if it was first sent at `since`, and no try until `now` was heard.

    >>> retransmission(10.0, 11.0), retransmission(0.0, 55.0)
    (11.4, 102.2)
    """
    pause, when = RESEND_SECONDS, since + RESEND_SECONDS
    while when <= now:
        pause = min(2 * pause, RESEND_SECONDS_MAX)
        when += pause
    return round(when, 6)
