"""Claims: a consumer claims a piece of work, so that no other consumer does the work, too.

    claim = await consumer.claim("payment-17", ttl=86_400)
    if claim is not None:      # else another consumer has it, or did it
        try:
            pay()
        except PaymentFailed:
            await claim.release()

All claims of a consumer group on a topic are in the partition group of the topic's first queue.
That group never changes, so every claim of a key goes to one leader.
"""

from raftmq.client.arguments import milliseconds
from raftmq.client.routing.requests import ask_leader
from raftmq.client.routing.router import Router
from raftmq.errors import Reason, Rejected
from raftmq.machine.claims import KEY_BYTES_MAX, TTL_MS_MAX
from raftmq.wire.codec import unpack
from raftmq.wire.frame import Frame
from raftmq.wire.messages import ErrorReply
from raftmq.wire.popping import Claim, Claimed


class HeldClaim:
    """A claimed key, held while its time runs. Made by `PopConsumer.claim`."""

    def __init__(self, router: Router, message: Claim) -> None:
        self._router = router
        self._message = message

    async def release(self, *, timeout: float | None = None) -> bool:
        """Give the key up, so that another consumer may try; False if its time was over already.

        Safe to repeat. Cancelling leaves the key held or not.

        Raises:
            Unavailable: the time ran out.
            OutcomeUnknown: the time ran out, or an answer was lost and the key is no longer held.
        """
        message = self._message
        given_up = Claim(
            message.partition_group, message.number, message.key, message.claimant, ttl_ms=0
        )
        try:
            await ask_leader(
                self._router, given_up, Claimed, timeout=timeout, refusal_in=_fenced_unless_ours
            )
        except Rejected as error:
            if error.reason is not Reason.FENCED:
                raise
            return False
        return True


def _fenced_unless_ours(frame: Frame) -> ErrorReply | None:
    """Make a claim that is not held a refusal: a lost answer may have been to its release."""
    if unpack(Claimed, frame.header).is_ours:
        return None
    return ErrorReply(Reason.FENCED.value, "the claim was over already")


async def claim(
    router: Router,
    group: int,
    number: int,
    claimant: int,
    key: str | bytes,
    ttl: float,
    timeout: float | None,
) -> HeldClaim | None:
    """See `PopConsumer.claim`. `group`: the partition group; `number`: the attachment's."""
    name = key.encode() if isinstance(key, str) else bytes(key)
    ttl_ms = milliseconds(ttl, "ttl")
    if not 1 <= len(name) <= KEY_BYTES_MAX or not 1 <= ttl_ms <= TTL_MS_MAX:
        days = TTL_MS_MAX // 86_400_000
        message = f"a key has 1 to {KEY_BYTES_MAX} bytes, and a claim runs for up to {days} days"
        raise Rejected(Reason.BAD_ARGUMENT, message)
    wanted = Claim(group, number, name, claimant, ttl_ms)
    claimed = await ask_leader(router, wanted, Claimed, timeout=timeout)
    return HeldClaim(router, wanted) if claimed.is_ours else None
