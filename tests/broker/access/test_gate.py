"""Users at a node's gate: who gets in, what passes, and what ends when a right is taken away."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

import raftmq
from raftmq.access.scram import Proof
from raftmq.broker.access import gate, logins
from raftmq.broker.serve import connection
from raftmq.client.routing.requests import ask_leader
from raftmq.errors import OutcomeUnknown, Reason, Rejected
from raftmq.machine.catalog.access import PutUser
from raftmq.tls.authority import Authority
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.access import SCRAM, TOKEN, LoggedIn, LogIn
from raftmq.wire.codec import unpack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import (
    PROTOCOL,
    REPLY,
    Admin,
    AdminDone,
    ErrorReply,
    FrameKind,
    Hello,
    Metadata,
    Probe,
    Status,
    Welcome,
)
from tests.tls.stranger import Stranger, stranger

from .guarded import PASSWORD, ROOT, Guarded, make_user, with_guarded

CLIENT = Hello(PROTOCOL, "", 0, "", "stranger")


@asynccontextmanager
async def refused(reason: Reason) -> AsyncGenerator[list[str]]:
    """The block raises `Rejected` for this reason; its text is in the list afterwards."""
    texts: list[str] = []
    with pytest.raises(Rejected) as caught:
        yield texts
    assert caught.value.reason is reason, caught.value
    texts.append(str(caught.value))


async def twice(call: Callable[[], Awaitable[object]]) -> None:
    """Make a call; again, if it was under way when its connection was ended: then it cannot know
    whether it took effect."""
    try:
        await call()
    except OutcomeUnknown:
        await call()


# Who gets in


def test_a_client_without_a_login_is_told_to_give_one(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with refused(Reason.UNAUTHENTICATED) as texts, node.by_login():
            pass
        assert "`login`" in texts[0]
        assert "certificate" in texts[0]

    with_guarded(scenario, tmp_path)


def test_users_come_by_certificate_by_password_and_by_token(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice", "admin topic alice-*")
            token = await root.access.make_token("alice", note="for tests")
        async with node.as_user("alice") as alice:
            await alice.admin.create_topic("alice-1")
        async with node.by_login(raftmq.Login(token=token)) as alice:
            await alice.admin.create_topic("alice-2")
        async with node.by_certificate("alice") as alice:
            await alice.admin.create_topic("alice-3")
            topics = [topic.name for topic in await alice.admin.list_topics()]
        assert topics == ["alice-1", "alice-2", "alice-3"]

    with_guarded(scenario, tmp_path)


def test_a_wrong_password_an_unknown_user_and_a_wrong_token_are_refused_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "DELAY_SECONDS", 0.0)

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice")
            token = await root.access.make_token("alice")
        wrong = [
            raftmq.Login("alice", PASSWORD + "!"),
            raftmq.Login("bob", PASSWORD),
            raftmq.Login(token=token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]),
            raftmq.Login(token=f"raftmq_{'0' * 16}_{'A' * 43}"),
        ]
        texts = []
        for login in wrong:
            async with refused(Reason.UNAUTHENTICATED) as said, node.by_login(login):
                pass
            texts += said
        # The client names the login, and the node says no more of one than of another.
        assert len({text.partition(" is not valid")[2] for text in texts}) == 1
        assert node.node.gate.failures.count == len(wrong)

    with_guarded(scenario, tmp_path)


def test_the_key_behind_the_salts_of_nobody_is_the_nodes_own(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            for command in (PutUser("alice"), PutUser("alice", seed=bytes(32))):
                plain = msgspec.to_builtins(command, builtin_types=(bytes,))
                for request in (0, 7):
                    await ask_leader(root._router, Admin(plain, request), AdminDone)
        seed = node.node.catalog.access.seed
        assert len(seed) == 32
        assert seed != bytes(32)

    with_guarded(scenario, tmp_path)


def test_a_login_needs_tls() -> None:
    with pytest.raises(Rejected) as caught:
        raftmq.connect("raftmq://127.0.0.1:1", login=raftmq.Login("alice", PASSWORD))
    assert "raftmqs://" in str(caught.value)


def test_a_login_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(Rejected) as caught:
        raftmq.connect("raftmqs://alice:secret@127.0.0.1:1")
    assert "login" in str(caught.value)
    assert "secret" not in str(caught.value)


async def greeted(peer: Stranger) -> Welcome:
    frame = await peer.ask(FrameKind.HELLO, CLIENT)
    assert frame.kind == FrameKind.HELLO | REPLY
    return unpack(Welcome, frame.header)


def test_before_the_login_nothing_else_is_answered(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with stranger(node.port, node.context) as peer:
            assert (await greeted(peer)).wants_login
            for kind, message in (
                (FrameKind.METADATA, Metadata(None)),
                (FrameKind.STATUS, Status()),
                (FrameKind.ADMIN, Admin(["create_topic", "mine", 1])),
            ):
                frame = await peer.ask(kind, message)
                refusal = unpack(ErrorReply, frame.header)
                assert (frame.kind, refusal.code) == (FrameKind.ERROR, "unauthenticated")
            frame = await peer.ask(FrameKind.PROBE, Probe(1, "folder"))
            assert frame.kind == FrameKind.ERROR
            # A longer frame than a login has any use for.
            await peer.send(b"".join(encode_frame(FrameKind.PRODUCE, 9, b"", [bytes(70_000)])))
            assert "65536" in (await peer.refusal()).message

    with_guarded(scenario, tmp_path)


def test_a_connection_that_does_not_log_in_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELLO_SECONDS_MAX", 0.5)

    async def scenario(node: Guarded) -> None:
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            assert "no login" in (await peer.refusal()).message

    with_guarded(scenario, tmp_path)


def test_an_exchange_that_was_overheard_is_of_no_use(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice")
        proof = Proof("alice", PASSWORD)
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            challenge = await say(peer, LogIn(SCRAM, proof.first))
            final = proof.final(challenge.data)
            assert (await say(peer, LogIn(SCRAM, final))).user == "alice"
        async with stranger(node.port, node.context) as thief:
            await greeted(thief)
            assert (await say(thief, LogIn(SCRAM, proof.first))).data != challenge.data
            frame = await thief.ask(FrameKind.LOG_IN, LogIn(SCRAM, final))
            assert unpack(ErrorReply, frame.header).code == "unauthenticated"

    with_guarded(scenario, tmp_path)


async def say(peer: Stranger, message: LogIn) -> LoggedIn:
    frame = await peer.ask(FrameKind.LOG_IN, message)
    assert frame.kind == FrameKind.LOG_IN | REPLY, unpack(ErrorReply, frame.header)
    return unpack(LoggedIn, frame.header)


def test_attempts_after_a_failure_wait_and_those_of_others_do_not(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice")
            await make_user(root, "bob")
        for _ in range(3):
            async with refused(Reason.UNAUTHENTICATED), node.by_login(raftmq.Login("alice", "x")):
                pass
        waits = node.node.gate.failures.wait
        assert waits("", "bob") == 0.0
        async with node.as_user("bob"):
            pass
        begun = trio.current_time()
        async with node.as_user("alice"):
            # 0.2 s after the first failure, 0.4 after the second, 0.8 after the third.
            assert trio.current_time() - begun >= logins.DELAY_SECONDS
        assert waits("", "alice") == 0.0

    with_guarded(scenario, tmp_path)


def test_mechanisms_that_are_unknown_and_late_logins_are_refused(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice", "describe cluster")
            token = await root.access.make_token("alice")
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            frame = await peer.ask(FrameKind.LOG_IN, LogIn("PLAIN", "alice"))
            assert "PLAIN" in unpack(ErrorReply, frame.header).message
            assert (await say(peer, LogIn(TOKEN, token))).user == "alice"
            assert (await peer.ask(FrameKind.STATUS, Status())).kind == FrameKind.STATUS | REPLY
            frame = await peer.ask(FrameKind.LOG_IN, LogIn(TOKEN, token))
            assert "before" in unpack(ErrorReply, frame.header).message
            # What nodes send is no user's.
            frame = await peer.ask(FrameKind.PROBE, Probe(1, "folder"))
            assert unpack(ErrorReply, frame.header).code == "tls"

    with_guarded(scenario, tmp_path)


def test_a_certificate_of_several_users_is_refused(tmp_path: Path) -> None:
    both = frozenset(CertificateName("c", USER, name) for name in ("bob", "alice"))
    assert gate.users_in(both | {CertificateName("d", USER, "eve")}, "c") == ["alice", "bob"]

    async def scenario(node: Guarded) -> None:
        Authority(node.certs).issue(CertificateName("d", USER, "eve"), (), days=1.0)
        async with refused(Reason.WRONG_CLUSTER), node.by_certificate("eve"):
            pass

    with_guarded(scenario, tmp_path)


# What passes


def test_a_user_may_do_what_the_rules_allow_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            for topic in ("orders-1", "orders-2", "secret"):
                await root.admin.create_topic(topic, 1)
            await make_user(root, "alice", "write topic orders-*", "read group billing")
            async with root.producer("secret") as producer:
                await producer.send(b"nobody's business")
        async with node.as_user("alice") as alice:
            async with alice.producer("orders-2") as producer:
                await producer.send(b"an order")
            async with refused(Reason.DENIED) as texts, alice.producer("secret") as producer:
                await producer.send(b"mine")
            assert "secret" in texts[0]
            async with refused(Reason.DENIED) as texts:
                await alice.admin.create_topic("orders-3")
            assert "raftmq acl allow alice admin topic orders-3" in texts[0]
            # Writing shows that the topic exists; it gives none of its messages.
            async with (
                refused(Reason.DENIED),
                alice.consumer("orders-2", queues=[0]) as consumer,
            ):
                await consumer.fetch(1, wait=5)
            async with (
                refused(Reason.DENIED),
                alice.consumer("orders-2", group="billing", mode="pop") as popper,
            ):
                await popper.pop(1, wait=5)
            for call in (
                alice.admin.status(1),
                alice.admin.transfer(1, to=1),
                alice.access.users(),
                alice.access.allow("alice", "any", "topic", "*"),
            ):
                async with refused(Reason.DENIED):
                    await call
            assert [each.name for each in await alice.admin.list_topics()] == [
                "orders-1",
                "orders-2",
            ]

    with_guarded(scenario, tmp_path)


def test_lists_show_a_user_its_own_groups_only(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("orders", 1)
            for group in ("billing", "audit"):
                await root.admin.attach("orders", group)
                await root.admin.subscribe("orders", group, "paid")
            await make_user(root, "alice", "read group billing", "pop topic orders")
        async with node.as_user("alice") as alice:
            assert [each.name for each in await alice.admin.consumer_groups()] == ["billing"]
            (subscription,) = await alice.admin.list_subscriptions()
            assert subscription.group == "billing"

    with_guarded(scenario, tmp_path)


def test_without_rules_an_open_cluster_allows_and_a_denial_holds(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.access.put_user("alice", PASSWORD)
            await root.access.deny("*", "any", "topic", "secret*")
        async with node.as_user("alice") as alice:
            await alice.admin.create_topic("orders")
            async with refused(Reason.DENIED):
                await alice.admin.create_topic("secret-1")
        async with node.by_certificate(ROOT) as root:
            verdict = await root.access.judge("alice", "admin", "topic", "secret-1")
            assert (verdict.is_allowed, verdict.why) == (
                False,
                "denied by: deny * any topic secret*",
            )
            verdict = await root.access.judge(ROOT, "admin", "topic", "secret-1")
            assert verdict.is_allowed
            assert "administrator" in verdict.why

    with_guarded(scenario, tmp_path, is_open=True)


def test_who_administers_the_cluster_does_not_change_an_administrator(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, ROOT)
            await make_user(root, "deputy", "admin cluster")
            token = (await root.access.make_token(ROOT)).split("_")[1]
        async with node.as_user("deputy") as deputy:
            await deputy.access.put_user("alice", PASSWORD)
            for call in (
                deputy.access.put_user(ROOT, "a password of mine"),
                deputy.access.drop_user(ROOT),
                deputy.access.make_token(ROOT),
                deputy.access.revoke_token(token),
            ):
                async with refused(Reason.DENIED) as texts:
                    await call
                assert "who is one" in texts[0]

    with_guarded(scenario, tmp_path)


def test_no_user_is_made_before_the_cluster_knows_its_users(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        node.node.gate.is_on = False
        async with node.by_login() as anybody:
            for call in (
                anybody.access.put_user(ROOT, PASSWORD),
                anybody.access.make_token(ROOT),
                anybody.access.allow("alice", "any", "topic", "*"),
            ):
                async with refused(Reason.BAD_ARGUMENT) as texts:
                    await call
                assert "access.is_on" in texts[0]
            await anybody.admin.create_topic("orders")
            assert (await anybody.access.judge("alice", "read", "topic", "x")).is_allowed

    with_guarded(scenario, tmp_path)


# What ends


def test_a_fetch_that_waits_ends_when_its_right_is_taken_away(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("orders", 1)
            await make_user(root, "alice", "read topic orders")
            (rule,) = await root.access.rules("alice")
            async with (
                node.as_user("alice") as alice,
                alice.consumer("orders", queues=[0]) as consumer,
            ):
                assert not await consumer.fetch(1, wait=0.2)
                begun = trio.current_time()
                await root.access.drop_rule(rule)
                async with refused(Reason.DENIED):
                    await consumer.fetch(1, wait=30)
                assert trio.current_time() - begun < 5

    with_guarded(scenario, tmp_path)


def test_messages_in_hand_are_settled_without_the_topic_and_not_without_the_group(
    tmp_path: Path,
) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("orders", 1)
            await root.admin.create_consumer_group("billing", schedule=[0.1])
            await make_user(root, "alice", "pop topic orders", "read group billing")
            async with root.producer("orders") as producer:
                for n in range(2):
                    await producer.send(f"order {n}".encode())
            rules = {rule.resource: rule for rule in await root.access.rules("alice")}
            async with (
                node.as_user("alice") as alice,
                alice.consumer(
                    "orders", group="billing", mode="pop", prefetch=0, invisible=2.0
                ) as consumer,
            ):
                first, second = await consumer.pop(2, wait=10)
                await root.access.drop_rule(rules["topic"])
                await first.ack()
                async with refused(Reason.DENIED):
                    await consumer.pop(1, wait=5)
                await root.access.drop_rule(rules["group"])
                async with refused(Reason.DENIED):
                    await twice(second.ack)
            # The message that was not acknowledged comes to another consumer of the group.
            async with root.consumer("orders", group="billing", mode="pop") as other:
                (again,) = await other.pop(2, wait=10)
                assert (again.body, again.attempt) == (second.body, 2)
                await again.ack()

    with_guarded(scenario, tmp_path)


def test_a_user_that_is_deleted_is_out_at_once(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("orders", 1)
            await make_user(root, "alice", "write topic orders")
            token = await root.access.make_token("alice")
            async with (
                node.as_user("alice") as by_password,
                node.by_login(raftmq.Login(token=token)) as by_token,
                by_password.producer("orders") as one,
                by_token.producer("orders") as two,
            ):
                await one.send(b"1")
                await two.send(b"2")
                assert await root.access.drop_user("alice")
                for producer in (one, two):
                    async with refused(Reason.UNAUTHENTICATED):
                        await twice(partial(producer.send, b"3"))
            assert not await root.access.drop_user("alice")
            assert await root.access.users() == []
            assert await root.access.rules() == []
            (queue,) = (await root.admin.describe_topic("orders")).queues
            assert queue.end == 2

    with_guarded(scenario, tmp_path)


def test_a_token_ends_with_its_time_and_when_it_is_revoked(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice", "admin topic *")
            short = await root.access.make_token("alice", lifetime=1.5)
            long = await root.access.make_token("alice", lifetime=None)
            async with (
                node.by_login(raftmq.Login(token=short)) as one,
                node.by_login(raftmq.Login(token=long)) as two,
            ):
                await one.admin.create_topic("t")
                await two.admin.create_topic("t")
                await trio.sleep(1.6)
                async with refused(Reason.UNAUTHENTICATED):
                    await twice(partial(one.admin.create_topic, "t"))
                await two.admin.create_topic("t")
                assert await root.access.revoke_token(long.split("_")[1])
                async with refused(Reason.UNAUTHENTICATED):
                    await twice(partial(two.admin.create_topic, "t"))

    with_guarded(scenario, tmp_path)


def test_a_password_is_changed_without_an_interruption(tmp_path: Path) -> None:
    new = "a better one"

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice", "admin topic *")
            async with node.as_user("alice") as before:
                await before.admin.create_topic("t")
                await root.access.put_user("alice", new, keep_old=1.5)
                await before.admin.create_topic("t")
                async with (
                    node.as_user("alice"),
                    node.by_login(raftmq.Login("alice", new)) as after,
                ):
                    await after.admin.create_topic("t")
                    await trio.sleep(1.6)
                    await after.admin.create_topic("t")
                async with refused(Reason.UNAUTHENTICATED):
                    await twice(partial(before.admin.create_topic, "t"))
            async with refused(Reason.UNAUTHENTICATED), node.as_user("alice"):
                pass

    with_guarded(scenario, tmp_path)


def test_a_connection_with_many_rights_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "ACTS_MAX", 1)

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice", "admin topic *", "admin group *")
            async with node.as_user("alice") as alice:
                await alice.admin.create_topic("one")
                await alice.admin.create_consumer_group("billing")
                for rule in await root.access.rules("alice"):
                    if rule.resource == "group":
                        await root.access.drop_rule(rule)
                async with refused(Reason.DENIED):
                    await twice(partial(alice.admin.create_consumer_group, "billing"))
                await alice.admin.create_topic("two")

    with_guarded(scenario, tmp_path)
