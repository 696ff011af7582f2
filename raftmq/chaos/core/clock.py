"""A node's wall clock, which stamps records, and the pace of its ticks; both can be wrong.

    wall = true + offset + drift x time + swing x sin(time) +- strobe

The drift is that of the machine's oscillator, so that it changes the ticks as well.
"""

from math import sin

from raftmq.chaos.core.faults.effects import TOLD
from raftmq.chaos.core.loop import Loop

START_MS = 1_800_000_000_000
"""What right clocks show at the begin of a run, in ms since 1970."""

SWING_SECONDS = 5.0
"""A swinging clock does so about once in this many seconds, times 2 pi."""


class Clock:
    """One clock. It is state."""

    __slots__ = ("_loop", "drift", "offset_ms", "strobe_ms", "swing_ms")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.offset_ms = 0.0
        self.drift = 0.0
        """Share by which it runs fast."""
        self.strobe_ms = 0.0
        """It jumps back and forth by this, all the time."""
        self.swing_ms = 0.0

    def now_ms(self) -> int:
        """What it shows."""
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
        """How long a tick takes here."""
        if not self.drift:
            return tick_us
        self._loop.effects[TOLD] += 1
        return int(tick_us / (1.0 + self.drift))

    def set_right(self) -> None:
        """No faults any more; the offset goes too."""
        self.offset_ms = self.drift = self.strobe_ms = self.swing_ms = 0.0
