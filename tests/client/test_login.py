"""A client's login and its file: the refusals, and the talk with a node."""

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from raftmq.access.scram import BadLogin, NodeExchange, make_keys
from raftmq.access.tokens import draw_token
from raftmq.client.address import Address, parse_url
from raftmq.client.login import Login, Say, log_in, read_login, source_of
from raftmq.client.routing.connection import open_connection
from raftmq.client.tls import tls_of
from raftmq.errors import Reason, Rejected, WrongType
from raftmq.wire.access import SCRAM, TOKEN, LoggedIn, LogIn
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FRAME_BYTES_MAX, FrameParser, encode_frame
from raftmq.wire.messages import PROTOCOL, REPLY, FrameKind, Welcome

from .pipe import Pipe

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    # The real clock: the proof is made on a thread. A clock that jumps while all tasks wait for the
    # thread would end the login.
    return request.param, {}


SECRET = "correct horse"
A_TOKEN = draw_token(bytes(8), b"\7" * 32)
SALT = bytes(range(16))
KEYS = make_keys(SECRET, SALT, 4096)


def assert_silent(error: BaseException) -> None:
    """Nothing that a program prints of an error shows a secret."""
    shown = "".join([str(error), repr(error), *traceback.format_exception(error)])
    lines = [line for line in shown.splitlines() if not line.startswith("    ")]
    for secret in (SECRET, "horse", A_TOKEN, A_TOKEN[-43:]):
        assert not [line for line in lines if secret in line]


def refused(make: Callable[[], Any]) -> Rejected:
    with pytest.raises(Rejected) as error:
        make()
    assert error.value.reason is Reason.BAD_ARGUMENT
    assert_silent(error.value)
    return error.value


# The login


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"user": "alice"},
        {"password": SECRET},
        {"user": "alice", "token": A_TOKEN},
        {"password": SECRET, "token": A_TOKEN},
        {"user": "alice", "password": SECRET, "token": A_TOKEN},
        {"token": SECRET},
        {"token": "raftmq_"},
        {"token": f"raftmq_{'0' * 16}"},
        {"token": A_TOKEN.removeprefix("raftmq_")},
    ],
)
def test_login_is_a_user_with_a_password_or_a_token(given: dict[str, str]) -> None:
    refused(lambda: Login(**given))


def test_login_shows_no_secret() -> None:
    logins = [Login("alice", SECRET), Login(token=A_TOKEN)]
    assert [repr(login) for login in logins] == ["Login(user='alice')", "Login(token=...)"]
    for login in logins:
        for shown in (str(login), f"{login}", f"{login!r}", repr([login]), repr({1: login})):
            assert "horse" not in shown
            assert A_TOKEN[-43:] not in shown
    assert "horse" not in repr(LogIn(SCRAM, SECRET))


def test_login_that_is_changed_is_checked_again() -> None:
    assert replace(Login("alice", SECRET), user="bob") == Login("bob", SECRET)
    refused(lambda: replace(Login("alice", SECRET), token=A_TOKEN))


# The file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "login.toml"


def test_file_holds_either_kind_of_login(file: Path) -> None:
    file.write_text(f'user = "alice"\npassword = "{SECRET}"\n')
    assert read_login(str(file)) == Login("alice", SECRET)
    file.write_text(f"# for the nightly job\ntoken = '{A_TOKEN}'\n")
    assert read_login(str(file)) == Login(token=A_TOKEN)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"# nothing\n",
        f'user = "alice"\npassword = "{SECRET}'.encode(),
        f"user = alice\npassword = {SECRET}\n".encode(),
        SECRET.encode(),
        f'password = "{SECRET}"\npassword = "{SECRET}"\n'.encode(),
        f'user = "alice"\npassword = "{SECRET}\xff"\n'.encode("latin-1"),
        f'user = "alice"\npassword = "{SECRET}\0"\n'.encode(),
        f'user = "alice"\npassword = "{SECRET}"\nport = "7400"\n'.encode(),
        f'user = "alice"\npassword = ["{SECRET}"]\n'.encode(),
        b"user = 7\npassword = 8\n",
        f'[login]\nuser = "alice"\npassword = "{SECRET}"\n'.encode(),
        f'password = "{SECRET}"\n'.encode(),
        f'password = "{SECRET}"\ntoken = "{A_TOKEN}"\n'.encode(),
        f'token = "{SECRET}"\n'.encode(),
    ],
)
def test_file_that_holds_no_login_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert str(file) in str(refused(lambda: read_login(str(file))))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f'user = "a"\npasword = "{SECRET}"\n', "no 'pasword'; did you mean password?"),
        (f'user = "a"\nport = "{SECRET}"\n', "there is no 'port'"),
        (f'{A_TOKEN} = "token"\n', "one name is not among these"),
        (f'user = 7\npassword = "{SECRET}"\n', "the value of user is a text in quotes"),
        (f'user = "alice"\ntoken = "{A_TOKEN}"\n', "either `user` and `password`, or a `token`"),
        (
            "-----BEGIN CERTIFICATE-----\nMII\n",
            "is a certificate, no login file: name it as `cert`",
        ),
    ],
)
def test_fault_of_a_login_file_is_named(file: Path, content: str, words: str) -> None:
    file.write_text(content)
    assert words in str(refused(lambda: read_login(str(file))))


def test_home_folder_is_not_expanded_and_said_to_be_so() -> None:
    assert "`~` is not expanded" in str(refused(lambda: read_login("~/no such/login.toml")))


def test_file_that_cannot_be_read_is_named(file: Path) -> None:
    for path in (file, file.parent, file / "below"):
        assert str(path) in str(refused(partial(read_login, str(path))))
    refused(lambda: read_login("\0"))


def test_file_may_hold_letters_of_any_language(file: Path) -> None:
    file.write_bytes('user = "alice"\npassword = "pässwörter"\n'.encode())
    assert read_login(str(file)).password == "pässwörter"


# The source


def test_client_without_a_login_has_no_source() -> None:
    assert source_of("", "") is None


def test_login_that_is_given_is_the_source(file: Path) -> None:
    login = Login("alice", SECRET)
    # The file of the URL is not looked at: it does not exist.
    source = source_of(login, str(file))
    assert source is not None
    assert source() is source() is login


def test_file_that_is_given_goes_before_the_one_of_the_url(file: Path) -> None:
    file.write_text(f'token = "{A_TOKEN}"\n')
    other = file.with_name("other.toml")
    other.write_text(f'user = "alice"\npassword = "{SECRET}"\n')
    for login, in_url, expected in (
        (file, str(other), Login(token=A_TOKEN)),
        (str(file), str(other), Login(token=A_TOKEN)),
        ("", str(other), Login("alice", SECRET)),
    ):
        source = source_of(login, in_url)
        assert source is not None
        assert source() == expected


@pytest.mark.parametrize(
    "given",
    [A_TOKEN, A_TOKEN[:-5], f"{A_TOKEN}x", f" {A_TOKEN}", f'"{A_TOKEN}"', f"token={A_TOKEN}"],
)
def test_token_in_place_of_a_file_is_refused_and_not_shown(given: str) -> None:
    for login, in_url in ((given, ""), ("", given)):
        with pytest.raises(Rejected, match=r"give raftmq\.Login\(token=") as found:
            source_of(login, in_url)
        assert A_TOKEN[30:50] not in str(found.value)


@pytest.mark.parametrize("field", ["ca", "cert", "crl"])
def test_token_in_place_of_a_certificate_is_refused_and_not_shown(field: str) -> None:
    url = parse_url(f"raftmqs://db?{field}={A_TOKEN}")
    with pytest.raises(Rejected, match="one is a token") as found:
        tls_of(url)
    assert A_TOKEN[30:50] not in str(found.value)


@pytest.mark.parametrize("given", [{"user": "alice", "password": SECRET}, ("alice", SECRET), 7])
def test_login_of_another_type_is_named_and_not_shown(given: Any) -> None:
    with pytest.raises(WrongType, match=r"login is a raftmq\.Login") as found:
        source_of(given, "")
    assert SECRET not in str(found.value)


def test_file_is_read_at_once_and_again_for_each_login(file: Path) -> None:
    refused(lambda: source_of(file, ""))
    file.write_text('user = "alice"\npassword = "first one"\n')
    source = source_of(file, "")
    assert source is not None
    for password in ("second one", "third one"):
        file.write_text(f'user = "alice"\npassword = "{password}"\n')
        assert source() == Login("alice", password)
    file.unlink()
    refused(source)


# The talk


class FakeNode:
    """The node's end of a login."""

    def __init__(self, keys: Any = KEYS, *, last: str | None = None) -> None:
        self.keys = keys
        self.last = last
        """The last message in place of the right one."""
        self.heard: list[LogIn] = []
        self._node: NodeExchange | None = None

    async def say(self, message: LogIn) -> LoggedIn:
        self.heard.append(message)
        if message.mechanism == TOKEN:
            if message.data != A_TOKEN:
                raise Rejected(Reason.UNAUTHENTICATED, "the login is not valid")
            return LoggedIn("", "robot")
        if self._node is None:
            self._node = NodeExchange(message.data)
            return LoggedIn(self._node.challenge(SALT, 4096, [self.keys], "node"))
        node, self._node = self._node, None
        try:
            _, last = node.verify(message.data)
        except BadLogin:
            raise Rejected(Reason.UNAUTHENTICATED, "the login is not valid") from None
        return LoggedIn(last if self.last is None else self.last, node.user)


async def refused_by(say: Say, login: Login) -> Rejected:
    with pytest.raises(Rejected) as error:
        await log_in(login, say)
    assert_silent(error.value)
    return error.value


async def test_password_takes_two_messages_which_do_not_hold_it() -> None:
    node = FakeNode()
    await log_in(Login("alice", SECRET), node.say)
    assert [message.mechanism for message in node.heard] == [SCRAM, SCRAM]
    assert not [message for message in node.heard if "horse" in message.data]


async def test_token_takes_one_message() -> None:
    node = FakeNode()
    await log_in(Login(token=A_TOKEN), node.say)
    assert node.heard == [LogIn(TOKEN, A_TOKEN)]


async def test_refusal_of_the_node_comes_through() -> None:
    for login in (Login("alice", "wrong horse"), Login(token=A_TOKEN[:-1] + "_")):
        error = await refused_by(FakeNode().say, login)
        assert error.reason is Reason.UNAUTHENTICATED


async def test_process_that_takes_every_login_is_not_believed() -> None:
    """It may pose as a node, and has shown no proof."""
    heard: list[LogIn] = []

    async def say(message: LogIn) -> LoggedIn:
        heard.append(message)
        return LoggedIn("")

    for login in (Login("alice", SECRET), Login(token=A_TOKEN)):
        with pytest.raises(Rejected, match="access control is off") as error:
            await log_in(login, say)
        assert error.value.reason is Reason.BAD_ARGUMENT
    assert [message.mechanism for message in heard] == [SCRAM, TOKEN]


@pytest.mark.parametrize(
    "node",
    [
        FakeNode(last=""),
        FakeNode(last="v=AAAA"),
        FakeNode(last="e=other-error"),
        FakeNode(KEYS._replace(server_key=bytes(32))),
    ],
)
async def test_node_that_does_not_know_the_keys_is_refused(node: FakeNode) -> None:
    error = await refused_by(node.say, Login("alice", SECRET))
    assert error.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("challenge", ["x", "r=abc,s=AAAA,i=1", "e=unknown-user", "r=,s=,i="])
async def test_challenge_that_makes_no_sense_is_refused(challenge: str) -> None:
    async def say(_: LogIn) -> LoggedIn:
        return LoggedIn(challenge)

    error = await refused_by(say, Login("alice", SECRET))
    assert error.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("login", [Login("alice", f"{SECRET}\7"), Login("ali\7ce", SECRET)])
async def test_login_that_no_user_can_have_is_not_sent(login: Login) -> None:
    node = FakeNode()
    error = await refused_by(node.say, login)
    assert error.reason is Reason.BAD_ARGUMENT
    assert node.heard == []


# Connections


def write(file: Path, content: str) -> None:
    file.write_text(content)


class FakeWorld:
    """One node that greets, and takes logins."""

    def __init__(self, tasks: Any, *, wants_login: bool = True) -> None:
        self._tasks = tasks
        self._wants_login = wants_login
        self.nodes: list[FakeNode] = []

    async def connect(self, host: str, port: int) -> Pipe:
        client, server = Pipe.pair()
        self.nodes.append(FakeNode())
        self._tasks.start_soon(self._serve, server, self.nodes[-1])
        return client

    async def _serve(self, pipe: Pipe, node: FakeNode) -> None:
        parser = FrameParser(FRAME_BYTES_MAX)
        while True:
            try:
                parser.feed(await pipe.receive())
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                return
            for frame in parser.frames():
                reply: Any = Welcome(PROTOCOL, "c", 1, "", "", 9999, 9999, self._wants_login)
                if frame.kind == FrameKind.LOG_IN:
                    reply = await node.say(unpack(LogIn, frame.header))
                parts = encode_frame(frame.kind | REPLY, frame.correlation, pack(reply))
                await pipe.send(b"".join(parts))


async def test_each_connection_shows_the_login_that_the_file_holds_then(file: Path) -> None:
    write(file, f'user = "alice"\npassword = "{SECRET}"\n')
    async with anyio.create_task_group() as tasks:
        world: Any = FakeWorld(tasks)
        source = source_of(file, "")
        for _ in range(2):
            await open_connection(world, Address("node1", 1), cluster="", login=source)
        write(file, f'token = "{A_TOKEN}"\n')
        await open_connection(world, Address("node1", 1), cluster="", login=source)
        heard = [[message.mechanism for message in node.heard] for node in world.nodes]
        assert heard == [[SCRAM, SCRAM], [SCRAM, SCRAM], [TOKEN]]
        tasks.cancel_scope.cancel()


async def test_node_that_wants_a_login_gets_no_connection_without_one() -> None:
    async with anyio.create_task_group() as tasks:
        world: Any = FakeWorld(tasks)
        with pytest.raises(Rejected, match="give `login`") as error:
            await open_connection(world, Address("node1", 1), cluster="")
        assert error.value.reason is Reason.UNAUTHENTICATED
        assert world.nodes[0].heard == []
        world = FakeWorld(tasks, wants_login=False)
        await open_connection(world, Address("node1", 1), cluster="")
        tasks.cancel_scope.cancel()


async def test_file_that_is_broken_by_then_ends_the_connection(file: Path) -> None:
    write(file, f'token = "{A_TOKEN}"\n')
    async with anyio.create_task_group() as tasks:
        world: Any = FakeWorld(tasks)
        source = source_of(file, "")
        write(file, f'token = "{SECRET}"\n')
        with pytest.raises(Rejected) as error:
            await open_connection(world, Address("node1", 1), cluster="", login=source)
        assert error.value.reason is Reason.BAD_ARGUMENT
        assert_silent(error.value)
        assert world.nodes[0].heard == []
