"""Users at a node's gate: what passes, and what ends when a right is taken away."""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

import raftmq
from raftmq.broker.access import gate
from raftmq.client.routing.requests import ask_leader
from raftmq.errors import Reason
from raftmq.wire.access import TOKEN, LogIn
from raftmq.wire.codec import unpack
from raftmq.wire.messages import (
    Admin,
    AdminDone,
    ErrorReply,
    FindKey,
    FindOffset,
    FindOffsets,
    FrameKind,
)
from raftmq.wire.popping import FindDead, Pop
from tests.tls.stranger import stranger

from .guarded import PASSWORD, ROOT, Guarded, greeted, make_user, refused, say, twice, with_guarded

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


def test_a_user_with_admin_of_the_cluster_does_not_change_an_administrator(tmp_path: Path) -> None:
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


def test_clients_of_a_node_without_a_catalog_try_again(tmp_path: Path) -> None:
    """As one that has just left its cluster: the clients that it still has must not end it."""

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice", "write topic orders")
        groups = dict(node.node.groups)
        node.node.groups.clear()
        await trio.sleep(2 * gate.FRESH_SECONDS)
        with trio.move_on_after(1) as scope:
            async with node.as_user("alice"):
                pass
        assert scope.cancelled_caught  # The client tries again and again.
        node.node.groups.update(groups)
        async with node.as_user("alice") as alice:
            assert await alice.admin.list_topics() == []

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


def test_a_number_tells_no_name(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            topic = await root.admin.create_topic("merger", 1)
            await root.admin.attach("merger", "auditors")
            join = Admin(["join", "merger", "auditors-2", 77, 60_000])
            await ask_leader(root._router, join, AdminDone)
            await make_user(root, "eve", "admin group eve-*")
            token = await root.access.make_token("eve")
        async with stranger(node.port, node.context) as eve:
            await greeted(eve)
            await say(eve, LogIn(TOKEN, token))
            for kind, message in (
                (FrameKind.KEY, FindKey(1, topic.id, b"k", 0, 1)),
                (FrameKind.OFFSETS, FindOffsets([FindOffset(topic.id << 16, 0)])),
                (FrameKind.POP, Pop(1, 1, 1, 1, 0, 0, 1000)),
                (FrameKind.DEAD, FindDead(1, 1)),
            ):
                frame = await eve.ask(kind, message)
                refusal = unpack(ErrorReply, frame.header)
                assert refusal.code == "denied"
                assert "merger" not in refusal.message
                assert "auditors" not in refusal.message
            # A command of the catalog may have a number, too: that of a member.
            for command in (["leave", 77], ["release", 77, [], []]):
                frame = await eve.ask(FrameKind.ADMIN, Admin(command))
                refusal = unpack(ErrorReply, frame.header)
                assert refusal.code == "denied"
                assert "auditors" not in refusal.message
            # The number after the last one is not detached when it comes.
            frame = await eve.ask(FrameKind.ADMIN, Admin(["detach", "x", "eve-g", 2]))
            assert unpack(ErrorReply, frame.header).code == "unavailable"

    with_guarded(scenario, tmp_path)


def test_a_refusal_does_not_tell_whether_the_topic_of_a_name_exists(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("merger", 1)
            await make_user(root, "eve", "any group eve-*")
            token = await root.access.make_token("eve")
        async with stranger(node.port, node.context) as eve:
            await greeted(eve)
            await say(eve, LogIn(TOKEN, token))

            async def told(*command: object) -> tuple[str, str]:
                frame = await eve.ask(FrameKind.ADMIN, Admin(list(command)))
                assert frame.kind == FrameKind.ERROR
                refusal = unpack(ErrorReply, frame.header)
                return refusal.code, refusal.message

            for before, after in (
                (["regrant"], ["eve-g", True]),
                (["detach"], ["eve-g", 0]),
                (["join"], ["eve-g", 7, 60_000]),
                (["attach"], ["eve-g", "pop", False]),
                (["subscribe"], ["eve-g", "a"]),
            ):
                known = await told(*before, "merger", *after)
                unknown = await told(*before, "murmer", *after)
                assert known[0] == "denied"
                assert known == (unknown[0], unknown[1].replace("murmer", "merger"))

    with_guarded(scenario, tmp_path)


def test_a_transaction_is_not_committed_after_its_right_to_write_has_ended(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("orders", 1)
            await make_user(root, "alice", "write topic orders", "write group payments")
            async with node.as_user("alice") as alice, alice.producer("orders") as producer:
                transaction = producer.transaction(group="payments")
                await transaction.__aenter__()
                await transaction.send(b"a message")
                await root.access.deny("alice", "any", "topic", "orders")
                async with refused(Reason.DENIED):
                    await twice(transaction.commit)
            (queue,) = (await root.admin.describe_topic("orders")).queues
            assert queue.end == 0

    with_guarded(scenario, tmp_path)


def test_an_open_cluster_is_not_open_to_administration(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.access.put_user("alice", PASSWORD)
        async with node.as_user("alice") as alice:
            await alice.admin.create_topic("orders")
            async with refused(Reason.DENIED):
                await alice.access.allow("alice", "any", "cluster")

    with_guarded(scenario, tmp_path, is_open=True)


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


def test_a_connection_with_many_rights_is_judged_again_too(
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


# The page's table of tasks


async def _create(bob: raftmq.Client) -> None:
    await bob.admin.create_topic("bob-1", 1)
    await bob.admin.alter_topic("bob-1", 2)
    await bob.admin.delete_topic("bob-1")


async def _send(bob: raftmq.Client) -> None:
    async with bob.producer("orders") as producer:
        await producer.send(b"an order")


async def _consume(bob: raftmq.Client) -> None:
    async with bob.consumer("orders", group="billing") as consumer:
        assert await consumer.fetch(1, wait=5)
        await consumer.commit()


async def _pop(bob: raftmq.Client) -> None:
    async with bob.consumer("orders", group="billing", mode="pop") as consumer:
        popped = await consumer.pop(1, wait=5)
        assert len(popped) == 1
        await popped.ack()


@pytest.mark.parametrize(
    ("task", "do"),
    [("send ", _send), ("consume ", _consume), ("pop ", _pop), ("create, ", _create)],
)
def test_rules_of_the_page_are_enough_for_their_tasks(
    tmp_path: Path, task: str, do: Callable[[raftmq.Client], Awaitable[None]]
) -> None:
    page = (Path(__file__).parents[3] / "docs/security.md").read_text()
    table = page.partition("| task | rules |\n")[2].partition("\n\n")[0]
    assert len(table.splitlines()) == 1 + 4
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {task}"))
    rules = re.findall(r"`raftmq acl allow bob (.+?)`", row)

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await root.admin.create_topic("orders", 1)
            await _send(root)
            # Without one of its rules the task is refused.
            for lacking in rules:
                name = f"bob{rules.index(lacking)}"
                others = [rule.replace('"', "") for rule in rules if rule != lacking]
                await make_user(root, name, *others)
                async with node.as_user(name) as bob, refused(Reason.DENIED):
                    await do(bob)
            await make_user(root, "bob", *(rule.replace('"', "") for rule in rules))
        async with node.as_user("bob") as bob:
            await do(bob)

    with_guarded(scenario, tmp_path)
