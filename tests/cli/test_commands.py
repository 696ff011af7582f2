"""The commands against a real three-node cluster."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq.cli.node.playground import choose_ports
from tests.cli.command_line import CommandLine, process
from tests.cli.local_cluster import LocalCluster, wait_until

pytestmark = pytest.mark.process


def test_topic_lives_and_dies(cluster: LocalCluster, raftmq: CommandLine) -> None:
    made = raftmq("topic", "create", "life", "-q", "3", "-o", "json")
    assert made.json["queues"] == 3
    assert raftmq("topic", "create", "life", "-q", "3").code == 0
    other = raftmq("topic", "create", "life", "-q", "5")
    assert other.code == 1
    assert "topic alter" in other.stderr
    assert raftmq.ok("topic", "alter", "life", "-q", "5", "-o", "json").json["queues"] == 5
    assert "life" in {entry["name"] for entry in raftmq.ok("topic", "list", "-o", "json").json}
    described = raftmq.ok("topic", "describe", "life", "-o", "json").json
    assert [queue["queue"] for queue in described["queues"]] == [0, 1, 2, 3, 4]
    assert "EARLIEST" in raftmq.ok("topic", "describe", "life").stdout
    assert raftmq("topic", "delete", "life", "--yes").code == 0
    assert raftmq("topic", "describe", "life").code == 1


def test_what_is_produced_is_consumed(raftmq: CommandLine, topic: str) -> None:
    sent = raftmq(
        *("produce", topic, "hello", "消息", "-k", "k1", "--tag", "paid"),
        *("-p", "buyerId=7", "-p", "city=Paris", "-o", "json"),
    )
    assert [receipt["offset"] for receipt in sent.lines] == [0, 1]
    assert raftmq.ok("consume", topic, "-n", "2").stdout == "hello\n消息\n"
    found = raftmq.ok("consume", topic, "-n", "2", "-o", "json").lines
    assert [message["body"] for message in found] == ["hello", "消息"]
    assert [message["id"] for message in found] == [receipt["id"] for receipt in sent.lines]
    assert found[0]["props"] == {"buyerId": 7, "city": "Paris"}
    assert (found[0]["key"], found[0]["tag"]) == ("k1", "paid")
    assert [message["sequence"] for message in found] == [0, 1]
    assert len({message["producer"] for message in found}) == 1
    (got,) = raftmq.ok("msg", "get", found[1]["id"], "-o", "json").lines
    assert got == found[1]
    formatted = raftmq("consume", topic, "-e", "-f", r"%k\t%v|%g\n")
    assert formatted.stdout == "k1\thello|paid\nk1\t消息|paid\n"
    table = raftmq.ok("consume", topic, "-e", "-o", "table").stdout.splitlines()
    assert table[0].split()[0] == "ID"
    assert len(table) == 3


def test_line_that_cannot_be_sent_is_named_and_what_is_before_it_is_counted(
    topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" * 50_000 + b"x" * (17 << 20) + b"\nshort\n")
    ended = process(["produce", topic, "--file", str(path)])
    assert ended.code == 1
    (sent,) = re.findall(r"nothing from line ([\d,]+) on is sent", ended.stderr)
    assert "line 50,001 is too large" in ended.stderr
    stored = int(sent.replace(",", "")) - 1
    assert f"{stored:,} messages stored" in ended.stderr
    assert "not known" not in ended.stderr
    wrong = process(["produce", topic, "-K", ":"], data=b"a:1\nb:2\nc\n")
    assert (wrong.code, "line 3 has no separator ':'" in wrong.stderr) == (1, True)
    assert "2 messages stored" in wrong.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("group", "lag"),
        ("cluster", "status"),
        ("produce", "few", "hello", "world", "-k", "k1"),
        ("pop", "few", "-g", "few-pop"),
        ("consume", "few", "-n", "1"),
    ],
    ids=" ".join,
)
def test_a_small_command_runs_without_numpy(
    raftmq: CommandLine, cluster: LocalCluster, arguments: tuple[str, ...]
) -> None:
    raftmq.ok("topic", "create", "few")
    raftmq.ok("produce", "few", "first")
    program = (
        "import sys\n"
        "from raftmq.cli.app import run\n"
        f"code = run({[*arguments]!r})\n"
        "print(code, 'numpy' in sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "0 False"


def test_delayed_messages_are_sent_and_taken_back(raftmq: CommandLine, topic: str) -> None:
    sent = raftmq.ok("produce", topic, "late", "gone", "--delay", "1h", "-o", "json").lines
    assert [receipt["offset"] for receipt in sent] == [None, None]
    assert all(receipt["deliver_at_ms"] > receipt["timestamp"] for receipt in sent)
    first = sent[1]["id"]
    assert raftmq.ok("delay", "cancel", first).stdout == f"{first}  cancelled\n"
    again = raftmq.ok("delay", "cancel", first, "-o", "json").lines
    assert again == [{"id": first, "outcome": "not_waiting"}]
    (soon,) = raftmq.ok("produce", topic, "soon", "--delay", "100ms", "-o", "json").lines
    assert raftmq.ok("consume", topic, "-n", "1").stdout == "soon\n"
    late = raftmq("delay", "cancel", soon["id"])
    assert (late.code, late.stdout) == (1, f"{soon['id']}  fell due\n")
    assert "due 2" in raftmq.ok("produce", topic, "x", "--delay", "1d").stdout


def test_lines_of_stdin_and_files_become_messages(topic: str, tmp_path: Path) -> None:
    lines = b"".join(b"key-%d\tvalue %d\n" % (n % 10, n) for n in range(20_000))
    assert process(["produce", topic, "-K", r"\t"], data=lines).code == 0
    path = tmp_path / "binary"
    path.write_bytes(b"one\nmessage\x00\xff")
    assert process(["produce", topic, "--file", str(path), "--whole", "-q", "0"]).code == 0
    done = subprocess.run(
        [sys.executable, "-m", "raftmq", "consume", topic, "-e", "-f", r"%k\t%v\0"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    found = done.stdout.split(b"\0")[:-1]
    by_key: dict[bytes, list[bytes]] = {}
    for message in found:
        key, _, body = message.partition(b"\t")
        by_key.setdefault(key, []).append(body)
    # Its own zero byte cuts the whole file's message in two.
    assert by_key.pop(b"") == [b"one\nmessage"]
    assert by_key.pop(b"\xff") == [b""]
    for digit in range(10):
        expected = [b"value %d" % n for n in range(digit, 20_000, 10)]
        assert by_key[b"key-%d" % digit] == expected


def test_made_up_messages_are_counted(raftmq: CommandLine, topic: str) -> None:
    ended = raftmq("produce", topic, "--count", "3000", "--size", "1k")
    assert "3,000 messages stored" in ended.stderr
    assert ended.stdout == ""
    described = raftmq.ok("topic", "describe", topic, "-o", "json").json
    assert sum(queue["end"] for queue in described["queues"]) == 3000


def test_group_goes_on_where_it_was_and_reset_is_dry_unless_executed(
    raftmq: CommandLine, topic: str
) -> None:
    raftmq.ok("produce", topic, *map(str, range(10)), "-k", "one")
    group = f"g-{topic}"
    raftmq.ok("group", "create", group, "--mode", "pull")
    assert len(raftmq.ok("consume", topic, "-g", group, "-n", "4").stdout.split()) == 4
    assert raftmq.ok("consume", topic, "-g", group, "-e").stdout.split() == list("456789")
    described = raftmq.ok("group", "describe", group, "-o", "json").json
    assert described["lag"] == 0
    dry = raftmq("group", "reset", group, topic, "--to", "earliest", "-o", "json")
    assert dry.json["executed"] is False
    assert "nothing was changed" in dry.stderr
    assert raftmq.ok("group", "describe", group, "-o", "json").json["lag"] == 0
    done = raftmq("group", "reset", group, topic, "--to", "2", "--execute", "-o", "json")
    assert done.json["executed"] is True
    groups = {entry["name"]: entry for entry in raftmq.ok("group", "list", "-o", "json").json}
    assert groups[group]["lag"] == 8
    assert raftmq.ok("consume", topic, "-g", group, "-e").stdout.split() == list("23456789")


def test_group_gets_what_it_subscribed_to(raftmq: CommandLine, topic: str) -> None:
    raftmq.ok("produce", topic, "1", "2", "-k", "one", "--tag", "paid")
    raftmq.ok("produce", topic, "3", "4", "5", "-k", "one", "--tag", "lost")
    group = f"filtered-{topic}"
    assert "wants of" in raftmq.ok("group", "subscribe", group, topic, "paid").stderr
    assert raftmq.ok("consume", topic, "-g", group, "-e").stdout.split() == ["1", "2"]
    wrong = raftmq("group", "subscribe", group, topic, "city CONTAIN 'x'")
    assert wrong.code == 1
    assert "did you mean CONTAINS?" in wrong.stderr
    raftmq.ok("group", "create", f"{group}-2", "--mode", "pull")
    other = raftmq.ok("consume", topic, "-g", f"{group}-2", "--filter", "TAGS <> 'paid'", "-e")
    assert other.stdout.split() == ["3", "4", "5"]
    described = raftmq.ok("group", "describe", f"{group}-2", "-o", "json").json
    assert described["lag"] == 0
    assert sum(each["passed"] for each in described["offsets"]) == 2
    assert [each["filter"] for each in described["subscriptions"]] == ["TAGS <> 'paid'"]
    assert "it wants: paid" in raftmq.ok("group", "describe", group).stdout
    signs = raftmq.ok("group", "subscribe", group, topic, 'TAGS == "paid" && !(n == nil)')
    assert "wants of" in signs.stderr
    assert "TAGS = 'paid' AND n IS NOT NULL" in signs.stderr
    assert "it wants: TAGS = 'paid' AND n IS" in raftmq.ok("group", "describe", group).stdout
    raftmq.ok("group", "unsubscribe", group, topic)
    assert "it wants" not in raftmq.ok("group", "describe", group).stdout


def test_consume_starts_where_it_is_told(raftmq: CommandLine, topic: str) -> None:
    raftmq.ok("produce", topic, *map(str, range(5)), "-k", "one")
    (queue,) = {m["queue"] for m in raftmq.ok("consume", topic, "-e", "-o", "json").lines}
    only = ("-q", str(queue))
    assert raftmq.ok("consume", topic, "--from", "3", "-e", *only).stdout.split() == ["3", "4"]
    assert raftmq.ok("consume", topic, "--from", "latest", "-e").stdout == ""
    assert len(raftmq.ok("consume", topic, "--from", "1h", "-e").stdout.split()) == 5


def test_shell_completes_topics_and_groups(topic: str, raftmq: CommandLine) -> None:
    raftmq.ok("group", "create", "completed")
    words = {f"consume {topic[:-2]}": topic, f"pop {topic} -g comp": "completed",
             "group delete comp": "completed", f"topic delete {topic[:-2]}": topic}  # fmt: skip
    for typed, name in words.items():
        assert f"plain,{name}" in completed(f"raftmq {typed}").splitlines(), typed


def completed(line: str) -> str:
    """Completions that bash gets at the end of this line."""
    environment = {"_RAFTMQ_COMPLETE": "bash_complete", "COMP_WORDS": line}
    ended = process([], environment={**environment, "COMP_CWORD": str(len(line.split()) - 1)})
    assert (ended.code, ended.stderr) == (0, "")
    return ended.stdout


def test_cluster_that_is_not_there_completes_nothing() -> None:
    assert completed("raftmq topic delete --url raftmq://127.0.0.1:1 or").split() == []


@pytest.mark.parametrize("more", [[], ["-g", "heads"]], ids=["alone", "group"])
def test_consume_ends_when_the_reader_of_its_pipe_has_enough(
    topic: str, raftmq: CommandLine, more: list[str]
) -> None:
    raftmq.ok("produce", topic, "1", "2", "3", "-q", "0")
    command = [sys.executable, "-m", "raftmq", "consume", topic, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(3)] == [b"1\n", b"2\n", b"3\n"]
        # No further message comes, so no write fails.
        running.stdout.close()
        try:
            assert running.wait(60) == 0
        finally:
            running.kill()


def test_consume_into_a_closed_pipe_ends_quietly(topic: str, raftmq: CommandLine) -> None:
    raftmq.ok("produce", topic, "--count", "20000")
    pipeline = f"{sys.executable} -m raftmq consume {topic} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipeline], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 1
    assert b"rror" not in done.stderr


def test_produce_into_a_closed_pipe_does_not_say_that_all_is_done(topic: str) -> None:
    produce = f"seq 100000 | {sys.executable} -m raftmq produce {topic} -o json"
    pipeline = f"{produce} | head -n 1 > /dev/null; exit ${{PIPESTATUS[1]}}"
    done = subprocess.run(["bash", "-c", pipeline], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1


def test_ctrl_c_ends_consume_with_0_and_a_count(topic: str, raftmq: CommandLine) -> None:
    raftmq.ok("produce", topic, "a", "b", "c", "-k", "k")
    consume = subprocess.Popen(
        [sys.executable, "-m", "raftmq", "consume", topic, "-g", f"g-{topic}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert consume.stdout is not None
    assert [consume.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    consume.send_signal(signal.SIGINT)
    _, stderr = consume.communicate(timeout=30)
    assert consume.returncode == 0
    assert b"3 messages" in stderr
    assert raftmq.ok("consume", topic, "-g", f"g-{topic}", "-e").stdout == ""


def test_ctrl_c_ends_produce_on_a_terminal_and_counts_what_is_stored(
    topic: str, raftmq: CommandLine
) -> None:
    ours, theirs = pty.openpty()
    produce = subprocess.Popen(
        [sys.executable, "-m", "raftmq", "produce", topic],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    assert produce.stderr is not None
    assert b"Ctrl-D ends" in produce.stderr.readline()
    os.write(ours, b"L1\n")
    assert raftmq.ok("consume", topic, "-n", "1").stdout == "L1\n"
    produce.send_signal(signal.SIGINT)
    # The terminal stays open and silent: the process must not wait for it.
    _, stderr = produce.communicate(timeout=30)
    os.close(ours)
    assert produce.returncode == 130
    assert b"1 message stored in" in stderr


def test_status_shows_every_node_and_a_leader_for_every_group(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    ended = raftmq("cluster", "status", "-o", "json")
    assert ended.code == 0
    assert [node["id"] for node in ended.json["nodes"]] == [1, 2, 3]
    assert [node["pid"] for node in ended.json["nodes"]] == cluster.pids
    led = sorted(number for node in ended.json["nodes"] for number in node["leads"])
    assert led == [group["id"] for group in ended.json["groups"]] == [0, 1, 2, 3]
    assert "LEADS" in raftmq.ok("cluster", "status").stdout


def test_doctor_finds_the_cluster_healthy(
    cluster: LocalCluster, raftmq: CommandLine, tmp_path: Path
) -> None:
    findings = raftmq.ok("doctor", "--data", str(tmp_path), "-o", "json").json
    (found,) = [finding for finding in findings if finding["check"] == "cluster"]
    assert found["verdict"] == "ok", found


def test_inspect_reads_a_cluster_that_runs(
    cluster: LocalCluster, raftmq: CommandLine, topic: str
) -> None:
    raftmq.ok("produce", topic, "hello")
    ended = raftmq("inspect", str(cluster.folder), "-o", "json")
    assert ended.code == 0, ended.stderr
    assert {(log["node"], log["group"]) for log in ended.json} == {
        (node, group) for node in (1, 2, 3) for group in (0, 1, 2, 3)
    }
    records = process(["inspect", str(cluster.folder / "node-1"), "-r", "-g", "0"])
    assert f"['create_topic', '{topic}', 4, ''" in records.stdout


@pytest.mark.parametrize("kind", ["produce", "consume", "e2e", "raft"])
def test_bench_prints_its_figures_and_deletes_its_topic(
    cluster: LocalCluster, raftmq: CommandLine, kind: str
) -> None:
    ended = raftmq("bench", kind, "--duration", "500ms", "--clients", "2", "-o", "json")
    assert ended.code == 0, ended.stderr
    result = ended.json
    assert result["bench"] == kind
    assert result["messages"] > 0
    assert result["errors"] == 0
    assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert result["settings"]["clients"] == 2
    if kind == "raft":
        assert result["log"]["log entries/s"] > 0
    topics = raftmq.ok("topic", "list", "-o", "json").json
    assert not [entry for entry in topics if entry["name"].startswith("bench-")]


def test_bench_keeps_its_rate(cluster: LocalCluster, raftmq: CommandLine) -> None:
    ended = raftmq(
        *("bench", "produce", "--rate", "2000", "--batch", "10"),
        *("--duration", "1s", "-o", "json"),
    )
    assert ended.json["messages"] == 2000


def test_bench_draws(cluster: LocalCluster, raftmq: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the extra `plots`")
    path = tmp_path / "plot.svg"
    raftmq.ok("bench", "raft", "--duration", "300ms", "--plot", str(path))
    assert path.read_bytes().startswith(b"<?xml")


def test_frozen_node_makes_the_cluster_unhealthy(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    pid = cluster.pids[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        ended = raftmq("cluster", "status", "-o", "json")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ended.code == 4
    assert ended.json["nodes"][1]["is_reachable"] is False
    # Formerly the error denied that a node was asked.
    assert ended.json["nodes"][1]["error"].endswith("in time: no answer came")
    assert "node 2" in ended.stderr


def test_status_and_doctor_show_what_is_left_when_a_majority_is_gone(
    cluster: LocalCluster, raftmq: CommandLine, tmp_path: Path
) -> None:
    pids = cluster.pids[:2]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        ended = raftmq("cluster", "status", "-o", "json")
        examined = raftmq("doctor", "--data", str(tmp_path), "-o", "json")
        asked = [raftmq(what, "list", "--timeout", "2s").stderr for what in ("topic", "group")]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert ended.code == 4, ended.stderr
    assert [node["is_reachable"] for node in ended.json["nodes"]] == [False, False, True]
    assert "node 1 at" in ended.stderr
    (found,) = [finding for finding in examined.json if finding["check"] == "cluster"]
    assert found["verdict"] == "fail"
    assert "node 2 at" in found["found"]
    for said in asked:
        assert "fix: a majority of the nodes has to run and answer" in said
        assert "GROUPS" not in said
    wait_until(lambda: raftmq("cluster", "status").code == 0, what="all is well again")


def test_address_of_another_node_is_refused_for_a_new_one(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    address = raftmq.ok("cluster", "status", "-o", "json").json["nodes"][2]["address"]
    for words in (["add", "5"], ["replace", "-y", "1", "5"]):
        refused = raftmq("cluster", *words, address)
        assert refused.code == 1
        assert f"at {address} node 3 of cluster" in refused.stderr
    free = f"127.0.0.1:{choose_ports(1, 20_000, any_port=True)[0]}"
    raftmq.ok("cluster", "add", "5", free)
    refused = raftmq("cluster", "add", "6", free)
    assert refused.code == 1
    assert f"{free} is the address of node 5" in refused.stderr
    raftmq.ok("cluster", "remove", "5", "-y")
    nodes = raftmq.ok("cluster", "status", "-o", "json").json["nodes"]
    assert [node["id"] for node in nodes] == [1, 2, 3]


def test_running_member_is_no_replacement_for_another_and_nothing_happens(
    cluster: LocalCluster, raftmq: CommandLine
) -> None:
    before = raftmq.ok("cluster", "status", "-o", "json").json["nodes"]
    free = f"127.0.0.1:{choose_ports(1, 20_000, any_port=True)[0]}"
    refused = raftmq("cluster", "replace", "1", "2", free, "-y")
    assert refused.code == 1
    assert f"node 2 is a member, at {before[1]['address']}: give another number" in refused.stderr
    after = raftmq.ok("cluster", "status", "-o", "json").json["nodes"]
    assert [(n["address"], n["is_leaving"]) for n in after] == [
        (n["address"], False) for n in before
    ]
    raftmq.ok("cluster", "add", "5", free)
    removed = raftmq.ok("cluster", "remove", "5", "-y")
    assert "warning" not in removed.stderr


def test_killed_node_is_started_again_while_messages_flow(
    cluster: LocalCluster, raftmq: CommandLine, topic: str
) -> None:
    before = cluster.pids
    os.kill(before[0], signal.SIGKILL)
    assert raftmq("produce", topic, *map(str, range(20)), "-k", "k", "--timeout", "30s").code == 0
    wait_until(lambda: cluster.pids[0] not in (0, before[0]), what="node 1 has a new process")
    assert cluster.pids[1:] == before[1:]
    wait_until(lambda: raftmq("cluster", "status").code == 0, what="all is well again")
    found = raftmq.ok("consume", topic, "-e", "--timeout", "30s").stdout.split()
    assert found == [str(n) for n in range(20)]
    assert (
        f"node 1 (pid {before[0]}) was ended by SIGKILL" in (cluster.folder / "up.log").read_text()
    )


def test_leader_moves_when_told(cluster: LocalCluster, raftmq: CommandLine) -> None:
    def leader() -> int:
        picture = json.loads(raftmq.ok("cluster", "status", "-o", "json").stdout)
        return int(picture["groups"][0]["leader"])

    target = leader() % 3 + 1
    assert raftmq("cluster", "transfer", "0", "--to", str(target)).code == 0
    wait_until(lambda: leader() == target, what=f"node {target} leads group 0")
    wrong = raftmq("cluster", "transfer", "0", "--to", "9")
    assert wrong.code == 1
    assert "cluster status" in wrong.stderr


def test_node_joins_with_the_lines_that_add_prints_and_leaves(
    cluster: LocalCluster, raftmq: CommandLine, tmp_path: Path
) -> None:
    (port,) = choose_ports(1, 7400, any_port=True)
    taken = raftmq("cluster", "add", "1", f"127.0.0.1:{port}")
    assert taken.code == 1
    assert "node 1 is a member at" in taken.stderr
    lines = raftmq.ok("cluster", "add", "4", f"127.0.0.1:{port}").stdout
    config = tmp_path / "node.toml"
    assert lines.count("/var/lib/raftmq") == 1
    config.write_text(lines.replace("/var/lib/raftmq", str(tmp_path / "data")))
    node = subprocess.Popen(
        [sys.executable, "-m", "raftmq", "serve", "-c", str(config)], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: 4 in members(raftmq), what="node 4 is a member")
        raftmq.ok("cluster", "remove", "4", "--yes")
        assert 4 not in members(raftmq)
    finally:
        node.terminate()
        node.wait(timeout=30)
    wait_until(lambda: raftmq("cluster", "status").code == 0, what="all is well without node 4")
    for number, said in (("9", "there is no node 9; the members"), ("4", "node 4 has left; the m")):
        refused = raftmq("cluster", "remove", number, "--yes")
        assert (refused.code, said in refused.stderr) == (1, True)
        assert "raftmq cluster status" in refused.stderr.partition("fix:")[2]


def members(raftmq: CommandLine) -> list[int]:
    """The nodes that vote or learn in the system group."""
    picture = json.loads(raftmq("cluster", "status", "-o", "json").stdout)
    system = picture["groups"][0]
    return [*system["voters"], *system["learners"]]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("command", ["user", "token", "acl"])
def test_lists_of_access_that_is_off_say_so(raftmq: CommandLine, command: str) -> None:
    # Each advised to add one, which was refused.
    said = raftmq.ok(command, "list").stderr
    assert "access control is off in this cluster: set access.is_on first" in said
    assert "raftmq" not in said
