"""`raftmq user`, `token` and `acl` on a secure cluster, as its administrator and as its users."""

import errno
import io
import os
import pty
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from raftmq.access import rules
from raftmq.cli.access import acl, known, token
from raftmq.cli.access.login_file import LoginFile
from raftmq.cli.exits import Failure
from raftmq.client.admin.access import TOKEN_SECONDS
from raftmq.errors import OutcomeUnknown, Unavailable
from tests.cli.command_line import CommandLine, Ended
from tests.cli.local_cluster import LocalCluster
from tests.cli.test_commands import completed

process_mark = pytest.mark.process

Stdin = Callable[[str], None]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The administrator's URL, which the commands of this module use by themselves."""
    with (
        LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        url = cluster.start("-n", "1", "--secure")
        patch.setenv("RAFTMQ_URL", url)
        yield url


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Stdin:
    """Lets the next command read a text from stdin."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


class User:
    """A user at the command line, who logs in by a file."""

    def __init__(self, raftmq: CommandLine, admin: str, login: Path) -> None:
        self._raftmq = raftmq
        self._url = re.sub(r"\bcert=[^&]*", f"login={login}", admin)

    def fails(self, *arguments: str) -> str:
        """The end of stderr, from the error on, of a command that must be refused."""
        ended = self._raftmq(*arguments, "--url", self._url)
        assert ended.code == 1, ended.stdout
        return ended.stderr

    def may(self, *arguments: str) -> Ended:
        """Run a command that must succeed."""
        return self._raftmq.ok(*arguments, "--url", self._url)


@pytest.fixture
def user(raftmq: CommandLine, url: str, tmp_path: Path) -> Callable[..., User]:
    """A user with a login file, or with one of this content."""

    def made(login: Path | None = None, **content: str) -> User:
        if login is None:
            login = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
            login.write_text("".join(f'{name} = "{text}"\n' for name, text in content.items()))
        return User(raftmq, url, login)

    return made


MakeUser = Callable[..., User]


def on_a_terminal(arguments: Sequence[str], answers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Run a command on a terminal of its own, and type each answer at its question; the exit code
    and all that the terminal shows."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "raftmq", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        # Without a session of its own it would ask on the terminal on which the tests run.
        start_new_session=True,
    ) as running:
        os.close(theirs)
        shown = ""
        try:
            for question, answer in answers:
                begin = len(shown)
                while question not in shown[begin:]:
                    shown += os.read(ours, 4096).decode()
                os.write(ours, f"{answer}\n".encode())
            # Linux ends a terminal without a process with an error.
            with suppress(OSError):
                while some := os.read(ours, 4096):
                    shown += some.decode()
            return running.wait(60), shown
        finally:
            running.kill()
            os.close(ours)


# Users


@process_mark
def test_user_with_a_drawn_password_logs_in_by_its_file(
    raftmq: CommandLine, user: MakeUser, tmp_path: Path
) -> None:
    login = tmp_path / "login.toml"
    added = raftmq.ok("user", "add", "drawn", "--login-file", str(login))
    assert login.stat().st_mode & 0o777 == 0o600
    assert f"the login is in {login}" in added.stderr
    assert tomllib.loads(login.read_text())["password"] not in added.stdout + added.stderr
    drawn = user(login)
    for what in ("topic", "group"):
        assert f"no {what}s that you may see: " in drawn.may(what, "list").stderr
    refused = drawn.fails("topic", "create", "t")
    assert "'drawn' may not administer topic t" in refused
    assert "`raftmq acl allow`" in refused.partition("fix:")[2]
    assert "may not administer cluster" in drawn.fails("user", "list")


@process_mark
def test_login_file_is_never_overwritten_nor_left_by_a_change_that_is_refused(
    url: str, raftmq: CommandLine, tmp_path: Path
) -> None:
    mine, new = tmp_path / "mine.toml", tmp_path / "new.toml"
    mine.write_text("mine")
    refused = raftmq("user", "add", "kept", "--login-file", str(mine))
    assert (refused.code, mine.read_text()) == (1, "mine")
    assert f"{mine} exists" in refused.stderr
    assert "move that file away" in refused.stderr
    assert "kept" not in [each["name"] for each in raftmq.ok("user", "list", "-o", "json").json]
    raftmq.ok("user", "add", "kept", "--no-password")
    to_new = ("--login-file", str(new))
    for command, words in {
        ("user", "add", "kept"): "raftmq user password kept",
        ("user", "password", "unknown"): "raftmq user add NAME",
        ("user", "password", "kept", "--keep-old", "1h"): "no password that could stay valid",
        ("token", "make", "unknown"): "raftmq user add NAME",
    }.items():
        refused = raftmq(*command, *to_new)
        assert refused.code == 1
        assert words in refused.stderr
        assert not new.exists()
    nowhere = raftmq("user", "password", "kept", "--login-file", str(tmp_path / "no" / "file"))
    assert (nowhere.code, "cannot be made: No such file" in nowhere.stderr) == (1, True)


@process_mark
def test_another_password_ends_the_one_before_at_once_or_later(
    url: str, raftmq: CommandLine, user: MakeUser, stdin: Stdin
) -> None:
    texts = ("the first one", "the second one", "the third one")
    first, second, third = (user(user="bob", password=text) for text in texts)
    stdin(f"{texts[0]}\n")
    raftmq.ok("user", "add", "bob", "--password-stdin")
    first.may("topic", "list")
    stdin(texts[1])
    raftmq.ok("user", "password", "bob", "--password-stdin", "--keep-old", "1h")
    first.may("topic", "list")
    second.may("topic", "list")
    users = raftmq.ok("user", "list", "-o", "json").json
    (bob,) = [each for each in users if each["name"] == "bob"]
    assert bob.keys() == {"name", "passwords", "old_until_ms", "created_ms", "tokens"}
    assert (bob["passwords"], bob["tokens"]) == (2, [])
    hours = (bob["old_until_ms"] / 1000 - time.time()) / 3600
    assert hours == pytest.approx(1, abs=0.1)
    assert re.search(r"^bob +2 +20\S+T\S+ +0 ", raftmq.ok("user", "list").stdout, re.MULTILINE)
    stdin("another one")
    long = raftmq("user", "password", "bob", "--password-stdin", "--keep-old", "31d")
    assert (long.code, "valid for 30 days at the most" in long.stderr) == (2, True)
    stdin(f"{texts[2]}\r\n")
    changed = raftmq.ok("user", "password", "bob", "--password-stdin")
    assert changed.stderr == "bob has another password\n"
    refused = second.fails("topic", "list")
    assert "is not valid: " in refused
    assert "`raftmq user password NAME --login-file" in refused.partition("fix:")[2]
    assert "one" not in refused
    third.may("topic", "list")
    raftmq.ok("user", "password", "bob", "--no-password")
    third.fails("topic", "list")
    assert re.search(r"^bob +0 +- +0 ", raftmq.ok("user", "list").stdout, re.MULTILINE)


@process_mark
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", 2, "stdin has to hold the password, in one line"),
        ("horse battery\nstaple\n", 2, "stdin has to hold the password, in one line"),
        ("horse", 1, "8 characters at least"),
        ("horse\x07battery", 1, "no such password is allowed"),
    ],
)
def test_password_that_cannot_be_one_is_refused_and_not_repeated(
    url: str, raftmq: CommandLine, stdin: Stdin, text: str, code: int, words: str
) -> None:
    stdin(text)
    ended = raftmq("user", "add", "horseless", "--password-stdin")
    assert (ended.code, words in ended.stderr) == (code, True)
    assert "horse" not in ended.stderr


@process_mark
def test_password_is_asked_for_twice_and_never_shown(url: str, user: MakeUser) -> None:
    answers = [
        ("Password: ", "correct horse"),
        ("The password again: ", "wrong horse"),
        ("Password: ", "correct horse"),
        ("The password again: ", "correct horse"),
    ]
    code, shown = on_a_terminal(["user", "add", "carol"], answers)
    assert (code, "added user carol" in shown) == (0, True)
    assert "horse" not in shown
    user(user="carol", password="correct horse").may("topic", "list")


@process_mark
def test_user_is_dropped_with_its_tokens_and_rules_after_a_yes(
    url: str, raftmq: CommandLine, tmp_path: Path, user: MakeUser
) -> None:
    login = tmp_path / "login.toml"
    raftmq.ok("user", "add", "erin", "--login-file", str(login))
    raftmq.ok("token", "make", "erin")
    raftmq.ok("acl", "allow", "erin", "any", "topic", "*")
    raftmq.ok("acl", "deny", "erin", "write", "topic", "archive")
    user(login).may("topic", "list")
    code, shown = on_a_terminal(["user", "drop", "erin"], [("[y/N]: ", "n")])
    assert (code, "Drop user 'erin' with 1 token, 2 rules?" in shown) == (1, True)
    user(login).may("topic", "list")
    code, shown = on_a_terminal(["user", "drop", "erin"], [("[y/N]: ", "y")])
    assert (code, "dropped user erin" in shown) == (0, True)
    assert "is not valid: " in user(login).fails("topic", "list")
    assert raftmq.ok("acl", "list", "erin", "-o", "json").json == []
    again = raftmq("user", "drop", "erin", "--yes")
    assert (again.code, "there is no user 'erin'" in again.stderr) == (1, True)
    assert "raftmq user list" in again.stderr


@process_mark
def test_drop_tells_which_ways_in_are_left(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("user", "add", "plain", "--no-password")
    assert raftmq.ok("user", "drop", "plain", "--yes").stderr == "dropped user plain\n"
    raftmq.ok("acl", "allow", "guest", "read", "topic", "news")
    dropped = raftmq.ok("user", "drop", "guest", "--yes").stderr
    assert "a certificate that names guest stays valid: `raftmq cert revoke FILE`" in dropped
    assert "access.admins" not in dropped
    raftmq.ok("user", "add", "admin", "--no-password")
    dropped = raftmq.ok("user", "drop", "admin", "--yes").stderr
    assert "access.admins of the nodes' settings still names admin" in dropped
    assert "a certificate that names admin stays valid" in dropped
    again = raftmq("user", "drop", "admin", "--yes")
    assert (again.code, "'admin' was never added: access.admins names it" in again.stderr) == (
        1,
        True,
    )


@process_mark
def test_shell_completes_users(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("user", "add", "completed", "--no-password")
    for typed in ("user drop comp", "token make comp", "acl list comp"):
        assert "plain,completed" in completed(f"raftmq {typed}").splitlines(), typed


# Tokens


@process_mark
def test_token_is_printed_alone_and_logs_in_until_it_is_revoked(
    url: str, raftmq: CommandLine, user: MakeUser
) -> None:
    raftmq.ok("user", "add", "robot", "--no-password")
    made = raftmq.ok("token", "make", "robot", "--days", "2", "--note", "nightly report")
    text = made.stdout.removesuffix("\n")
    _, token_id, secret = text.split("_", 2)
    assert "it is shown this once" in made.stderr
    assert secret not in made.stderr
    robot = user(token=text)
    robot.may("topic", "list")
    (listed,) = raftmq.ok("token", "list", "robot", "-o", "json").json
    assert listed.keys() == {"user", "id", "created_ms", "until_ms", "note"}
    assert (listed["user"], listed["id"], listed["note"]) == ("robot", token_id, "nightly report")
    days = (listed["until_ms"] - listed["created_ms"]) / 86_400_000
    assert days == pytest.approx(2, abs=0.01)
    table = raftmq.ok("token", "list").stdout
    assert re.search(rf"^{token_id} +robot .* nightly report$", table, re.MULTILINE)
    assert secret not in table
    # The ID without the fixed beginning, and the secret part behind it.
    wrong = raftmq("token", "revoke", f"{token_id}_{secret}")
    assert (wrong.code, "an ID has 16 letters" in wrong.stderr) == (2, True)
    assert secret not in wrong.stderr
    revoked = raftmq.ok("token", "revoke", text)
    assert revoked.stderr == f"revoked token {token_id}\n"
    refused = robot.fails("topic", "list")
    assert "is not valid: " in refused
    assert "`raftmq token make USER --login-file FILE`" in refused.partition("fix:")[2]
    again = raftmq("token", "revoke", token_id)
    assert (again.code, f"there is no token {token_id}" in again.stderr) == (1, True)
    assert "raftmq token list" in again.stderr


@process_mark
def test_token_in_a_login_file_is_not_printed(
    url: str, raftmq: CommandLine, user: MakeUser, tmp_path: Path
) -> None:
    login = tmp_path / "login.toml"
    raftmq.ok("user", "add", "silent", "--no-password")
    made = raftmq.ok("token", "make", "silent", "--no-end", "--login-file", str(login))
    assert (made.stdout, login.stat().st_mode & 0o777) == ("", 0o600)
    assert "raftmq_" not in made.stderr
    user(login).may("topic", "list")
    assert "no end" in raftmq.ok("token", "list", "silent").stdout
    unknown = raftmq("token", "list", "unknown")
    assert (unknown.code, "there is no user 'unknown'" in unknown.stderr) == (1, True)
    raftmq.ok("token", "make", "silent", "--days", "0.00000001")
    assert re.search(r"  ended \d{4}-", raftmq.ok("token", "list", "silent").stdout)
    raftmq.ok("user", "add", "bare", "--no-password")
    assert "`raftmq token make bare` makes one" in raftmq.ok("token", "list", "bare").stderr


# Rules


@process_mark
def test_rules_decide_what_a_user_may_do_and_check_says_why(
    url: str, raftmq: CommandLine, user: MakeUser, tmp_path: Path
) -> None:
    login = tmp_path / "login.toml"
    raftmq.ok("user", "add", "dave", "--login-file", str(login))
    raftmq.ok("topic", "create", "orders-1")
    dave, reading = user(login), ("dave", "read", "topic")
    asked = raftmq("acl", "check", *reading, "orders-1")
    assert (asked.code, asked.stdout) == (1, "denied: no rule allows it\n")
    refused = dave.fails("consume", "orders-1", "-e")
    assert "user 'dave' may not see topic 'orders-1'" in refused
    assert (
        "fix: an administrator allows it, unless a rule denies it, with `raftmq acl all" in refused
    )
    in_group = ("consume", "orders-1", "-g", "g", "-e")
    both = dave.fails(*in_group).partition("fix:")[2]
    assert "`raftmq acl allow dave read topic orders-1` and " in both
    assert "`raftmq acl allow dave read group g`" in both
    assert "allow dave pop topic" in dave.fails("pop", "orders-1", "-g", "g")
    assert "allow dave write topic" in dave.fails("produce", "orders-1", "hello")
    assert "allow dave describe topic" in dave.fails("topic", "describe", "orders-1")
    added = raftmq.ok("acl", "allow", *reading, "orders-*")
    assert added.stderr == "added: allow dave read topic orders-*\n"
    assert "there was already: allow" in raftmq.ok("acl", "allow", *reading, "orders-*").stderr
    asked = raftmq.ok("acl", "check", *reading, "orders-1")
    assert asked.stdout == "allowed by: allow dave read topic orders-*\n"
    dave.may("consume", "orders-1", "-e")
    # Asked for `describe group` alone.
    assert "`raftmq acl allow dave read group g`" in dave.fails(*in_group).partition("fix:")[2]
    raftmq.ok("acl", "allow", "dave", "read", "group", "g")
    dave.may(*in_group)
    refused = dave.fails("produce", "orders-1", "hello").partition("fix:")[2]
    assert "denies it, with `raftmq acl allow dave write topic orders-1`\n" in refused
    raftmq.ok("acl", "deny", "dave", "any", "topic", "orders-1")
    asked = raftmq("acl", "check", *reading, "orders-1", "-o", "json")
    assert (asked.code, asked.json["is_allowed"]) == (1, False)
    assert asked.json["rule"]["text"] == "deny dave any topic orders-1"
    dave.fails("consume", "orders-1", "-e")
    assert "acl allow dave" not in dave.fails(*in_group)
    raftmq.ok("acl", "drop", "deny", "dave", "any", "topic", "orders-1")
    dave.may("consume", "orders-1", "-e")


@process_mark
def test_row_of_a_rule_is_what_drop_takes(url: str, raftmq: CommandLine) -> None:
    raftmq.ok("user", "add", "frank", "--no-password")
    raftmq.ok("acl", "allow", "frank", "describe", "cluster")
    raftmq.ok("acl", "allow", "frank", "any", "group", "*")
    raftmq.ok("acl", "deny", "*", "write", "topic", "archive-*")
    assert "1 rule about every user besides" in raftmq.ok("acl", "list", "frank").stderr
    found = raftmq.ok("acl", "list", "frank", "-o", "json").json
    assert [(each["text"], each["name"], each["is_prefix"]) for each in found] == [
        ("allow frank any group *", "", True),
        ("allow frank describe cluster", "", False),
    ]
    head, *rows = raftmq.ok("acl", "list").stdout.splitlines()
    assert head.split() == ["VERB", "USER", "OPERATION", "RESOURCE", "NAME"]
    own = [row.split() for row in rows if row.split()[1] in ("frank", "*")]
    assert len(own) == 3
    for words in own:
        raftmq.ok("acl", "drop", *words)
        again = raftmq("acl", "drop", *words)
        assert (again.code, f"no such rule: {' '.join(words)}" in again.stderr) == (1, True)
    none = raftmq.ok("acl", "list", "frank")
    assert (none.stdout, "`raftmq acl allow frank " in none.stderr) == ("", True)


@process_mark
def test_rule_about_a_user_that_was_not_added_is_made_with_a_note(
    url: str, raftmq: CommandLine
) -> None:
    added = raftmq.ok("acl", "allow", "visitor", "read", "topic", "news")
    assert "no user visitor was added: the rule is about certificates that name it" in added.stderr
    # Its rule makes it known.
    assert "warning" not in raftmq("acl", "check", "visitor", "read", "topic", "news").stderr
    raftmq.ok("user", "drop", "visitor", "--yes")
    assert raftmq.ok("acl", "list", "visitor", "-o", "json").json == []


@process_mark
def test_name_that_no_user_has_is_warned_of_with_the_one_that_is_meant(
    url: str, raftmq: CommandLine
) -> None:
    raftmq.ok("user", "add", "invoicing", "--no-password")
    warning = "warning: no user invoicingg was added; did you mean invoicing?"
    added = raftmq.ok("acl", "allow", "invoicingg", "read", "topic", "news")
    assert f"{warning}: the rule is about certificates" in added.stderr
    raftmq.ok("user", "drop", "invoicingg", "--yes")
    checked = raftmq("acl", "check", "invoicingg", "read", "topic", "news")
    assert (checked.code, checked.stderr) == (1, f"{warning}\n")
    assert warning in raftmq.ok("audit", "--user", "invoicingg").stderr
    for asked in (("acl", "check", "admin", "read", "topic", "x"), ("audit", "--user", "admin")):
        assert "warning" not in raftmq.ok(*asked).stderr


@process_mark
def test_operation_that_a_resource_does_not_have_is_refused_with_those_that_it_has(
    url: str, raftmq: CommandLine
) -> None:
    refused = raftmq("acl", "allow", "admin", "write", "cluster")
    assert refused.code == 1
    assert "of a cluster, only admin, any, describe, read" in refused.stderr


# Without a cluster


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("user add a", "there is no terminal to ask for the password: give --password-stdin, "),
        ("user password a", "there is no terminal to ask for the password: give --password-stdin"),
        ("user add a --no-password --password-stdin", "exclude each other"),
        ("user add a --login-file f --password-stdin", "exclude each other"),
        ("user add ../a --no-password", "is not a user name"),
        ("user password a --no-password --keep-old 1h", "--keep-old needs another password"),
        ("user drop a", "--yes"),
        ("user create a", "Did you mean add?"),
        ("user rm a", "Did you mean drop?"),
        ("token make a --days 3 --no-end", "exclude each other"),
        ("token revoke raftmq", "an ID has 16 letters and digits: `raftmq token list`"),
        ("acl grant a", "Did you mean allow?"),
        ("acl allow a read topic", "name the topic, or all with '*'"),
        ("acl drop deny a read group", "name the group, or all with '*'"),
        ("acl deny a admin cluster c", "the cluster has no name"),
        ("acl allow a look topic t", "'look' is not one of"),
        ("acl check a any topic t", "'any' is not one of"),
        ("acl check a read topic t-*", "name one topic to ask about"),
        ("acl check a read topic", "name one topic to ask about"),
    ],
)
def test_wrong_usage_is_refused_with_what_is_right(
    raftmq: CommandLine, arguments: str, words: str
) -> None:
    ended = raftmq(*arguments.split())
    assert ended.code == 2
    assert words in ended.stderr
    assert ended.stdout == ""


def failure(cause: Exception) -> Failure:
    made = Failure("it failed", fix="")
    made.__cause__ = cause
    return made


def write_login(path: Path, error: BaseException | None = None, *, is_written: bool = True) -> None:
    """Write a login file around a change that ends with this error."""
    with LoginFile(path) as file:
        if is_written:
            file.write(user="alice", password="correct horse")
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "is_written", "is_kept"),
    [
        (failure(Unavailable("no leader")), True, False),
        (failure(OutcomeUnknown("no answer")), True, True),
        (failure(OutcomeUnknown("no answer")), False, False),
        (KeyboardInterrupt(), True, True),
        (KeyboardInterrupt(), False, False),
    ],
)
def test_login_file_stays_only_if_its_login_may_be_valid(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    is_written: bool,
    is_kept: bool,
) -> None:
    path = tmp_path / "login.toml"
    with pytest.raises(type(error)):
        write_login(path, error, is_written=is_written)
    assert path.exists() is is_kept
    assert (f"{path} is kept" in capsys.readouterr().err) is is_kept


def test_login_file_that_a_full_disk_does_not_take_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "login.toml"
    with pytest.raises(OSError, match="No space"):
        write_login(path)
    assert not path.exists()


def test_words_of_the_commands_are_those_of_the_rules() -> None:
    assert [*acl.OPERATIONS, acl.ANY] == [each.value for each in rules.Operation]
    assert [*acl.RESOURCES] == [each.value for each in rules.Resource]
    assert known.EVERYBODY == rules.EVERYBODY
    assert token.DAYS * 86_400 == TOKEN_SECONDS
