"""A node's wall clock, which stamps records, and the pace of its ticks; both can be wrong.

    wall = true + offset + drift x time + swing x sin(time) +- strobe

The drift belongs to the machine's oscillator, so a drift changes the length of the ticks as well.
"""

from math import sin

from raftmq.chaos.core.faults.effects import TOLD
from raftmq.chaos.core.loop import Loop

START_MS = 1_800_000_000_000
"""The time that a right clock shows at the start of a run, in ms since 1970."""

SWING_SECONDS = 5.0
"""The period of a swinging clock is 2 pi times this."""


class Clock:
    """One clock. It is state."""

    __slots__ = ("_loop", "drift", "offset_ms", "strobe_ms", "swing_ms")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.offset_ms = 0.0
        self.drift = 0.0
        """Share by which the clock runs fast; negative: slow."""
        self.strobe_ms = 0.0
        """The clock jumps ahead by this and back again, every 7 ms."""
        self.swing_ms = 0.0

    def now_ms(self) -> int:
        """The time that the clock shows, in ms since 1970."""
        true = self._loop.now_us / 1000
        wrong = self.offset_ms + self.drift * true
        if self.strobe_ms and int(true / 7) % 2:
            wrong += self.strobe_ms
        if self.swing_ms:
            wrong += self.swing_ms * sin(true / 1000 / SWING_SECONDS)
        if wrong:
            self._loop.effects[TOLD] += int(true + wrong) != int(true)
        return START_MS + int(true + wrong)

    def tick_us(self, tick_us: int) -> int:
        """How long a tick of `tick_us` takes on this machine, whose oscillator may drift."""
        if not self.drift:
            return tick_us
        self._loop.effects[TOLD] += 1
        return int(tick_us / (1.0 + self.drift))

    def set_right(self) -> None:
        """End all faults of the clock, the offset included."""
        self.offset_ms = self.drift = self.strobe_ms = self.swing_ms = 0.0
