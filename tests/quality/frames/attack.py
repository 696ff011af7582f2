"""An attack: connections to one node, each with bursts of wrong frames, whose answers are judged.

A burst is sent as one piece. Then the answers are awaited for a while: some requests wait longer,
and some are never answered. A connection ends when the node ends it, or after some bursts.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import trio

from raftmq.errors import ProtocolError
from raftmq.wire.codec import pack
from raftmq.wire.frame import Frame, FrameParser, encode_frame
from raftmq.wire.messages import REPLY, FrameKind

from .corpus import ANSWERS, HEADERS, Things
from .judge import why_not
from .mutations import Sent, mutated
from .stage import FRAME_BYTES_MAX, HELLO, Opens

BURSTS_MAX = 40
"""Bursts on one connection."""
HELLO_SHARE = 0.9
"""Share of the connections that begin with a Hello."""
FINDINGS_MAX = 20
SHOWN_BYTES = 200
"""Bytes of a frame that a finding shows."""


@dataclass
class Outcome:
    """What an attack did, and what it found."""

    frames: int = 0
    """Frames sent."""
    answers: int = 0
    refusals: int = 0
    """Answers that are refusals."""
    connections: int = 0
    ended: int = 0
    """Connections that the node ended."""
    by_mutation: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[int] = field(default_factory=Counter)
    """Answers that are no refusals, by kind of request."""
    findings: list[str] = field(default_factory=list)

    def find(self, text: str) -> None:
        """Note a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(text)


class Attack:
    """One attacker.

    Args:
        opens: opens connections.
        things: what the attacker knows of the cluster.
        user: the attacker; empty: a stranger.
        random: decides all of it.
        outcome: shared by attackers that run at once; None: a new one.
        burst: frames of a burst, at most.
        patience: seconds for which answers are awaited.
    """

    def __init__(
        self,
        opens: Opens,
        things: Things,
        user: str,
        random: Random,
        *,
        outcome: Outcome | None = None,
        burst: int = 8,
        patience: float = 0.02,
    ) -> None:
        self._opens = opens
        self._things = things
        self._user = user
        self._random = random
        self._burst = burst
        self._patience = patience
        # Correlation → requests that may be answered; several, where a number was used again.
        self._asked: dict[int, list[Sent]] = {}
        self._correlation = 0
        self.last: list[Sent] = []
        """The frames of the last burst."""
        self.outcome = Outcome() if outcome is None else outcome

    async def run(self, until: int) -> None:
        """Attack until about `until` frames were sent."""
        while self.outcome.frames < until:
            with suppress(OSError, trio.BrokenResourceError):
                async with self._opens(self._user) as stream:
                    await self._converse(stream)

    async def _converse(self, stream: trio.abc.Stream) -> None:
        random, parser = self._random, FrameParser(FRAME_BYTES_MAX)
        self.outcome.connections += 1
        self._asked.clear()
        if random.random() < HELLO_SHARE:
            data = b"".join(encode_frame(FrameKind.HELLO, 0, pack(HELLO)))
            self._expect(Sent(FrameKind.HELLO, 0, data, "nothing"))
            await stream.send_all(data)
        for _ in range(random.randint(1, BURSTS_MAX)):
            burst = self.last = self._next_burst()
            self.outcome.frames += len(burst)
            with trio.move_on_after(self._patience) as scope:
                await stream.send_all(b"".join(sent.data for sent in burst))
            if scope.cancelled_caught or not await self._listen(stream, parser):
                return

    def _next_burst(self) -> list[Sent]:
        burst: list[Sent] = []
        for _ in range(self._random.randint(1, self._burst)):
            burst.append(self._next())
            if burst[-1].may_end:
                break
        return burst

    def _next(self) -> Sent:
        self._correlation += 1
        sent = mutated(self._things, self._random, self._correlation)
        self.outcome.by_mutation[sent.mutation] += 1
        self._expect(sent)
        return sent

    def _expect(self, sent: Sent) -> None:
        if sent.kind in ANSWERS or sent.kind not in HEADERS:
            self._asked.setdefault(sent.correlation, []).append(sent)

    async def _listen(self, stream: trio.abc.Stream, parser: FrameParser) -> bool:
        """Judge the answers that come for a while; False: the node ended the connection."""
        with trio.move_on_after(self._patience):
            while self._asked:
                data = await stream.receive_some(1 << 16)
                if not data:
                    self.outcome.ended += 1
                    return False
                parser.feed(bytes(data))
                try:
                    for frame in parser.frames():
                        self._judge(frame)
                except ProtocolError as error:
                    self.outcome.find(f"bytes that are no frame: {error}")
                    return False
        return True

    def _judge(self, frame: Frame) -> None:
        outcome = self.outcome
        asked = self._take(frame)
        outcome.answers += 1
        outcome.refusals += frame.kind == FrameKind.ERROR
        if frame.kind != FrameKind.ERROR and asked is not None:
            outcome.by_kind[asked.kind] += 1
        if problem := why_not(frame, asked, self._user):
            shown = "no request" if asked is None else told(asked)
            outcome.find(f"{problem}: {frame.header[:SHOWN_BYTES]!r} answers {shown}")

    def _take(self, frame: Frame) -> Sent | None:
        """The request that a frame answers; None: there is none."""
        requests = self._asked.get(frame.correlation, [])
        kinds = [request.kind | REPLY for request in requests]
        if frame.kind == FrameKind.ERROR:
            index = 0
        else:
            index = kinds.index(frame.kind) if frame.kind in kinds else len(kinds)
        if index >= len(requests):
            return None
        request = requests.pop(index)
        if not requests:
            del self._asked[frame.correlation]
        return request


def told(sent: Sent) -> str:
    """A frame in a line of a finding."""
    return f"{sent.mutation} in kind {sent.kind}: {sent.data[:SHOWN_BYTES].hex()}"
