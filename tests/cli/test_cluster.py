"""One picture of a cluster, merged from the status of each node."""

import io
import json
import time
from typing import Any

import msgspec

from raftmq.cli.cluster.commands import _nodes_table, _state, behind_text, lacking_without
from raftmq.cli.cluster.picture import groups_text, merged
from raftmq.cli.node.log_lines import LogLines
from raftmq.cli.node.serve import tell_gone
from raftmq.wire.messages import ClusterView, GroupView, NodeView

VIEW = ClusterView(
    "c",
    7,
    [NodeView(node, "127.0.0.1", 7399 + node) for node in (1, 2, 3)],
    [GroupView(0, 1, 1, [1, 2, 3], []), GroupView(1, 0, 0, [1, 2, 3], [])],
    [],
)


def replica(group: int, role: str, *, leader: int, term: int, **more: Any) -> dict[str, Any]:
    base = {"commit": 10, "last_index": 10, "voters": [1, 2, 3], "learners": [], "refusal": ""}
    return {"group": group, "role": role, "leader": leader, "term": term, "progress": {}} | (
        base | more
    )


def node(number: int, *groups: dict[str, Any]) -> dict[str, Any]:
    leads = [group["group"] for group in groups if group["role"] == "leader"]
    facts = {"pid": 100 + number, "uptime_ms": 1, "data": "d", "software": "s", "connections": 0}
    return {"id": number, "leads": leads, "groups": list(groups)} | facts


def told(leader_term: int = 1) -> dict[int, dict[str, Any] | str]:
    return {
        number: node(
            number,
            replica(0, "leader" if number == 1 else "follower", leader=1, term=leader_term),
            replica(1, "leader" if number == 2 else "follower", leader=2, term=4),
        )
        for number in (1, 2, 3)
    }


def test_healthy_cluster_has_no_problems() -> None:
    picture = merged(VIEW, told())
    assert picture["problems"] == []
    assert [entry["pid"] for entry in picture["nodes"]] == [101, 102, 103]
    assert [entry["leads"] for entry in picture["nodes"]] == [[0], [1], []]
    assert [group["leader"] for group in picture["groups"]] == [1, 2]


def test_node_that_re_enters_is_a_problem_until_its_new_self_votes() -> None:
    again = 1 << 32 | 3
    progress = {str(again): {"match": 7}, "3": {"match": 2}, "1": {"match": 10}}
    answers = told()
    replicas = [replica(0, "leader", leader=1, term=1, learners=[again], progress=progress)]
    answers[1] = node(1, *replicas)
    picture = merged(VIEW, answers)
    assert picture["groups"][0]["learners"] == [3]
    assert picture["groups"][0]["behind"] == {"1": 0, "3": 3}
    (problem,) = picture["problems"]
    assert problem == (
        "node 3 lost its data folder and re-enters group 0: it lacks 3 records and does not count "
        "yet"
    )
    replicas[0].update(learners=[], voters=[1, 2, again])
    answers[1] = node(1, *replicas)
    picture = merged(VIEW, answers)
    assert picture["groups"][0]["voters"] == [1, 2, 3]
    assert picture["problems"] == []


def placed(*nodes: int, leaving: int = 0) -> ClusterView:
    """A cluster whose group 1 shall have three copies."""
    listed = [NodeView(n, "127.0.0.1", 7399 + n, n == leaving) for n in nodes]
    groups = [GroupView(0, 1, 1, [], []), GroupView(1, 2, 4, [], [], copies=3)]
    return ClusterView("c", 7, listed, groups, [])


def test_group_with_fewer_copies_than_wanted_is_a_problem_until_a_node_has_caught_up() -> None:
    answers: dict[int, dict[str, Any] | str] = {
        1: node(1, replica(0, "leader", leader=1, term=1, voters=[1, 2])),
        2: node(2, replica(1, "leader", leader=2, term=4, voters=[1, 2])),
    }
    picture = merged(placed(1, 2), answers)
    assert [group["copies"] for group in picture["groups"]] == [0, 3]
    told = "group 1 has 2 copies where 3 are wanted: "
    assert picture["problems"] == [f"{told}add a node, see `raftmq cluster add`"]
    answers[4] = node(4, replica(1, "follower", leader=2, term=4, voters=[1, 2], learners=[4]))
    picture = merged(placed(1, 2, 4), answers)
    caught_up = "a node that was added has to be up, and to catch up"
    assert picture["problems"] == [f"{told}{caught_up}"]
    answers[2] = node(2, replica(1, "leader", leader=2, term=4, voters=[1, 2, 4]))
    assert merged(placed(1, 2, 4), answers)["problems"] == []


def test_node_that_is_leaving_is_shown_with_what_lets_it_stay() -> None:
    picture = merged(placed(1, 2, 3, leaving=3), told())
    assert [entry["is_leaving"] for entry in picture["nodes"]] == [False, False, True]
    assert picture["problems"] == []
    (note,) = picture["notes"]
    assert note == (
        "node 3 is leaving: what it carries moves to other nodes; "
        "`raftmq cluster add 3 127.0.0.1:7402` lets it stay"
    )


def test_removal_warns_of_copies_that_no_node_is_free_to_take() -> None:
    assert lacking_without(placed(1, 2, 3, 4), 3) == ""
    told = "no node is free to take over from node 3: group 1 will have 2 copies where 3 are wanted"
    assert lacking_without(placed(1, 2, 3), 3).startswith(told)
    # A node that is leaving takes nothing over.
    assert lacking_without(placed(1, 2, 3, 4, leaving=4), 3).startswith(told)
    # The removal is refused, and the refusal says more.
    assert lacking_without(placed(1, 2), 3) == ""


def test_leader_of_the_higher_term_holds() -> None:
    answers = told()
    answers[3] = node(3, replica(0, "leader", leader=3, term=2))
    picture = merged(VIEW, answers)
    assert picture["groups"][0]["leader"] == 3
    assert picture["groups"][0]["term"] == 2


def test_unreachable_node_is_a_problem_and_keeps_its_place() -> None:
    picture = merged(VIEW, told() | {3: "timed out"})
    assert picture["nodes"][2] == {
        "id": 3,
        "address": "127.0.0.1:7402",
        "is_leaving": False,
        "is_drained": False,
        "is_absent": False,
        "zone": "",
        "machine": "",
        "is_reachable": False,
        "pid": None,
        "leads": [],
        "error": "timed out",
    }
    assert picture["problems"] == ["node 3 at 127.0.0.1:7402 does not answer: timed out"]


def test_nodes_that_hold_the_level_back_are_named() -> None:
    def levels(*known: int, cluster: int) -> dict[int, dict[str, Any] | str]:
        answers = told()
        for number, level in enumerate(known, 1):
            answers[number] = {**node(number), "level": level, "cluster_level": cluster}
        return answers

    assert merged(VIEW, levels(2, 2, 2, cluster=2))["level"] == 2
    # It rises in a moment.
    assert merged(VIEW, levels(2, 2, 2, cluster=1))["notes"] == []
    older = merged(VIEW, levels(2, 2, cluster=1))
    assert older["level"] == 1
    (text,) = older["notes"]
    assert text == (
        "the cluster is at feature level 1, not 2: node 3 is down, has older software, or is "
        "bounded by `node.level_max`"
    )
    assert merged(VIEW, levels(2, 2, cluster=1) | {3: "timed out"})["notes"] == [text]
    assert merged(VIEW, dict.fromkeys((1, 2, 3), "timed out"))["level"] is None


def test_a_drained_node_is_marked_and_noted() -> None:
    nodes = [NodeView(n, "127.0.0.1", 7399 + n, is_drained=n == 2) for n in (1, 2, 3)]
    picture = merged(msgspec.structs.replace(VIEW, nodes=nodes), told())
    assert [_state(each) for each in picture["nodes"]] == ["up", "up, drained", "up"]
    assert picture["notes"] == [
        "node 2 is drained: it leads nothing until `raftmq cluster undrain 2`"
    ]


def test_an_absent_node_is_noted_with_what_is_still_on_it() -> None:
    nodes = [NodeView(n, "127.0.0.1", 7399 + n, is_absent=n == 3) for n in (1, 2, 3)]
    groups = [
        msgspec.structs.replace(group, wanted=wanted)
        for group, wanted in zip(VIEW.groups, ([1, 2, 3], [1, 2, 3]), strict=False)
    ]
    view = msgspec.structs.replace(VIEW, nodes=nodes, groups=groups)
    (text,) = merged(view, told() | {3: "timed out"})["notes"]
    end = "; `raftmq cluster remove 3` if it is gone for good"
    begin = "node 3 is absent, as it has been silent for long: "
    moving = [group.id for group in groups if group.id]
    assert moving
    assert text == f"{begin}{groups_text(moving)} to move from it{end}"
    groups = [msgspec.structs.replace(group, wanted=[1, 2, 4]) for group in groups]
    view = msgspec.structs.replace(view, groups=groups)
    (text,) = merged(view, told() | {3: "timed out"})["notes"]
    assert text == f"{begin}other nodes have its copies{end}"


def test_zones_are_shown_where_there_are_any_and_a_node_without_one_is_noted() -> None:
    assert "ZONE" not in _nodes_table(merged(VIEW, told())).columns
    nodes = [NodeView(n, "127.0.0.1", 7399 + n, zone="a" if n < 3 else "") for n in (1, 2, 3)]
    picture = merged(msgspec.structs.replace(VIEW, nodes=nodes), told())
    table = _nodes_table(picture)
    assert table.columns[:4] == [">NODE", "ADDRESS", "ZONE", "STATE"]
    assert [list(row)[2] for row in table.rows] == ["a", "a", "-"]
    text = "node 3 without a zone: set `node.zone`, or all of them count as in one"
    assert picture["notes"] == [text]


def test_node_that_starts_is_shown_so_and_says_what_it_waits_for() -> None:
    picture = merged(VIEW, told() | {3: "this node is starting: it waits for node 2"})
    assert _state(picture["nodes"][2]) == "starting"
    text = "node 3 at 127.0.0.1:7402 says: this node is starting: it waits for node 2"
    assert picture["problems"] == [text]


def test_followers_that_remember_a_dead_leader_do_not_make_one() -> None:
    picture = merged(VIEW, told() | {2: "connection refused"})
    assert picture["groups"][1]["leader"] == 0
    assert "group 1 has no leader" in picture["problems"]


def test_group_that_no_reachable_node_carries_has_no_leader() -> None:
    picture = merged(VIEW, dict.fromkeys((1, 2, 3), "gone"))
    assert [group["leader"] for group in picture["groups"]] == [0, 0]


def test_what_dead_letters_keep_is_no_problem_and_is_told() -> None:
    answers = told()
    held = {"first": 5, "stop": 90, "bytes": 3 * 1024**2}
    answers[2] = node(2, replica(1, "leader", leader=2, term=4, kept_for_dead=held))
    picture = merged(VIEW, answers)
    assert picture["problems"] == []
    (told_of,) = picture["notes"]
    assert told_of == (
        "group 1 keeps 3.0 MiB longer than retention says, on each of its nodes, for dead letters: "
        "`raftmq dlq list` shows them; redrive or purge them"
    )
    assert merged(VIEW, told())["notes"] == []


def test_messages_that_dead_letters_lost_to_retention_are_told_by_the_leader() -> None:
    answers = told()
    answers[2] = node(2, replica(1, "leader", leader=2, term=4, dead_gone=3))
    answers[3] = node(3, replica(1, "follower", leader=2, term=4, dead_gone=2))
    (told_of,) = merged(VIEW, answers)["notes"]
    assert told_of.startswith("group 1: 3 messages of dead letters can no longer be read")


def test_log_says_once_what_dead_letters_lost_more() -> None:
    out = io.StringIO()
    log = LogLines(7, is_json=True, out=out)
    before: dict[int, int] = {}
    for gone in ({}, {3: 2}, {3: 2}, {3: 2, 1: 5}, {1: 4}, {1: 5}):
        before = tell_gone(gone, log, before)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["level"], line["group"], line["messages"]) for line in lines] == [
        ("warning", 3, 2),
        ("warning", 1, 5),
        ("warning", 1, 5),
    ]


def test_full_disk_is_one_problem_for_each_node() -> None:
    answers = told()
    for number in (1, 2):
        answers[number] = node(
            number,
            replica(1, "follower", leader=2, term=4, refusal=f"disk {number} is full"),
            replica(0, "leader", leader=number, term=1, refusal=f"disk {number} is full"),
        )
    problems = [text for text in merged(VIEW, answers)["problems"] if "full" in text]
    assert problems == [
        "node 1 refuses messages of groups 0, 1: disk 1 is full",
        "node 2 refuses messages of groups 0, 1: disk 2 is full",
    ]


def test_nodes_that_do_not_reach_one_that_answers_are_a_problem() -> None:
    down = {"connected": False, "last_error": "the certificate names node 2"}
    up = {"connected": True, "last_error": ""}
    answers = told()
    answers[1] = node(1) | {"links": {"2": up, "3": down}}
    answers[2] = node(2) | {"links": {"1": up, "3": {"connected": False, "last_error": ""}}}
    text = "node 1 does not reach node 3: the certificate names node 2"
    assert text in merged(VIEW, answers)["problems"]
    assert sum("does not reach" in each for each in merged(VIEW, answers)["problems"]) == 1
    # It is told already that this one is down.
    answers[3] = "no answer"
    assert not any("does not reach" in each for each in merged(VIEW, answers)["problems"])


def test_certificates_that_end_soon_are_noted() -> None:
    answers = told()
    days = 86_400 * 1000
    for number, left in ((1, 300 * days), (2, 10 * days + 60_000), (3, -1)):
        answers[number] = node(number) | {"certificate_ends_ms": int(time.time() * 1000) + left}
    notes = [text for text in merged(VIEW, answers)["notes"] if "certificate" in text]
    assert [note.partition(": ")[0] for note in notes] == [
        "the certificate of node 2",
        "the certificate of node 3",
    ]
    assert "it ends in 10 days" in notes[0]
    assert "it has ended" in notes[1]


def test_access_that_differs_is_a_problem() -> None:
    answers = told()
    answers[2] = node(2) | {"access_differs": ["access is off at node 3"]}
    assert "node 2: access is off at node 3" in merged(VIEW, answers)["problems"]


def test_behind_is_counted_by_the_leader_and_named_by_node() -> None:
    answers = told()
    progress = {1: {"match": 10}, (7 << 32) | 2: {"match": 4}}
    answers[1] = node(1, replica(0, "leader", leader=1, term=1, progress=progress))
    assert merged(VIEW, answers)["groups"][0]["behind"] == {"1": 0, "2": 6}


def test_how_far_a_dead_node_is_behind_is_not_known() -> None:
    # A leader elected after the node's death knows no match of it, and would count the whole log.
    answers = told()
    progress = {1: {"match": 10}, 2: {"match": 9}, 3: {"match": 0}}
    answers[1] = node(1, replica(0, "leader", leader=1, term=1, progress=progress))
    picture = merged(VIEW, answers | {3: "timed out"})
    assert picture["groups"][0]["behind"] == {"1": 0, "2": 1, "3": None}
    assert [behind_text(group) for group in picture["groups"]] == ["1 (3: -)", "0"]
    assert behind_text(merged(VIEW, dict.fromkeys((1, 2, 3), "gone"))["groups"][0]) == "-"


def test_dead_node_that_re_enters_lacks_an_unknown_number_of_records() -> None:
    again = 1 << 32 | 3
    progress = {str(again): {"match": 7}, "3": {"match": 2}, "1": {"match": 10}}
    replicas = [replica(0, "leader", leader=1, term=1, learners=[again], progress=progress)]
    problems = merged(VIEW, told() | {1: node(1, *replicas), 3: "timed out"})["problems"]
    assert problems[1] == (
        "node 3 lost its data folder and re-enters group 0: it lacks an unknown number of records "
        "and does not count yet"
    )


def test_damage_that_a_node_reports_is_a_problem_until_it_is_over() -> None:
    found = {"file": "5.log", "found": "5.log, byte 9: rot", "state": "no peer has sound records"}
    answers = told()
    answers[2] = node(2, replica(1, "leader", leader=2, term=4, rotten=[found]))
    why = "7.log, byte 3: rot"
    answers[3] = node(3, replica(1, "follower", leader=2, term=4, abstains=why))
    problems = merged(VIEW, answers)["problems"]
    assert problems == [
        "node 2, group 1: 5.log, byte 9: rot; no peer has sound records",
        "node 3, group 1 abstains until it holds all again: 7.log, byte 3: rot",
    ]
