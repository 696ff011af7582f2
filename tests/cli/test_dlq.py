"""Dead letters from the command line, against a real three-node cluster."""

import os
import time

import pytest

from raftmq import blocking
from raftmq.cli.values import RATE
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.process


def bury(raftmq: CommandLine, topic: str, group: str) -> None:
    """Dead letters: of `a` and `b` with tag paid, and of `c`, each rejected by itself."""
    raftmq.ok("produce", topic, "a", "b", "-q", "0", "-k", "k1", "--tag", "paid")
    raftmq.ok("produce", topic, "c", "-q", "1", "-p", "amount=7")
    lines = raftmq.ok("pop", topic, "-g", group, "-n", "3", "--wait", "5s", "-f", "%v %H\n").stdout
    handles = dict(line.split() for line in lines.splitlines())
    raftmq.ok("reject", handles["a"], "--reason", "no account")
    raftmq.ok("reject", handles["b"], "--reason", "no account")
    raftmq.ok("reject", handles["c"])


def test_dead_letters_are_listed_and_shown(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    bury(raftmq, topic, group)
    listed = raftmq.ok("dlq", "list", "-t", topic, "-o", "json").json
    assert listed == [{"group": group, "topic": topic, "dead": 3}]
    assert group in raftmq.ok("dlq", "list").stdout
    shown = raftmq.ok("dlq", "show", topic, "-g", group, "-o", "json").lines
    assert sorted((each["body"], each["reason"], each["attempts"]) for each in shown) == [
        ("a", "no account", 1), ("b", "no account", 1), ("c", "rejected", 1),
    ]  # fmt: skip
    paid = raftmq.ok("dlq", "show", topic, "-g", group, "--filter", "paid", "-n", "1", "-o", "json")
    assert [each["body"] for each in paid.lines] == ["a"]
    table = raftmq.ok("dlq", "show", topic, "-g", group, "--reason", "rejected").stdout
    assert table.splitlines()[0].split()[0] == "LETTER"
    assert table.splitlines()[1].endswith("c")
    letter = shown[0]["letter"]
    one = raftmq.ok("dlq", "show", topic, "-g", group, "-l", letter, "-l", "9-99", "-o", "json")
    assert [each["letter"] for each in one.lines] == [letter]
    assert "no dead letter 9-99" in one.stderr
    exported = raftmq.ok("dlq", "export", topic, "-g", group, "--filter", "amount > 5")
    assert [each["props"] for each in exported.lines] == [{"amount": 7}]
    assert "1 message" in exported.stderr


def test_nothing_is_changed_before_execute_is_said(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    bury(raftmq, topic, group)
    for command in ("redrive", "purge"):
        dry = raftmq.ok("dlq", command, topic, "-g", group, "-o", "json")
        assert (dry.json["executed"], dry.json["messages"]) == (False, 3)
        assert "nothing was changed" in dry.stderr
    assert raftmq.ok("dlq", "list", "-t", topic, "-o", "json").json[0]["dead"] == 3


def test_chosen_letters_are_handed_out_again_and_others_purged(
    raftmq: CommandLine, topic: str
) -> None:
    group = f"g-{topic}"
    bury(raftmq, topic, group)
    done = raftmq.ok("dlq", "redrive", topic, "-g", group, "--filter", "amount > 5", "--execute")
    assert done.stdout == "1 message in 1 letter handed out again\n"
    again = raftmq.ok("pop", topic, "-g", group, "--wait", "5s", "--ack", "-f", "%a %v")
    assert again.stdout == "1 c"
    purged = raftmq.ok("dlq", "purge", topic, "-g", group, "--execute", "-o", "json").json
    assert (purged["messages"], purged["letters"]) == (2, 2)
    assert raftmq.ok("dlq", "list", "-t", topic).stdout == ""


def test_letters_are_sent_to_another_topic_as_they_were(raftmq: CommandLine, topic: str) -> None:
    group, target = f"g-{topic}", f"to-{topic}"
    bury(raftmq, topic, group)
    raftmq.ok("topic", "create", target, "-q", "1")
    itself = raftmq("dlq", "redrive", topic, "-g", group, "--to", topic)
    assert itself.code == 2
    raftmq.ok("dlq", "redrive", topic, "-g", group, "--to", target, "--execute")
    found = raftmq.ok("consume", target, "-e", "-o", "json").lines
    assert sorted((m["body"], m["key"], m["tag"], m["props"].get("amount")) for m in found) == [
        ("a", "k1", "paid", None), ("b", "k1", "paid", None), ("c", None, None, 7),
    ]  # fmt: skip
    assert raftmq.ok("dlq", "list", "-t", topic).stdout == ""


def bury_together(raftmq: CommandLine, topic: str, group: str) -> dict[str, str]:
    """One letter of `a`, `b`, `c`, `d`, of which `a` and `c` have tag paid: body → id."""
    for body in "abcd":
        tag = ("--tag", "paid") if body in "ac" else ()
        raftmq.ok("produce", topic, body, "-q", "0", *tag)
    with (
        blocking.connect(os.environ["RAFTMQ_URL"]) as mq,
        mq.consumer(topic, group=group, mode="pop", prefetch=0) as consumer,
    ):
        # Handles are settled one by one; messages that a consumer rejects together are one letter.
        consumer.pop(100, wait=5.0).reject()
    shown = raftmq.ok("dlq", "show", topic, "-g", group, "-o", "json").lines
    assert len({each["letter"] for each in shown}) == 1
    return {each["body"]: each["id"] for each in shown}


def dead(raftmq: CommandLine, topic: str, group: str) -> str:
    """The bodies in dead letters."""
    lines = raftmq.ok("dlq", "export", topic, "-g", group).lines
    return "".join(sorted(each["body"] for each in lines))


def test_exactly_the_messages_of_a_letter_that_match_are_redriven(
    raftmq: CommandLine, topic: str
) -> None:
    group = f"g-{topic}"
    bury_together(raftmq, topic, group)
    choice = ("dlq", "redrive", topic, "-g", group, "--filter", "paid")
    dry = raftmq.ok(*choice, "-o", "json").json
    assert (dry["messages"], dry["letters"]) == (2, 1)
    assert dead(raftmq, topic, group) == "abcd"
    done = raftmq.ok(*choice, "--execute", "-o", "json").json
    assert done == {**dry, "executed": True}
    again = raftmq.ok("pop", topic, "-g", group, "-n", "8", "--ack", "-f", "%v %a,").stdout
    assert sorted(again.split(",")) == ["", "a 1", "c 1"]
    assert dead(raftmq, topic, group) == "bd"


def test_exactly_the_messages_that_are_named_are_purged_sent_or_shown(
    raftmq: CommandLine, topic: str
) -> None:
    group, target = f"g-{topic}", f"to-{topic}"
    ids = bury_together(raftmq, topic, group)
    raftmq.ok("topic", "create", target, "-q", "1")
    shown = raftmq.ok("dlq", "show", topic, "-g", group, "-i", ids["b"].upper(), "-o", "json")
    assert [each["body"] for each in shown.lines] == ["b"]
    named = ("-i", ids["b"], "-i", "1-ff", "--execute")
    purged = raftmq.ok("dlq", "purge", topic, "-g", group, *named, "-o", "json")
    assert (purged.json["messages"], purged.json["letters"]) == (1, 1)
    assert "no message 1-ff in a dead letter" in purged.stderr
    raftmq.ok("dlq", "redrive", topic, "-g", group, "-i", ids["d"], "--to", target, "--execute")
    assert [m["body"] for m in raftmq.ok("consume", target, "-e", "-o", "json").lines] == ["d"]
    assert dead(raftmq, topic, group) == "ac"
    both = ("-i", ids["a"], "--filter", "NOT tag = 'paid'", "--execute")
    assert raftmq.ok("dlq", "purge", topic, "-g", group, *both, "-o", "json").json["messages"] == 0
    wrong = raftmq("dlq", "show", topic, "-g", group, "-i", "nonsense")
    assert (wrong.code, "no message id" in wrong.stderr) == (1, True)


def test_rate_bounds_how_fast_the_messages_of_one_letter_go_out(
    raftmq: CommandLine, topic: str
) -> None:
    group = f"g-{topic}"
    bury_together(raftmq, topic, group)
    begun = time.monotonic()
    done = raftmq.ok("dlq", "redrive", topic, "-g", group, "--rate", "4/s", "--execute").stdout
    assert time.monotonic() - begun >= 1.0
    assert done == "4 messages in 1 letter handed out again\n"


def test_history_of_a_dead_letter_is_shown(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    bury(raftmq, topic, group)
    shown = raftmq.ok("dlq", "show", topic, "-g", group, "--history", "-o", "json").lines
    for each in shown:
        what = [event["what"] for event in each["history"]]
        assert what == ["stored", "handed out", "dead letter"]
        assert each["history"][-1]["reason"] == each["reason"]
    table = raftmq.ok("dlq", "show", topic, "-g", group, "--history").stdout
    assert table.count("handed out") == 3


def test_rate_bounds_how_fast_letters_are_handed_out(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    bury(raftmq, topic, group)
    begun = time.monotonic()
    raftmq.ok("dlq", "redrive", topic, "-g", group, "--rate", "2/s", "--execute")
    assert time.monotonic() - begun >= 1.5


def test_what_is_not_there_is_refused(raftmq: CommandLine, topic: str) -> None:
    nobody = raftmq("dlq", "show", topic, "-g", "nobody")
    assert (nobody.code, "group list" in nobody.stderr) == (1, True)
    wrong = raftmq("dlq", "show", topic, "-g", "nobody", "--filter", "x =")
    assert (wrong.code, "filter explain" in wrong.stderr) == (1, True)


def test_rate_is_read_by_the_second() -> None:
    assert [RATE.read(text) for text in ("100/s", "0.5/s", "600/m", "20")] == [100, 0.5, 10, 20]
    for wrong in ("0/s", "fast", "10/d", "-1"):
        with pytest.raises(ValueError, match="is not a rate"):
            RATE.read(wrong)


def test_letters_far_apart_in_one_queue_are_read(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    raftmq.ok("produce", topic, "--count", "12000", "--size", "20", "-q", "2")
    handles: dict[str, str] = {}
    while len(handles) < 12000:
        popped = raftmq.ok("pop", topic, "-g", group, "-n", "12000", "-f", "%o %H\n").stdout
        handles |= dict(line.split() for line in popped.splitlines())
    raftmq.ok("reject", handles["3"], handles["5"], handles["11998"])
    shown = raftmq.ok("dlq", "export", topic, "-g", group).lines
    assert sorted(each["offset"] for each in shown) == [3, 5, 11998]
