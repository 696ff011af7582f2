"""Consumer groups that pop, at a node of the fake cluster.

Hand-outs and the results of settlements are those of `raftmq.pop`. There are no unsent leases
here: an answer lists the consumer's messages by the machine, less those that the same connection
has already announced. A connection that closes ends no request.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio

from raftmq.client.pop.lease_bits import lowest
from raftmq.log.record import Kind, Record
from raftmq.machine.commands import encode_commands
from raftmq.pop import calls
from raftmq.pop.policy import Order
from raftmq.results import Changed, Refused, Result
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import FetchedQueue
from raftmq.wire.frame import Frame
from raftmq.wire.messages import Done, ErrorReply, FrameKind
from raftmq.wire.popping import (
    Claim,
    Claimed,
    Lease,
    Leave,
    Pop,
    Popped,
    ResetGroup,
    Settle,
    Settled,
)

if TYPE_CHECKING:
    from .fake_cluster import FakeNode, Log
    from .pipe import Pipe

Answer = tuple[bytes, list[bytes]]
Key = tuple[int, int, int]


class FakePopping:
    """The POP side of one node."""

    def __init__(self, node: "FakeNode") -> None:
        self._node = node
        self._cluster = node.cluster
        # Messages announced on a connection: (pipe, consumer) → token → bits.
        self._told: dict[tuple[int, Key], dict[int, int]] = {}
        # A request that is no longer the last one of its consumer is not answered.
        self._turns: dict[Key, int] = {}
        self.answer_messages = 1_000_000
        """No answer has more messages; the rest follows."""
        self.handlers: dict[FrameKind, Callable[[Frame], Answer | ErrorReply]] = {
            FrameKind.POP: self._ask,
            FrameKind.SETTLE: self._settle,
            FrameKind.LEAVE: self._leave,
            FrameKind.RESET: self._reset,
            FrameKind.CLAIM: self._claim,
        }

    def now_ms(self) -> int:
        return self._cluster.clock_ms + round(anyio.current_time() * 1000)

    def pass_time(self, log: "Log") -> None:
        """Let all due timers run."""
        if log.machine.pop_groups.attached:
            self.run(log, calls.Tick())

    def run(self, log: "Log", *commands: calls.Call) -> Result:
        """One record; the result of the last command."""
        payload = encode_commands(commands)
        results = log.add_all(Kind.COMMANDS, payload, self.now_ms())
        self._cluster.tell()
        return results[-1]

    async def pop(self, pipe: "Pipe", frame: Frame) -> None:
        """Answer a POP when there is something, or when its wait is over."""
        await anyio.sleep(self._cluster.pop_seconds)
        request = unpack(Pop, frame.header)
        send = partial(self._node.send, pipe, frame)
        refused = self._ask(frame)
        if isinstance(refused, ErrorReply):
            await send(refused)
            return
        key = (request.partition_group, request.number, request.consumer)
        turn = self._turns[key]
        told = self._told.setdefault((id(pipe), key), {})
        if request.is_resumed:
            told.clear()
        log = self._cluster.logs[request.partition_group]
        until = self.now_ms() + request.wait_ms
        while self._turns[key] == turn and not pipe.is_closed:
            error = self._node.not_leader(request.partition_group)
            if error is not None:
                await send(error)
                return
            popped, body = self._answer(log, request, told)
            now = self.now_ms()
            if popped.leases or now >= until:
                await send((pack(popped), body))
                return
            changed = self._cluster.changed
            timer = log.machine.pop_groups.next_timer
            stop = until if timer is None else min(until, max(timer, now + 1))
            with anyio.move_on_after((stop - now) / 1000):
                await changed.wait()
            if timer is not None and timer <= self.now_ms():
                self.run(log, calls.Tick())

    def _ask(self, frame: Frame) -> Answer | ErrorReply:
        request = unpack(Pop, frame.header)
        error = self._node.not_leader(request.partition_group)
        if error is not None:
            return error
        key = (request.partition_group, request.number, request.consumer)
        self._turns[key] = self._turns.get(key, 0) + 1
        log = self._cluster.logs[request.partition_group]
        opening = self._opening(log, request.number)
        if isinstance(opening, ErrorReply):
            return opening
        ask = calls.Ask(
            request.number,
            request.consumer,
            request.count,
            request.wait_ms,
            request.invisible_ms,
            request.is_kept,
        )
        result = self.run(log, *opening, ask)
        if isinstance(result, Refused):
            return ErrorReply(result.reason.value, result.message, last=result.last)
        return pack(Popped([], [])), []

    def _settle(self, frame: Frame) -> Answer | ErrorReply:
        request = unpack(Settle, frame.header)
        error = self._node.not_leader(request.partition_group)
        if error is not None:
            return error
        steps = [
            calls.Step(x.action, x.token, x.base, x.bits, x.delay_ms, x.reason)
            for x in request.items
        ]
        settle = calls.Settle(
            request.number, request.consumer, request.sequence, steps, request.by_handle
        )
        result = self.run(self._cluster.logs[request.partition_group], settle)
        if isinstance(result, Refused):
            return ErrorReply(result.reason.value, result.message, last=result.last)
        assert isinstance(result, Changed)
        return pack(Settled.of(result.value)), []

    def _leave(self, frame: Frame) -> Answer | ErrorReply:
        request = unpack(Leave, frame.header)
        error = self._node.not_leader(request.partition_group)
        if error is not None:
            return error
        key = (request.partition_group, request.number, request.consumer)
        self._turns[key] = self._turns.get(key, 0) + 1
        log = self._cluster.logs[request.partition_group]
        self.run(log, calls.Leave(request.number, request.consumer))
        return pack(Done()), []

    def _reset(self, frame: Frame) -> Answer | ErrorReply:
        request = unpack(ResetGroup, frame.header)
        error = self._node.not_leader(request.partition_group)
        if error is not None:
            return error
        log = self._cluster.logs[request.partition_group]
        opening = self._opening(log, request.number)
        if isinstance(opening, ErrorReply):
            return opening
        self.run(log, *opening, calls.ResetGroup(request.number, request.queues, request.offsets))
        return pack(Done()), []

    def _claim(self, frame: Frame) -> Answer | ErrorReply:
        request = unpack(Claim, frame.header)
        error = self._node.not_leader(request.partition_group)
        if error is not None:
            return error
        log = self._cluster.logs[request.partition_group]
        opening = self._opening(log, request.number)
        if isinstance(opening, ErrorReply):
            return opening
        claim = calls.Claim(request.number, request.key, request.claimant, request.ttl_ms)
        result = self.run(log, *opening, claim)
        assert isinstance(result, Changed)
        return pack(Claimed(*result.value)), []

    def _opening(self, log: "Log", number: int) -> list[calls.Call] | ErrorReply:
        groups = self._cluster.catalog.consumer_groups
        if number not in groups.attachments:
            return ErrorReply("unknown_group", f"there is no attachment {number}")
        if number in log.machine.pop_groups.attached:
            return []
        attachment = groups.attachments[number]
        group = groups.groups[attachment.consumer_group]
        queues = [q for q in log.machine.ends if q >> 16 == attachment.topic_id]
        starts = [-1 if attachment.is_latest else 0 for _ in queues]
        return [
            calls.OpenGroup(
                number,
                attachment.topic_id,
                group.name,
                group.version,
                group.mode,
                group.policy,
                queues,
                starts,
            )
        ]

    def _answer(self, log: "Log", request: Pop, told: dict[int, int]) -> tuple[Popped, list[bytes]]:
        """Leases that the consumer holds and was not yet told of."""
        group = log.machine.pop_groups.attached[request.number].group
        leases: list[Lease] = []
        wanted: dict[int, dict[int, Record]] = {}
        room, is_more, now = self.answer_messages, False, self.now_ms()
        for handed in group.held_by(request.consumer, now):
            base, bits, attempt = handed.messages
            new = bits << base & ~told.get(handed.token, 0)
            chosen = lowest(new, room)
            room -= chosen.bit_count()
            is_more |= chosen != new
            if not chosen:
                continue
            told[handed.token] = told.get(handed.token, 0) | chosen
            first = (chosen & -chosen).bit_length() - 1
            data = (chosen >> first).to_bytes(chosen.bit_length() // 8 + 1, "little")
            leases.append(
                Lease(
                    handed.token,
                    handed.queue,
                    attempt,
                    first,
                    data,
                    handed.deadline,
                    handed.deadline - now,
                )
            )
            batches = wanted.setdefault(handed.queue, {})
            for start, record in log.batches.get(handed.queue, []):
                count = log.counts[start, handed.queue]
                if chosen >> start & (1 << count) - 1:
                    batches[start] = record
        queues: list[FetchedQueue] = []
        body: list[bytes] = []
        for queue, batches in wanted.items():
            taken = sorted(batches.items())
            queues.append(log.describe(queue, taken))
            body += [bytes(record.payload) for _, record in taken]
        return Popped(leases, queues, is_more, group.order is Order.QUEUE), body
