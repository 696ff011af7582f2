"""One picture of a cluster, from the status of each of its nodes.

Of two opinions about a group's leader, the one with the higher term holds.
"""

from typing import TYPE_CHECKING, Any

from raftmq.cli.output import bytes_text
from raftmq.errors import RaftmqError, Reason, Rejected, Unavailable
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.wire.messages import ClusterView, NodeView

STATUS_SECONDS_MAX = 2.0
"""Seconds after which a node without an answer counts as unreachable."""
IN_NO_CLUSTER = "the node that answers is in no cluster yet: its log says what it waits for"
IS_STARTING = "this node is starting"
"""Part of the error of a node that does not serve yet."""


async def picture_of(mq: "Client") -> dict[str, Any]:
    """The merged status of all nodes; see `merged`."""
    return merged(*await ask_nodes(mq))


async def ask_nodes(mq: "Client") -> tuple["ClusterView", dict[int, dict[str, Any] | str]]:
    """The routing table, and by node its status, or the error in its place.

    Raises:
        Rejected: `DENIED`; the nodes are well, it is this user who may not ask.
    """
    import anyio

    try:
        view = await mq.admin.cluster(timeout=STATUS_SECONDS_MAX)
    except Unavailable:
        # Without a leader of the system group, a node's last table is the best there is.
        view = await mq.admin.cluster(is_latest=False)
    told: dict[int, dict[str, Any] | str] = {}
    denied: list[Rejected] = []

    async def ask(node: "NodeView") -> None:
        try:
            told[node.id] = await mq.admin.status(node.id, timeout=STATUS_SECONDS_MAX)
        except RaftmqError as error:
            told[node.id] = str(error)
            if isinstance(error, Rejected) and error.reason is Reason.DENIED:
                denied.append(error)

    async with anyio.create_task_group() as tasks:
        for node in view.nodes:
            tasks.start_soon(ask, node)
    if denied:
        raise denied[0]
    return view, told


def merged(view: "ClusterView", told: dict[int, dict[str, Any] | str]) -> dict[str, Any]:
    """One picture from the routing table and each node's answer, or the error in its place.

    | key | value |
    |---|---|
    | `cluster` | its id |
    | `nodes` | a map for each node: `id`, `address`, `is_leaving`, `is_drained`, `is_absent`, |
    | | `zone`, `machine` (empty: not said), `is_reachable`; if it is, `pid`, `leads`, |
    | | `uptime_ms`, `data`, `software`, `level` (the highest feature level that it allows), |
    | | `connections`; else `error` |
    | `level` | the feature level of the cluster; null: no node answers |
    | `groups` | a map for each group: `id`, `leader` (0: none), `term`, `voters`, `learners`, |
    | | `copies` (voters that it shall have; 0: no number is wanted, as of group 0), `commit`, |
    | | `behind` (node → records that it lacks, as its leader sees it; null: the node does not |
    | | answer, so the leader cannot know), |
    | | `re_enter` (nodes that lost their data folders and do not count again yet) |
    | `problems` | sentences; empty if all is well |
    | `notes` | sentences: what is well, and costs something |
    """
    nodes = [_node(node, told[node.id]) for node in sorted(view.nodes, key=lambda node: node.id)]
    replicas: dict[int, list[dict[str, Any]]] = {group.id: [] for group in view.groups}
    for answer in told.values():
        if isinstance(answer, dict):
            for replica in answer["groups"]:
                replicas.setdefault(replica["group"], []).append(replica)
    known = {group.id: group for group in view.groups}
    silent = {node["id"] for node in nodes if not node["is_reachable"]}
    groups = []
    for number, found in sorted(replicas.items()):
        group = known.get(number)
        members = (group.voters, group.learners) if group else ([], [])
        plain = _group(number, found, *members, silent=silent)
        groups.append({**plain, "copies": group.copies if group else 0})
    problems = [
        f"node {node['id']} at {node['address']} "
        f"{'says' if IS_STARTING in node['error'] else 'does not answer'}: {node['error']}"
        for node in nodes
        if not node["is_reachable"]
    ]
    problems += [f"group {group['id']} has no leader" for group in groups if not group["leader"]]
    problems += _refusals(told)
    problems += [
        f"node {node} lost its data folder and re-enters group {group['id']}: it lacks "
        f"{_lacking(group['behind'].get(str(node), 0))} and does not count yet"
        for group in groups
        for node in group["re_enter"]
    ]
    problems += _short_of_copies(groups, sum(not node["is_leaving"] for node in nodes))
    problems += _damages(told)
    problems += _unlinked(told)
    problems += [
        f"node {node}: {text}"
        for node, answer in sorted(told.items())
        if isinstance(answer, dict)
        for text in answer.get("access_differs", ())
    ]
    if not nodes:
        problems.append(IN_NO_CLUSTER)
    plain = {"cluster": view.cluster, "level": _level(told), "nodes": nodes, "groups": groups}
    notes = [
        *_leaving(nodes),
        *_idle(nodes, view),
        *_without_zone(nodes),
        *_holding_back(nodes, _level(told)),
        *_kept_for_dead(replicas),
        *_gone(replicas),
        *_not_followed(told),
        *_certificates(told),
    ]
    return {**plain, "problems": problems, "notes": notes}


def _refusals(told: "dict[int, dict[str, Any] | str]") -> list[str]:
    """Problems: a line for each node and cause; a full disk is the cause for all its groups."""
    found: dict[tuple[int, str], list[int]] = {}
    for node, answer in sorted(told.items()):
        for replica in answer["groups"] if isinstance(answer, dict) else ():
            if replica.get("refusal"):
                found.setdefault((node, replica["refusal"]), []).append(replica["group"])
    return [
        f"node {node} refuses messages of {groups_text(sorted(numbers))}: {cause}"
        for (node, cause), numbers in found.items()
    ]


def _unlinked(told: "dict[int, dict[str, Any] | str]") -> list[str]:
    """Problems: nodes that answer, and that another one does not reach."""
    return [
        f"node {node} does not reach node {peer}: {link['last_error']}"
        for node, answer in sorted(told.items())
        if isinstance(answer, dict)
        for peer, link in sorted(answer.get("links", {}).items())
        if not link["connected"] and link["last_error"] and isinstance(told.get(int(peer)), dict)
    ]


def _short_of_copies(groups: list[dict[str, Any]], staying: int) -> list[str]:
    """Groups with fewer voters than they shall have; `staying` nodes are not leaving."""
    return [
        f"group {group['id']} has {counted(len(group['voters']), 'copy', 'copies')} where "
        f"{group['copies']} are wanted: "
        + (
            "add a node, see `raftmq cluster add`"
            if staying < group["copies"]
            else "a node that was added has to be up, and to catch up"
        )
        for group in groups
        # Without a leader, the voters may come from a blank replica, which knows none.
        if group["leader"] and len(group["voters"]) < group["copies"]
    ]


def _leaving(nodes: list[dict[str, Any]]) -> list[str]:
    """Notes on nodes that are leaving the cluster."""
    return [
        f"node {node['id']} is leaving: what it carries moves to other nodes; "
        f"`raftmq cluster add {node['id']} {node['address']}` lets it stay"
        for node in nodes
        if node["is_leaving"]
    ]


def _level(told: "dict[int, dict[str, Any] | str]") -> int | None:
    """The feature level of the cluster, by the node that knows most. Older software tells none."""
    from raftmq.machine.catalog.levels import FIRST_LEVEL

    answers = [answer for answer in told.values() if isinstance(answer, dict)]
    return max((answer.get("cluster_level", FIRST_LEVEL) for answer in answers), default=None)


def _idle(nodes: list[dict[str, Any]], view: "ClusterView") -> list[str]:
    """Notes on nodes that shall lead nothing, or have been silent for long."""
    drained = [node["id"] for node in nodes if node["is_drained"]]
    notes = [
        f"node {n} is drained: it leads nothing until `raftmq cluster undrain {n}`" for n in drained
    ]
    for node in nodes:
        if node["is_absent"]:
            left = [group.id for group in view.groups if group.id and node["id"] in group.wanted]
            text = f"node {node['id']} is absent, as it has been silent for long: "
            text += (
                f"{groups_text(left)} to move from it" if left else "other nodes have its copies"
            )
            notes.append(f"{text}; `raftmq cluster remove {node['id']}` if it is gone for good")
    return notes


def _without_zone(nodes: list[dict[str, Any]]) -> list[str]:
    """A note on nodes that name no zone beside others that do."""
    without = [str(node["id"]) for node in nodes if not node["zone"]]
    if not without or len(without) == len(nodes):
        return []
    names = f"node{'s' * (len(without) > 1)} {', '.join(without)}"
    return [f"{names} without a zone: set `node.zone`, or all of them count as in one"]


def _holding_back(nodes: list[dict[str, Any]], level: int | None) -> list[str]:
    """A note on nodes that keep the cluster at a lower feature level than others allow."""
    known = [node["level"] for node in nodes if node["is_reachable"]]
    if level is None or max(known, default=level) <= level:
        return []
    lower = [
        str(node["id"]) for node in nodes if not node["is_reachable"] or node["level"] < max(known)
    ]
    if not lower:
        return []  # It rises in a moment.
    text = (
        f"the cluster is at feature level {level}, not {max(known)}: node {', '.join(lower)} is "
        "down, has older software, or is bounded by `node.level_max`"
    )
    return [text]


def _not_followed(told: "dict[int, dict[str, Any] | str]") -> list[str]:
    """Notes on settings that the cluster does not follow."""
    return [
        f"the settings of node {node}: {text}"
        for node, answer in sorted(told.items())
        if isinstance(answer, dict)
        for text in (answer.get("not_followed"), answer.get("settings", {}).get("problem"))
        if text
    ]


def _certificates(told: "dict[int, dict[str, Any] | str]") -> list[str]:
    """Notes on certificates that end soon."""
    from raftmq.cli.node.certificates import certificate_text

    return [
        f"the certificate of node {node}: {text}"
        for node, answer in sorted(told.items())
        if isinstance(answer, dict)
        and (text := certificate_text(answer.get("certificate_ends_ms", 0)))
    ]


def _lacking(records: int | None) -> str:
    return "an unknown number of records" if records is None else counted(records, "record")


def _kept_for_dead(replicas: dict[int, list[dict[str, Any]]]) -> list[str]:
    """Notes on bytes that leaders keep longer because of dead letters."""
    return [
        f"group {number} keeps {bytes_text(held['bytes'])} longer than retention says, on each of "
        "its nodes, for dead letters: `raftmq dlq list` shows them; redrive or purge them"
        for number, found in sorted(replicas.items())
        for replica in found
        if replica["role"] == "leader" and (held := replica.get("kept_for_dead"))
    ]


def _gone(replicas: dict[int, list[dict[str, Any]]]) -> list[str]:
    """Notes on messages of dead letters that retention took."""
    return [
        f"group {number}: {counted(gone, 'message')} of dead letters can no longer be read or "
        "handed out, as retention went past `log.dead_ms` or `log.dead_bytes`: `raftmq dlq show` "
        "lists them, `raftmq dlq purge` forgets them"
        for number, found in sorted(replicas.items())
        for replica in found
        if replica["role"] == "leader" and (gone := replica.get("dead_gone", 0))
    ]


def _damages(told: "dict[int, dict[str, Any] | str]") -> list[str]:
    """Problems: damage that the nodes report on their disks."""
    problems = []
    for node, answer in sorted(told.items()):
        for replica in answer["groups"] if isinstance(answer, dict) else ():
            where = f"node {node}, group {replica['group']}"
            rotten = replica.get("rotten", ())
            problems += [f"{where}: {found['found']}; {found['state']}" for found in rotten]
            problems += [
                f"{where}: {found}; a member that needs it is given another node's, or a newer one"
                for found in replica.get("rotten_snapshots", ())
            ]
            if replica.get("differs"):
                problems.append(f"{where} differs: {replica['differs']}")
            if replica.get("abstains"):
                problems.append(f"{where} abstains until it holds all again: {replica['abstains']}")
    return problems


def _node(node: "NodeView", answer: dict[str, Any] | str) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "id": node.id,
        "address": f"{node.host}:{node.port}",
        "is_leaving": node.is_leaving,
        "is_drained": node.is_drained,
        "is_absent": node.is_absent,
        "zone": node.zone,
        "machine": node.machine,
    }
    if isinstance(answer, str):
        return {**plain, "is_reachable": False, "pid": None, "leads": [], "error": answer}
    from raftmq.machine.catalog.levels import FIRST_LEVEL

    names = ("pid", "leads", "uptime_ms", "data", "software", "connections", "quotas")
    # A node with older software knows no quotas and no levels.
    level = answer.get("level", FIRST_LEVEL)
    found = {name: answer.get(name) for name in names}
    return {**plain, "is_reachable": True, "level": level, **found}


def _group(
    number: int,
    replicas: list[dict[str, Any]],
    voters: list[int],
    learners: list[int],
    *,
    silent: set[int],
) -> dict[str, Any]:
    from raftmq.machine.catalog.replicas import node_of

    leading = [replica for replica in replicas if replica["role"] == "leader"]
    best = max(leading or replicas, key=lambda replica: int(replica["term"]), default=None)
    plain = {"id": number, "leader": 0, "term": 0, "voters": voters, "learners": learners}
    if best is None:
        return {**plain, "commit": 0, "behind": {}, "re_enter": []}
    # A node with a new data folder has a new member id, larger, with the node's number in the low
    # half: of a node's members the last one holds.
    progress = sorted((int(member), seen) for member, seen in best["progress"].items())
    behind: dict[str, int | None] = {
        str(node_of(m)): max(0, best["last_index"] - seen["match"]) for m, seen in progress
    }
    # A leader elected after a node's death knows no match of it, and would count its whole log.
    behind |= {node: None for node in behind if int(node) in silent}
    counted = {*best["voters"], *best.get("voters_outgoing", ())}
    newest = {node_of(member): member for member in sorted([*counted, *best["learners"]])}
    # A node whose former member still is a voter re-enters, and does not count yet.
    again = {node_of(member) for member in counted if member != newest[node_of(member)]}
    return {
        **plain,
        # A follower may still name a leader that is gone: only a node that says it leads counts.
        "leader": best["leader"] if leading else 0,
        "term": best["term"],
        "voters": sorted(map(node_of, best["voters"])),
        "learners": sorted(map(node_of, best["learners"])),
        "commit": best["commit"],
        "behind": behind,
        "re_enter": sorted(again),
    }


def groups_text(numbers: list[int]) -> str:
    """Partition groups by number.

    >>> groups_text([1]), groups_text([1, 2, 3])
    ('group 1', 'groups 1, 2, 3')
    """
    return f"group{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
