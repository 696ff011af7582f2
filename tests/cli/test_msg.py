"""Single messages from the command line: get, find, why and trace."""

import pytest

from raftmq.cli.messages.msg import events_table
from raftmq.cli.messages.trace import picture
from raftmq.cli.output import print_table
from raftmq.client import Journey, MessageEvent, Trace
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster


def event(
    what: str, at: int, *, until: int = 0, attempt: int = 0, reason: str = ""
) -> MessageEvent:
    """An event of group `g` at a time."""
    consumer, token = (0xABCDEF << 40, 7) if attempt else (0, 0)
    return MessageEvent(what, at, at, 3, 2, "g", consumer, token, attempt, until, reason)


def drawn(state: str, *events: MessageEvent, now: int = 0) -> list[str]:
    stored = event("stored", 1_000_000)
    journeys = (Journey("g", state, events),) if events else ()
    found = Trace("10000-0", "orders", 0, 0, stored, journeys, is_whole=True)
    return list(picture(found, now=now, width=20))


def test_bars_of_a_message_share_one_scale_and_meet_where_something_happened() -> None:
    lines = drawn(
        "acked",
        event("handed out", 1_002_000, attempt=1),
        event("nacked", 1_006_000, attempt=1, until=1_012_000),
        event("ready", 1_012_000, attempt=1),
        event("handed out", 1_014_000, attempt=2),
        event("acked", 1_020_000, attempt=2),
    )
    assert lines[3:] == [
        "g: acked 20s after it was stored, 2 attempts",
        "  fresh         2s  |..                  |",
        "  in hand       4s  |  ====              |  nacked by abcdef",
        "  waiting       6s  |      ------        |",
        "  ready         2s  |            ..      |",
        "  in hand       6s  |              ======|  acked by abcdef",
    ]


def test_what_goes_on_is_drawn_up_to_now() -> None:
    handed = event("handed out", 1_005_000, attempt=1)
    lines = drawn("leased", handed, now=1_010_000)
    assert lines[-1] == "  in hand       5s  |          ==========|  by abcdef"


def test_moment_is_a_bar_of_one_character() -> None:
    lines = drawn(
        "dead",
        event("handed out", 1_000_000, attempt=1),
        event("dead letter", 1_000_000, attempt=1, reason="no account"),
    )
    assert lines[3:] == [
        "g: dead 0s after it was stored, 1 attempt: no account",
        "  fresh         0s  |.                   |",
        "  in hand       0s  |=                   |  dead letter by abcdef",
        "  dead          0s  |x                   |",
    ]


def test_message_that_no_group_came_to_is_only_stored() -> None:
    assert drawn("fresh")[2:] == ["no consumer group that pops has come to it"]


@pytest.mark.parametrize(
    ("later", "state", "detail"),
    [
        ("purged", "purged", "no longer there: purged"),
        ("redriven", "ready", "no longer there: redriven"),
        ("reset", "fresh", "no longer there: reset"),
        ("acked", "dead", "-"),
    ],
)
def test_letter_that_is_gone_is_said_to_be_gone(
    capsys: pytest.CaptureFixture[str], later: str, state: str, detail: str
) -> None:
    events = (
        event("handed out", 1_000_000, attempt=1, until=1_030_000),
        event("dead letter", 1_001_000, attempt=1),
        event(later, 1_002_000),
    )
    found = Trace("10000-0", "orders", 0, 0, None, (Journey("g", state, events),), is_whole=True)
    print_table(events_table(found))
    _, _, dead, _ = capsys.readouterr().out.splitlines()
    assert detail in dead.partition(" 1 ")[2]
    assert ("no longer there" in dead) == (detail != "-")


def test_letter_of_a_group_that_is_gone_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    dead = event("dead letter", 1_001_000, attempt=1)._replace(group="#7")
    found = Trace("10000-0", "o", 0, 0, None, (Journey("#7", "dead", (dead,)),), is_whole=True)
    print_table(events_table(found))
    assert "no longer there: its group is gone" in capsys.readouterr().out


@pytest.mark.process
def test_message_is_got_found_and_told_of(cluster: LocalCluster, raftmq: CommandLine) -> None:
    raftmq.ok("topic", "create", "orders", "--queues", "2")
    raftmq.ok("produce", "orders", "hello", "-k", "order-1", "--tag", "paid", "-p", "n=1")
    raftmq.ok("produce", "orders", "other", "-k", "order-2")
    (found,) = raftmq.ok("msg", "find", "orders", "-k", "order-1", "-o", "json").lines
    assert (found["body"], found["tag"]) == ("hello", "paid")
    message_id = found["id"]
    assert raftmq.ok("msg", "find", "orders", "-k", "order-1", "--since", "1h", "-o", "json").lines
    table = raftmq.ok("msg", "find", "orders", "-k", "order-1").stdout.splitlines()
    assert (len(table), table[0].split()[0]) == (2, "ID")
    assert raftmq("msg", "find", "orders", "-k", "order-1", "--since", "earliest").code == 2
    assert "body     hello" in raftmq.ok("msg", "get", message_id).stdout
    assert raftmq.ok("msg", "get", message_id, "-o", "raw").stdout == "hello"
    assert raftmq.ok("msg", "get", message_id, "-o", "json").json == found
    assert raftmq("msg", "get", "nonsense").code == 1

    handles = raftmq.ok("pop", "orders", "-g", "g", "-n", "2", "--wait", "5s", "-f", "%i %H\n")
    handle = dict(line.split() for line in handles.stdout.splitlines())[message_id]
    raftmq.ok("reject", handle, "--reason", "no account")
    told = raftmq.ok("msg", "why", message_id, "-o", "json").lines
    assert [each["what"] for each in told] == ["stored", "handed out", "dead letter"]
    assert told[2] == told[2] | {"group": "g", "attempt": 1, "reason": "no account"}
    assert len({each["consumer"] for each in told[1:]}) == 1
    why = raftmq.ok("msg", "why", message_id).stdout.splitlines()
    assert [line.split()[0] for line in why[:1]] == ["TIME"]
    assert "no account" in why[3]
    way = raftmq.ok("trace", message_id, "-o", "json").json
    assert [(each["group"], each["state"]) for each in way["groups"]] == [("g", "dead")]
    assert "g: dead" in raftmq.ok("trace", message_id).stdout
    raftmq.ok("dlq", "purge", "orders", "-g", "g", "--execute")
    why = raftmq.ok("msg", "why", message_id).stdout.splitlines()
    assert "no longer there: purged" in why[3]
