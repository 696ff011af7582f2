"""Consumer groups from the command line, against a real three-node cluster."""

import pytest

from raftmq.cli.output import duration_text
from raftmq.cli.values import SCHEDULE
from tests.cli.command_line import CommandLine
from tests.cli.local_cluster import LocalCluster

pytestmark = pytest.mark.process


def test_group_is_created_altered_and_deleted(cluster: LocalCluster, raftmq: CommandLine) -> None:
    options = ("--attempts", "5", "--schedule", "1s,10s,2m", "-o", "json")
    made = raftmq.ok("group", "create", "life", *options).json
    assert (made["mode"], made["attempts_max"], made["schedule"]) == ("pop", 5, [1.0, 10.0, 120.0])
    assert raftmq.ok("group", "create", "life", *options).json == made
    assert raftmq.ok("group", "create", "life", "-o", "json").json == made
    other = raftmq("group", "create", "life", "--attempts", "6")
    assert other.code == 1
    assert "group alter life" in other.stderr
    altered = raftmq.ok("group", "alter", "life", "--invisible", "45s", "-o", "json").json
    assert altered == {**made, "invisible": 45.0}
    assert "waiting 1s 10s 2m" in raftmq.ok("group", "describe", "life").stdout
    mode = raftmq("group", "create", "life", "--mode", "pull")
    assert mode.code == 1
    assert "has mode pop, not pull" in mode.stderr
    raftmq.ok("group", "delete", "life", "--yes")
    gone = raftmq("group", "delete", "life", "--yes")
    assert gone.code == 1
    assert "group list" in gone.stderr


def test_schedule_that_rises_is_kept_as_its_list(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    # In whole milliseconds; 5.0625 s is none.
    options = ("--schedule", "1s*1.5..8s", "-o", "json")
    made = raftmq.ok("group", "create", "rising", *options).json
    assert made["schedule"] == [1.0, 1.5, 2.25, 3.375, 5.062, 7.594, 8.0]
    assert raftmq.ok("group", "create", "rising", *options).json == made
    raftmq.ok("group", "alter", "rising", "--schedule", "10s*3..1h")
    shown = raftmq.ok("group", "describe", "rising").stdout
    assert "waiting 10s 30s 1m30s 4m30s 13m30s 40m30s 1h" in shown
    refused = raftmq("group", "alter", "rising", "--schedule", "10s*3")
    assert (refused.code, "1s*2..1h" in refused.stderr) == (2, True)
    assert shown == raftmq.ok("group", "describe", "rising").stdout


def test_group_that_asks_before_it_is_deleted_needs_a_terminal(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    raftmq.ok("group", "create", "kept")
    assert "add --yes" in raftmq("group", "delete", "kept").stderr
    assert raftmq.ok("group", "describe", "kept").code == 0


def test_ordered_group_says_what_becomes_of_what_failed(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    raftmq.ok("group", "create", "ledger", "-m", "ordered", "--order", "queue", "--block")
    shown = raftmq.ok("group", "describe", "ledger").stdout
    assert "by queue; what failed for the last time blocks what comes after it" in shown
    refused = raftmq("group", "create", "loose", "--block")
    assert refused.code == 1
    assert "only messages of an ordered group" in refused.stderr


def test_group_is_attached_to_topics_and_listed_with_readers(
    raftmq: CommandLine, topic: str
) -> None:
    raftmq.ok("group", "create", "first", "--mode", "ordered")
    assert "takes messages of" in raftmq.ok("group", "attach", "first", topic).stderr
    raftmq.ok("group", "attach", "second", topic, "--from", "latest")
    raftmq.ok("produce", topic, "a", "b", "-k", "one")
    raftmq.ok("group", "create", "reader", "--mode", "pull")
    raftmq.ok("consume", topic, "-g", "reader", "-n", "1")
    groups = raftmq.ok("group", "list", "-t", topic, "-o", "json").json
    assert [(g["name"], g["mode"], g["lag"]) for g in groups] == [
        ("first", "ordered", 2), ("reader", "pull", 1), ("second", "pop", 2),
    ]  # fmt: skip
    assert "first" in raftmq.ok("group", "list").stdout
    described = raftmq.ok("group", "describe", "second", "-o", "json").json
    (attachment,) = described["settings"]["attachments"]
    assert (attachment["topic"], attachment["is_latest"]) == (topic, True)
    raftmq.ok("group", "detach", "second", topic, "--yes")
    assert "no topic yet" in raftmq.ok("group", "describe", "second").stderr
    assert "took none" in raftmq.ok("group", "detach", "second", topic, "--yes").stderr


def test_group_described_has_the_lag_and_the_mode_that_the_list_shows(
    raftmq: CommandLine, topic: str
) -> None:
    # The lag of a group that pops was 0 in the JSON, and an instance of a broadcast was `pull`.
    raftmq.ok("group", "attach", "behind", topic)
    raftmq.ok("group", "create", "cache", "--mode", "broadcast")
    raftmq.ok("consume", topic, "-g", "cache", "--instance", "one", "-e")
    raftmq.ok("produce", topic, "a", "b")
    groups = raftmq.ok("group", "list", "-t", topic, "-o", "json").json
    listed = {each["name"]: (each["mode"], each["lag"]) for each in groups}
    assert listed == {"behind": ("pop", 2), "cache@one": ("broadcast", 2)}
    for name, both in listed.items():
        described = raftmq.ok("group", "describe", name, "-o", "json").json
        assert (described["mode"], described["lag"]) == both
        (line,) = raftmq.ok("group", "lag", name, "-t", topic, "-o", "json").json["groups"]
        assert (line["mode"], line["lag"]) == both


def test_order_and_run_of_a_group_never_change(cluster: LocalCluster, raftmq: CommandLine) -> None:
    refused = raftmq("group", "create", "plain", "--order", "queue")
    assert (refused.code, "--order is for --mode ordered" in refused.stderr) == (2, True)
    raftmq.ok("group", "create", "strict", "--mode", "ordered", "--order", "key", "--block")
    for other in (("--order", "queue"), ("--run", "1")):
        again = raftmq("group", "create", "strict", "--mode", "ordered", *other)
        assert again.code == 1
        assert "keeps its order and run: take another name" in again.stderr
        assert raftmq("group", "alter", "strict", *other).code == 2
    altered = raftmq.ok("group", "alter", "strict", "--no-block", "-o", "json").json
    assert (altered["order"], altered["run"], altered["is_blocking"]) == ("key", 65_536, False)


def test_lag_that_is_not_known_is_a_dash(raftmq: CommandLine, topic: str) -> None:
    # Only what was committed counted, so a group that had not come to a queue had no lag there.
    raftmq.ok("produce", topic, "a", "b", "-q", "0")
    raftmq.ok("produce", topic, "c", "-q", "1")
    raftmq.ok("consume", topic, "-g", "slow", "-q", "0", "-n", "1")
    (listed,) = raftmq.ok("group", "list", "-t", topic, "-o", "json").json
    assert (listed["name"], listed["lag"]) == ("slow", None)
    described = raftmq.ok("group", "describe", "slow", "-o", "json").json
    assert described["lag"] is None
    offsets = [(each["queue"], each["committed"], each["lag"]) for each in described["offsets"]]
    assert offsets == [(0, 1, 1), (1, None, None), (2, None, 0), (3, None, 0)]
    (line,) = raftmq.ok("group", "lag", "slow", "-o", "json").json["groups"]
    assert (line["lag"], line["done"]) == (None, 1)
    assert raftmq.ok("group", "list", "-t", topic).stdout.splitlines()[1].split()[-1] == "-"
    assert raftmq.ok("group", "lag", "slow").stdout.splitlines()[1].split()[-1] == "-"
    shown = raftmq.ok("group", "describe", "slow").stdout.splitlines()
    assert shown[0] == "slow, lag -"
    assert shown[3].split() == [topic, "1", "-", "0", "1", "-", "0", "-"]
    raftmq.ok("consume", topic, "-g", "slow", "-e")
    assert raftmq.ok("group", "describe", "slow", "-o", "json").json["lag"] == 0
    raftmq.ok("group", "create", "fresh", "--mode", "pull")
    groups = {each["name"]: each for each in raftmq.ok("group", "list", "-o", "json").json}
    assert groups["fresh"]["lag"] is None


def test_group_that_nobody_knows_is_refused_with_what_to_do(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    described = raftmq("group", "describe", "nobody")
    assert (described.code, "group list" in described.stderr) == (1, True)
    altered = raftmq("group", "alter", "nobody", "--attempts", "3")
    assert (altered.code, "group create nobody" in altered.stderr) == (1, True)
    assert raftmq("group", "alter", "nobody").code == 2


def test_reset_of_a_misspelt_group_names_those_that_there_are_and_makes_none(
    raftmq: CommandLine, topic: str
) -> None:
    raftmq.ok("produce", topic, "a", "b", "-k", "one")
    raftmq.ok("consume", topic, "-g", "biling", "-n", "1")
    reset = ("group", "reset", "billing", topic, "--to", "earliest", "--execute")
    refused = raftmq(*reset)
    assert refused.code == 1
    assert "there is no consumer group 'billing': there are" in refused.stderr
    assert "biling" in refused.stderr
    assert raftmq("group", "describe", "billing").code == 1
    raftmq.ok(*reset, "--create")
    assert raftmq.ok("consume", topic, "-g", "billing", "-e").stdout == "a\nb\n"
    # It is there now.
    raftmq.ok(*reset)


@pytest.mark.parametrize("text", ["250ms", "1.5s", "10s", "2m", "1h", "7d"])
def test_duration_is_shown_as_it_is_typed(text: str) -> None:
    assert duration_text(SCHEDULE.read(text)[0]) == text


def test_durations_are_read_one_by_one() -> None:
    assert SCHEDULE.read("1s, 2m,1h") == (1.0, 120.0, 3600.0)
    with pytest.raises(ValueError, match="'' is not a duration"):
        SCHEDULE.read("1s,,2s")
