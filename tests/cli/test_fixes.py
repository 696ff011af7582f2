"""The `fix:` line of an error helps with that error; commands against a cluster in memory."""

import pytest

import raftmq as package
from raftmq.cli.exits import explained
from raftmq.cli.group.members import listed_groups
from raftmq.errors import Reason, Rejected
from tests.cli.command_line import CommandLine
from tests.cli.test_consume import in_memory


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(package), "connect", in_memory)


@pytest.mark.parametrize(
    ("command", "error", "fix"),
    [
        ("dlq show orders -g nope", "no consumer group 'nope' that pops", "raftmq group list"),
        ("consume order", "no topic 'order': create it first; did you mean orders?", "topic list"),
        ("produce orrders x", "did you mean orders?", "topic list"),
        ("consume zzz", "no topic 'zzz': create it first\n", "topic list"),
        ("produce orders hello -q 99", "queues 0 to 1, no 99", "topic alter NAME --queues N"),
        ("msg get 1-99", "no topic with queue 1", "raftmq msg find TOPIC --key KEY"),
        ("msg get nope", "'nope' is no message id", "raftmq msg find TOPIC --key KEY"),
        ("ack rubbish", "'rubbish' is no handle", "`raftmq pop TOPIC -g GROUP` prints handles"),
        (
            "delay cancel rubbish",
            "'rubbish' is no id of a delayed",
            "raftmq produce TOPIC BODY --de",
        ),
        ("tx resolve rubbish --commit", "'rubbish' is no id of a trans", "raftmq tx list"),
        ("trace 1-99", "no topic with queue 1", "raftmq msg find TOPIC --key KEY"),
        ("group members nope", "consumer group 'nope' was not created", "raftmq group list"),
        ("group members nope -o json", "consumer group 'nope' was not", "raftmq group list"),
        ("group clone nope new orders", "'nope' has no place on 'orders'", "raftmq group list"),
        (
            "consume orders -g cache --instance one",
            "'cache' was never created: --instance",
            "raftmq group create cache --mode broadcast",
        ),
    ],
)
def test_error_says_what_would_be_right(
    raftmq: CommandLine, command: str, error: str, fix: str
) -> None:
    ended = raftmq(*command.split())
    assert ended.code == 1
    said, _, remedy = ended.stderr.partition("fix:")
    assert error in said
    assert fix in remedy


@pytest.mark.parametrize(
    ("reason", "message", "fix"),
    [
        (Reason.TLS, "Hostname mismatch, certificate is not valid for 'x'", "--host HOST`"),
        (Reason.TLS, "self-signed: `ca` is missing, or is the", "ca.pem: `raftmqs://HOST:PORT?ca"),
        (Reason.TLS, "the file of `crl` lacks the list of an authority", "`crl` names one file"),
        (Reason.TLS, "expired: the node needs another certificate", "`raftmq cert show FILE`"),
        (Reason.TLS, "it speaks no TLS: write raftmq://", "`raftmq://HOST:PORT` reaches nodes"),
        (Reason.TLS, "it does not accept this client: expired", "`raftmq cert make --user NAME`"),
        (Reason.TLS, "this node is under TLS: write raftmqs://", "`raftmqs://HOST:PORT?ca=FILE&"),
        (Reason.BAD_ARGUMENT, "the login file 'x': No such file", "raftmq token make NAME --lo"),
        (Reason.BAD_ARGUMENT, "'x' is a certificate, no login file", "cert=FILE` logs in by it"),
        (Reason.BAD_ARGUMENT, "x holds no private key: `cert` names", "writes such a file"),
    ],
)
def test_cases_of_a_reason_have_remedies_of_their_own(
    reason: Reason, message: str, fix: str
) -> None:
    assert fix in explained(Rejected(reason, message), url="raftmqs://db").fix


@pytest.mark.parametrize(
    "command", ["produce nope hello", "produce nope --count 3000", "produce orders hello -q 99"]
)
def test_nothing_sent_is_not_counted_before_the_error(raftmq: CommandLine, command: str) -> None:
    ended = raftmq(*command.split())
    assert (ended.code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("create jobs --order queue", "--order is for --mode ordered"),
        ("create jobs --mode pull --attempts 5", "--attempts is for groups that pop"),
        ("create jobs --mode broadcast --block", "--block is for groups that pop"),
    ],
)
def test_group_option_that_its_mode_would_ignore_is_refused(
    raftmq: CommandLine, command: str, error: str
) -> None:
    # Until then the option was kept, and an `--order` in a group that pops ordered nothing.
    ended = raftmq("group", *command.split())
    assert (ended.code, error in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("msg find orders -k none", "no message of orders has the key 'none'"),
        ("group members", "no members: a consumer is one if it shares queues"),
    ],
)
def test_nothing_found_is_said_in_words(raftmq: CommandLine, command: str, said: str) -> None:
    ended = raftmq.ok(*command.split())
    assert (ended.stdout, said in ended.stderr) == ("", True)


def test_commands_of_a_group_are_described_in_whole_sentences(raftmq: CommandLine) -> None:
    # click cut them at 45 characters: "Make NODE, running or to be started at ADDRESS, a member..."
    for group in ("cluster", "msg", "bench", "dlq", "tx", "delay", "topic", "group"):
        assert "..." not in raftmq.ok(group, "--help").stdout.partition("Commands:")[2]


def test_reset_of_a_group_that_there_is_not_is_refused_unless_it_shall_begin(
    raftmq: CommandLine,
) -> None:
    reset = ("group", "reset", "TYPO", "orders", "--to", "earliest")
    for command in (reset, (*reset, "--execute")):
        ended = raftmq(*command)
        assert (ended.code, ended.stdout) == (1, "")
        assert "there is no consumer group 'TYPO': there are none yet" in ended.stderr
        assert "--create" in ended.stderr.partition("fix:")[2]
    ended = raftmq.ok(*reset, "--create", "--execute")
    assert "TYPO had no place on orders before" in ended.stderr


def test_names_of_groups_are_listed_up_to_ten() -> None:
    assert listed_groups([]) == "there are none yet"
    assert listed_groups(["a", "b"]) == "there are a, b"
    assert listed_groups([f"g{n:02}" for n in range(12)]).endswith("g08, g09 and 2 more")
