"""Popping and settling from the command line, against a real three-node cluster."""

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.command_line import CommandLine, process
from tests.cli.local_cluster import LocalCluster, wait_until

pytestmark = pytest.mark.process


def test_popped_messages_are_settled_by_their_handles(raftmq: CommandLine, topic: str) -> None:
    raftmq.ok("produce", topic, *"abcde", "-k", "one", "--tag", "paid")
    group = f"g-{topic}"
    shown = raftmq.ok("pop", topic, "-g", group).stdout.splitlines()
    heading = ["HANDLE", "TRY", "UNTIL", "ID", "KEY", "TAG", "BODY"]
    assert shown[0].split() == heading
    first = shown[1].split()[0]
    assert shown[1].endswith("a")
    taken = raftmq.ok("pop", topic, "-g", group, "-n", "10", "-o", "json").lines
    assert [(message["body"], message["attempt"]) for message in taken] == [
        ("b", 1), ("c", 1), ("d", 1), ("e", 1),
    ]  # fmt: skip
    assert "nothing of" in raftmq.ok("pop", topic, "-g", group, "--wait", "10ms").stderr
    assert "1 message acknowledged" in raftmq.ok("ack", first).stderr
    late = raftmq("reject", first, taken[0]["handle"], "-o", "json")
    assert late.code == 1
    assert late.json == {"settled": 1, "acked_before": [], "not_settled": [first]}
    assert "settled before" in late.stderr
    raftmq.ok("extend", taken[1]["handle"], "--for", "2m")
    dead = raftmq.ok("reject", taken[1]["handle"], "--reason", "no such order")
    assert dead.stderr == "1 message dead-lettered\n"
    raftmq.ok("nack", taken[2]["handle"], taken[3]["handle"], "--delay", "0s")
    again = raftmq.ok("pop", topic, "-g", group, "-n", "10", "-f", "%a %v %g\n", "--ack")
    assert sorted(again.stdout.splitlines()) == ["2 d paid", "2 e paid"]
    assert raftmq.ok("pop", topic, "-g", group, "--wait", "0s", "-o", "raw").stdout == ""


def test_acknowledging_again_is_done_already_and_another_settlement_is_too_late(
    raftmq: CommandLine, topic: str
) -> None:
    raftmq.ok("produce", topic, *"abcdef")
    group = f"g-{topic}"
    handles: list[str] = []
    while len(handles) < 6:
        taken = raftmq.ok("pop", topic, "-g", group, "-n", "6", "-o", "json").lines
        handles += [message["handle"] for message in taken]
    raftmq.ok("ack", *handles[:3])
    raftmq.ok("nack", handles[3], "--delay", "1h")
    raftmq.ok("reject", handles[4])
    again = raftmq.ok("ack", *handles[:3])
    assert again.stderr == "0 messages acknowledged, 3 messages before\n"
    mixed = raftmq("ack", *handles[2:], "-o", "json")
    assert mixed.code == 1
    assert mixed.json == {
        "settled": 1,
        "acked_before": [handles[2]],
        "not_settled": [handles[3], handles[4]],
    }
    assert raftmq("nack", handles[0]).code == 1


def test_handles_are_read_from_stdin_as_json_or_words(raftmq: CommandLine, topic: str) -> None:
    raftmq.ok("produce", topic, *"abcd")
    group = f"g-{topic}"
    taken = raftmq.ok("pop", topic, "-g", group, "-n", "2", "-o", "json").stdout
    done = process(["ack", "-"], data=taken.encode())
    assert (done.code, done.stderr) == (0, "2 messages acknowledged\n")
    words = raftmq.ok("pop", topic, "-g", group, "-n", "2", "-f", "%H ").stdout
    assert process(["ack", "-"], data=words.encode()).code == 0
    wrong = process(["ack", "-"], data=json.dumps({"body": "x"}).encode())
    assert (wrong.code, "no JSON with a handle" in wrong.stderr) == (2, True)


def test_what_is_no_handle_is_refused(cluster: LocalCluster, raftmq: CommandLine) -> None:
    refused = raftmq("ack", "nonsense")
    assert (refused.code, "is no handle" in refused.stderr) == (1, True)


def test_time_that_is_too_long_is_refused_with_its_bounds(raftmq: CommandLine, topic: str) -> None:
    raftmq.ok("produce", topic, "a")
    (taken,) = raftmq.ok("pop", topic, "-g", f"g-{topic}", "-o", "json").lines
    extended = raftmq("extend", taken["handle"], "--for", "10d")
    assert "extend by 864000 s is out of range: a lease ends within 12 h" in extended.stderr
    failed = raftmq("nack", taken["handle"], "--delay", "8d")
    assert "nack by 691200 s is out of range: 0 s to 7 days" in failed.stderr
    assert (extended.code, failed.code) == (1, 1)


def test_message_whose_time_ran_out_comes_again(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    raftmq.ok("group", "create", group, "--schedule", "0s", "--invisible", "1s")
    raftmq.ok("produce", topic, "a")
    taken = raftmq.ok("pop", topic, "-g", group, "-f", "%H").stdout

    def again() -> bool:
        return raftmq("pop", topic, "-g", group, "-f", "%a %v").stdout == "2 a"

    wait_until(again, what="the message comes again")
    late = raftmq("ack", taken)
    assert late.code == 1
    assert f"no longer ours: {taken}" in late.stderr


def test_ordered_group_is_popped_in_order_and_others_are_not_popped(
    raftmq: CommandLine, topic: str
) -> None:
    ordered, broadcast = f"o-{topic}"[:60], f"b-{topic}"[:60]
    raftmq.ok("group", "create", ordered, "-m", "ordered", "--run", "1")
    raftmq.ok("group", "create", broadcast, "-m", "broadcast")
    raftmq.ok("produce", topic, "a", "b", "-k", "one")
    assert raftmq.ok("pop", topic, "-g", ordered, "-n", "5", "-f", "%v").stdout == "a"
    refused = raftmq("pop", topic, "-g", broadcast)
    assert (refused.code, "raftmq consume" in refused.stderr) == (1, True)


def test_consume_pops_for_a_group_that_pops(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    raftmq.ok("group", "attach", group, topic)
    raftmq.ok("produce", topic, *"abcde", "-k", "one")
    assert raftmq.ok("consume", topic, "-g", group, "-n", "2").stdout.split() == ["a", "b"]
    found = raftmq.ok("consume", topic, "-g", group, "-e", "-o", "json").lines
    assert [message["body"] for message in found] == ["c", "d", "e"]
    (line,) = raftmq.ok("group", "lag", group, "-o", "json").json["groups"]
    assert (line["lag"], line["in_hand"], line["done"]) == (0, 0, 5)
    refused = raftmq("consume", topic, "-g", group, "-q", "1")
    assert (refused.code, "leave out --queue" in refused.stderr) == (1, True)


def test_consume_pops_for_a_new_group(raftmq: CommandLine, topic: str) -> None:
    group = f"n-{topic}"
    raftmq.ok("produce", topic, *"abc", "-k", "one")
    assert raftmq.ok("consume", topic, "-g", group, "-n", "2").stdout.split() == ["a", "b"]
    (line,) = raftmq.ok("group", "lag", group, "-o", "json").json["groups"]
    assert (line["mode"], line["lag"], line["done"]) == ("pop", 1, 2)


def test_lag_says_what_is_left_of_each_kind(raftmq: CommandLine, topic: str) -> None:
    popping, reading = f"p-{topic}"[:60], f"r-{topic}"[:60]
    raftmq.ok("produce", topic, *"abcdefgh", "-k", "one")
    taken = raftmq.ok("pop", topic, "-g", popping, "-n", "4", "-f", "%H ").stdout.split()
    raftmq.ok("ack", taken[0])
    raftmq.ok("nack", taken[1])
    raftmq.ok("reject", taken[2])
    # It names a queue, so it reads by offset, and goes on doing so.
    queue = str(raftmq.ok("consume", topic, "-n", "1", "-o", "json").json["queue"])
    raftmq.ok("consume", topic, "-g", reading, "-q", queue, "-n", "2")
    raftmq.ok("consume", topic, "-g", reading, "-n", "1")
    lines = raftmq.ok("group", "lag", "-t", topic, "-o", "json").json["groups"]
    fields = ("mode", "lag", "in_hand", "waiting", "ready", "dead", "done")
    assert {line["group"]: [line[name] for name in fields] for line in lines} == {
        popping: ["pop", 6, 1, 1, 0, 1, 1],
        reading: ["pull", 5, None, None, None, None, 3],
    }
    shown = raftmq.ok("group", "lag", popping).stdout.splitlines()
    assert shown[1].split() == [popping, "pop", topic, "6", "1", "1", "0", "1"]
    described = raftmq.ok("group", "describe", popping, "-o", "json").json
    assert sum(each["dead"] for each in described["backlogs"]) == 1
    listed = {each["name"]: each["lag"] for each in raftmq.ok("group", "list", "-o", "json").json}
    assert (listed[popping], listed[reading]) == (6, 5)
    unknown = raftmq("group", "lag", "nobody")
    assert (unknown.code, "no consumer group 'nobody'" in unknown.stderr) == (1, True)


def test_top_tells_rates_between_two_looks(raftmq: CommandLine, topic: str) -> None:
    group = f"g-{topic}"
    raftmq.ok("group", "attach", group, topic)
    look = raftmq.ok("top", "--once", "--every", "100ms", "-t", topic, "-o", "json").json
    assert [(line["topic"], line["end"]) for line in look["topics"]] == [(topic, 0)]
    assert [(line["group"], line["done_rate"]) for line in look["groups"]] == [(group, 0.0)]
    shown = raftmq.ok("top", "--once", "--every", "100ms", "-t", topic).stdout.splitlines()
    assert shown[0].split() == ["TOPIC", "QUEUES", "STORED", "STORED/s"]
    assert shown[2].split()[-1] == "DONE/s"


def test_watching_ends_quietly_with_ctrl_c(cluster: LocalCluster) -> None:
    command = [sys.executable, "-m", "raftmq", "group", "lag", "--watch", "--every", "100ms"]
    watching = subprocess.Popen(
        [*command, "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert watching.stdout is not None
    for _ in range(2):
        assert "groups" in json.loads(watching.stdout.readline())
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=30)
    assert (watching.returncode, errors) == (0, b"")
