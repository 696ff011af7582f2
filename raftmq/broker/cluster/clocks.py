"""The time by the clocks of a majority of a group's nodes: retention by age trusts no single clock.

A leader asks the other nodes now and then what their clocks show. The *agreed* time of a group is
the latest that a majority of its voters has reached:

    voter         1: 12:00     2: 12:00     3: four days later          agreed: 12:00

So one wrong clock deletes nothing, whichever node leads and however long the clock is wrong. A
cluster that was off for a week goes on at once, as its clocks are right.

All clocks may be wrong together: they have one source of time, or the node is alone. For that case
there is a second rule: when this node's own clock jumps against its monotonic time, nothing is old
for an hour, or for the longest `log.retention_ms` (also of topics) if that is less.

Invariants:
- The clock of a voter that has not answered for `FRESH_SECONDS` counts as 1970: without a majority
  nothing is old.
- Retention by size needs no clock and goes on.

Left out: clocks of a majority that are all ahead for more than an hour; a lone node that starts
with a wrong clock.

Sources: the agreement of clocks by Marzullo (1984), of which this is the one-sided case.
"""

from contextlib import suppress

import trio

from raftmq.broker.dynamic.known import TOPIC_RETENTION
from raftmq.broker.host import Host
from raftmq.broker.replica.group import Group, node_of
from raftmq.errors import Unavailable
from raftmq.wire.messages import FrameKind, Probe, ProbeReply

from .peers import PeerLink

ASK_SECONDS = 20.0
"""Pause between two rounds of asking."""
ANSWER_SECONDS_MAX = 5.0
"""An answer that took longer says little about the time now."""
FRESH_SECONDS = 60.0
"""An answer older than this no longer counts."""
JUMP_MS = 60_000
"""A clock that moves by more than this between two looks, against monotonic time, has jumped."""
DISTRUST_MS_MAX = 3_600_000
"""The longest time for which a jump of this node's clock holds up retention by age."""


class Clocks:
    """The clocks of a cluster, as one node knows them."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._asked_at = -ASK_SECONDS
        # Node → when it answered, and its clock's lead over our monotonic time, in milliseconds.
        self._leads: dict[int, tuple[float, float]] = {}
        self._own_lead: float | None = None
        self._trusted_from = 0.0

    def look(self, *, is_asking: bool) -> None:
        """Watch this node's clock, and ask the others for theirs if it is time and `is_asking`."""
        now = trio.current_time()
        lead = self._node.now_ms() - now * 1000
        if self._own_lead is not None and abs(lead - self._own_lead) > JUMP_MS:
            self._trusted_from = now + self._distrust_ms() / 1000
        self._own_lead = lead
        if is_asking and now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            for link in self._node.links.members():
                self._node.start_soon(self._ask, link)

    def _distrust_ms(self) -> int:
        of_topics = self._node.catalog.settings.numbers_of_topics(TOPIC_RETENTION).values()
        # What stays for ever (0) needs no trust in clocks.
        return min(DISTRUST_MS_MAX, max(self._node.settings.log.retention_ms, *of_topics, 0))

    async def _ask(self, link: PeerLink) -> None:
        probe = Probe(self._node.id, self._node.incarnation)
        with trio.move_on_after(ANSWER_SECONDS_MAX), suppress(Unavailable):
            reply = await link.ask(FrameKind.PROBE, probe, ProbeReply)
            now = trio.current_time()
            self._leads[link.peer.id] = now, reply.now_ms - now * 1000

    def agreed_ms(self, group: Group) -> int:
        """The time that a majority of a group's voters has reached, in milliseconds since 1970; 0
        if that is not known: nothing is old then."""
        now = trio.current_time()
        if now < self._trusted_from:
            return 0
        conf = group.conf_state
        voters = {node_of(member) for member in (*conf.voters, *conf.voters_outgoing)}
        shown = sorted((self._shown(node, now) for node in voters), reverse=True)
        return shown[len(voters) // 2] if shown else 0

    def _shown(self, node: int, now: float) -> int:
        if node == self._node.id:
            return self._node.now_ms()
        asked_at, lead = self._leads.get(node, (-FRESH_SECONDS, 0.0))
        return int(lead + now * 1000) if now - asked_at < FRESH_SECONDS else 0
