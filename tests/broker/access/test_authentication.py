"""Users at a node's gate: who gets in."""

from pathlib import Path

import pytest
import trio

import raftmq
from raftmq.access.scram import ClientExchange
from raftmq.broker.access import gate, logins
from raftmq.broker.serve import connection
from raftmq.client.routing.requests import ask_leader
from raftmq.errors import Reason, Rejected
from raftmq.machine.catalog.access import PutUser
from raftmq.tls.authority import Authority
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.access import SCRAM, TOKEN, LogIn
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import encode_frame
from raftmq.wire.messages import (
    REPLY,
    Admin,
    AdminDone,
    ErrorReply,
    FrameKind,
    Metadata,
    Probe,
    Status,
)
from tests.tls.stranger import stranger

from .guarded import PASSWORD, ROOT, Guarded, answer, greeted, make_user, refused, say, with_guarded


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


def test_the_key_behind_the_salts_of_unknown_users_is_the_nodes_own(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            for command in (PutUser("alice"), PutUser("alice", seed=bytes(32))):
                for request in (0, 7):
                    await ask_leader(root._router, Admin.of(command, request), AdminDone)
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


@pytest.mark.parametrize("kind", [FrameKind.FETCH, FrameKind.ADMIN, FrameKind.SESSIONS])
def test_a_header_of_a_stranger_is_not_decoded(tmp_path: Path, kind: FrameKind) -> None:
    """A header of 64 KiB takes milliseconds, and its refusal would tell that it was decoded."""

    async def scenario(node: Guarded) -> None:
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            await peer.send(b"".join(encode_frame(kind, 1, b"no header of any kind")))
            assert (await peer.refusal()).code == "unauthenticated"

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
        proof = ClientExchange("alice", PASSWORD)
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            challenge = await say(peer, LogIn(SCRAM, proof.first))
            final = proof.final(challenge.data)
            assert (await say(peer, LogIn(SCRAM, final))).user == "alice"
        async with stranger(node.port, node.context) as thief:
            await greeted(thief)
            assert (await say(thief, LogIn(SCRAM, proof.first))).data != challenge.data
            frame = await answer(thief, LogIn(SCRAM, final))
            assert unpack(ErrorReply, frame.header).code == "unauthenticated"

    with_guarded(scenario, tmp_path)


def test_attempts_after_a_failure_wait_and_those_of_others_do_not(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice")
            await make_user(root, "bob")
        for _ in range(3):
            async with refused(Reason.UNAUTHENTICATED), node.by_login(raftmq.Login("alice", "x")):
                pass
        waits = node.node.gate.failures.take_turn
        assert waits("", "bob") == 0.0
        async with node.as_user("bob"):
            pass
        begun = trio.current_time()
        async with node.as_user("alice"):
            # 0.2 s after the first failure, 0.4 after the second, 0.8 after the third.
            assert trio.current_time() - begun >= logins.DELAY_SECONDS
        assert waits("", "alice") == 0.0

    with_guarded(scenario, tmp_path)


def test_one_attempt_of_a_connection_waits_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "DELAY_SECONDS", 0.02)
    attempts = 6
    message = pack(LogIn(TOKEN, f"raftmq_{'0' * 16}_{'A' * 43}"))

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            # From here on the catalog has a leader, which no login is judged without.
            await make_user(root, "alice")
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            (connection,) = (
                each for each, client in node.node.gate._clients.items() if not client.identity
            )
            frames = [encode_frame(FrameKind.LOG_IN, n, message) for n in range(1, attempts + 1)]
            await peer.send(b"".join(part for frame in frames for part in frame))
            for number in range(1, attempts + 1):
                frame = await peer.next()
                assert frame.correlation == number
                # A busy machine may keep the catalog from its leader: then nobody is judged.
                assert unpack(ErrorReply, frame.header).code in ("unauthenticated", "unavailable")
                # The others are in the parser, where the limits of the connection count them.
                assert len(connection._open) <= 1

    with_guarded(scenario, tmp_path)


def test_mechanisms_that_are_unknown_and_late_logins_are_refused(tmp_path: Path) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice", "describe cluster")
            token = await root.access.make_token("alice")
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            frame = await answer(peer, LogIn("PLAIN", "alice"))
            assert "PLAIN" in unpack(ErrorReply, frame.header).message
            assert (await say(peer, LogIn(TOKEN, token))).user == "alice"
            assert (await peer.ask(FrameKind.STATUS, Status())).kind == FrameKind.STATUS | REPLY
            frame = await answer(peer, LogIn(TOKEN, token))
            assert "before" in unpack(ErrorReply, frame.header).message
            # What nodes send is no user's.
            frame = await peer.ask(FrameKind.PROBE, Probe(1, "folder"))
            assert unpack(ErrorReply, frame.header).code == "denied"

    with_guarded(scenario, tmp_path)


def test_a_certificate_of_several_users_is_refused(tmp_path: Path) -> None:
    both = frozenset(CertificateName("c", USER, name) for name in ("bob", "alice"))
    assert gate.users_in(both | {CertificateName("d", USER, "eve")}, "c") == ["alice", "bob"]

    async def scenario(node: Guarded) -> None:
        Authority(node.certs).issue(CertificateName("d", USER, "eve"), (), days=1.0)
        async with refused(Reason.WRONG_CLUSTER), node.by_certificate("eve"):
            pass

    with_guarded(scenario, tmp_path)


@pytest.mark.parametrize("is_dropped", [True, False])
def test_an_exchange_begun_before_a_password_ended_is_of_no_use(
    tmp_path: Path, is_dropped: bool
) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice")
            proof = ClientExchange("alice", PASSWORD)
            async with stranger(node.port, node.context) as peer:
                await greeted(peer)
                challenge = await say(peer, LogIn(SCRAM, proof.first))
                if is_dropped:
                    await root.access.drop_user("alice")
                else:
                    await root.access.put_user("alice", "another password")
                frame = await answer(peer, LogIn(SCRAM, proof.final(challenge.data)))
                assert unpack(ErrorReply, frame.header).code == "unauthenticated"

    with_guarded(scenario, tmp_path)


def test_names_of_any_length_and_kind_cost_little_and_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The attempts wait for each other, and a stranger has ten seconds for all of them.
    monkeypatch.setattr(logins, "DELAY_SECONDS", 0.001)
    monkeypatch.setattr(connection, "HELLO_SECONDS_MAX", 60.0)

    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT):
            pass
        async with stranger(node.port, node.context) as peer:
            await greeted(peer)
            for name in ("\ufdfa" * 300, "e\u0301" * 400, "x" * 60_000, "a b", ""):
                frame = await answer(peer, LogIn(SCRAM, f"n,,n={name},r=abc"))
                assert unpack(ErrorReply, frame.header).code == "unauthenticated"
                frame = await answer(peer, LogIn(TOKEN, f"raftmq_{name}_secret"))
                assert unpack(ErrorReply, frame.header).code in ("unauthenticated", "busy")
        assert sum(len(name) for _, name in node.node.gate.failures._of) == 0

    with_guarded(scenario, tmp_path)


def test_clients_that_log_in_late_leave_the_places_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Guarded) -> None:
        async with node.by_certificate(ROOT) as root:
            await make_user(root, "alice")
            token = await root.access.make_token("alice")
            async with stranger(node.port, node.context) as peer:
                await greeted(peer)
                monkeypatch.setattr(node.node.load, "why_no_client", lambda _: "it is full")
                frame = await answer(peer, LogIn(TOKEN, token))
                assert unpack(ErrorReply, frame.header).code == "busy"

    with_guarded(scenario, tmp_path)
