"""Changes that are sent again: a refusal may come from an attempt that took effect."""

import pytest

from raftmq.client import connect
from raftmq.errors import OutcomeUnknown, Reason, Rejected
from raftmq.wire.messages import FrameKind

from .fake_cluster import URL, FakeCluster, Fate

pytestmark = pytest.mark.anyio


async def test_refusal_of_a_change_that_an_earlier_attempt_may_have_done_leaves_it_open(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    fates = [Fate.APPLIED_AND_CUT]
    async with connect(URL, world=cluster) as mq:
        cluster.fate = lambda _, f: (
            fates.pop() if f.kind == FrameKind.ADMIN and fates else Fate.DONE
        )
        with pytest.raises(OutcomeUnknown, match="an earlier attempt of ADMIN may have been done"):
            await mq.admin.delete_topic("orders")
        with pytest.raises(Rejected) as refused:
            await mq.admin.delete_topic("orders")
        assert refused.value.reason is Reason.UNKNOWN_TOPIC
        fates.append(Fate.APPLIED_AND_CUT)
        with pytest.raises(Rejected) as refused:
            await mq.admin.create_topic("a topic")
        assert refused.value.reason is Reason.BAD_NAME


async def test_claim_whose_release_was_not_answered_is_not_said_to_be_over(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic()
    async with (
        connect(URL, world=cluster) as mq,
        mq.consumer("orders", group="g", mode="pop") as consumer,
    ):
        claim = await consumer.claim("k", ttl=60)
        assert claim is not None
        fates = [Fate.APPLIED_AND_CUT]
        cluster.fate = lambda _, f: (
            fates.pop() if f.kind == FrameKind.CLAIM and fates else Fate.DONE
        )
        with pytest.raises(OutcomeUnknown):
            await claim.release()
        assert not await claim.release()
        again = await consumer.claim("k", ttl=60)
        assert again is not None
        assert await again.release()
