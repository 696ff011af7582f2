"""`raftmq cluster`: show the nodes and partition groups; move leaders; drain, add, remove nodes;
even out what they carry.

`status` asks each node for its status and merges the answers (`picture`). The exit code is
4 if something is wrong, such as a node that does not answer, a group without a leader, or rot, so
that a script or probe can stop there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.options import yes_option
from raftmq.cli.output import Result, Table, note, with_output
from raftmq.cli.session import Session, with_session
from raftmq.cli.topic import confirm, require_terminal
from raftmq.cli.values import ADDRESS
from raftmq.errors import RaftmqError
from raftmq.words import counted

from .balancing import add_groups, balance, move
from .draining import drain, roll, undrain
from .picture import IS_STARTING, groups_text, picture_of

if TYPE_CHECKING:
    from raftmq.client import Client
    from raftmq.wire.messages import ClusterView

F = TypeVar("F", bound=Callable[..., Any])

TRANSFER_SECONDS_MAX = 20.0
"""Seconds that `transfer` waits until the other node leads."""
ASK_AGAIN_SECONDS = 2.0
"""Two election timeouts: by then a transfer has happened, or was given up."""
LOOK_SECONDS = 0.1

REMOVE_SECONDS_MAX = 60.0
"""Seconds that `remove` waits until the node's replicas have moved."""


def _place_options(command: F) -> F:
    """The options that say where a new node stands."""
    zone = click.option("--zone", default="", help="Its zone: a rack, room or data centre.")
    machine = click.option("--machine", default="", help="Its machine, if that runs several nodes.")
    return zone(machine(command))


@click.group(cls=HintedGroup)
def cluster() -> None:
    """Show the nodes; move leaders; drain, restart, add and remove nodes."""


for _command in (drain, undrain, roll, balance, move, add_groups):
    cluster.add_command(_command)


@cluster.command()
@with_output
@with_session
def status(session: Session) -> Result:
    """Show nodes and partition groups; exit with 4 if something is wrong with them."""
    picture = session.run(picture_of)
    problems = [f"unhealthy: {problem}" for problem in picture["problems"]]
    return Result(
        picture,
        [_nodes_table(picture), "", _groups_table(picture["groups"])],
        notes=[*problems, *picture["notes"]],
        code=ExitCode.UNHEALTHY if problems else ExitCode.OK,
    )


@cluster.command()
@click.argument("partition_group", type=click.IntRange(0))
@click.option("--to", type=click.IntRange(1), help="The node that shall lead.  [default: any]")
@with_session
def transfer(session: Session, partition_group: int, to: int | None) -> None:
    """Hand the leadership of a partition group to another node."""
    leader = session.run(lambda mq: _transfer(mq, partition_group, to or 0))
    note(f"node {leader} leads group {partition_group}")


async def _transfer(mq: "Client", partition_group: int, to: int) -> int:
    """Ask until the transfer has happened: a leader gives it up if the other node is not quick
    enough.

    Returns:
        The new leader.

    Raises:
        Failure: the transfer did not happen in time.
    """
    import anyio

    before = leader = await _leader_of(mq, partition_group)
    deadline = anyio.current_time() + TRANSFER_SECONDS_MAX
    ask_at = 0.0
    while anyio.current_time() < deadline:
        if anyio.current_time() >= ask_at:
            await mq.admin.transfer(partition_group, to=to)
            ask_at = anyio.current_time() + ASK_AGAIN_SECONDS
        leader = await _leader_of(mq, partition_group)
        if leader and (leader == to if to else leader != before):
            return leader
        await anyio.sleep(LOOK_SECONDS)
    raise Failure(
        f"node {leader} still leads group {partition_group} after {TRANSFER_SECONDS_MAX:g} s",
        fix="`raftmq cluster status` shows who is well; then try again, or another node",
    )


async def _leader_of(mq: "Client", partition_group: int) -> int:
    """The leader of a partition group, 0 if there is none. All nodes are asked, as the node that
    gives the routing table may carry no replica of the group."""
    groups = (await picture_of(mq))["groups"]
    return next((int(each["leader"]) for each in groups if each["id"] == partition_group), 0)


@cluster.command()
@click.argument("node", type=click.IntRange(1))
@click.argument("address", type=ADDRESS)
@_place_options
@with_session
def add(session: Session, node: int, address: tuple[str, int], zone: str, machine: str) -> None:
    """Make NODE, running or to be started at ADDRESS, a member of the cluster.

    \b
    raftmq cluster add 4 10.0.0.4:7400
    """
    host, port = address

    async def call(mq: "Client") -> "ClusterView":
        for known in (await mq.admin.cluster()).nodes:
            if known.id == node and (known.host, known.port) != address:
                raise Failure(
                    f"node {node} is a member at {known.host}:{known.port}",
                    fix="give the new node a number that was never used",
                )
        await _check_answer(session.url, node, address)
        await mq.admin.add_node(node, host, port, zone=zone, machine=machine)
        return await mq.admin.cluster()

    view = session.run(call)
    note(f"node {node} is a member; if it does not run yet, start it with these in its node.toml:")
    _echo_settings(view, node, address, zone, machine)
    _note_security(session)


@cluster.command()
@click.argument("node", type=click.IntRange(1))
@yes_option
@with_session
def remove(session: Session, node: int, yes: bool) -> None:
    """Take a node out of the cluster, after asking.

    Warns if no other node is free to take the copies that NODE has: partition groups have fewer
    copies then, until a node is added. The exit code is 1 if NODE is no member, as after it has
    left.
    """
    if not yes:
        require_terminal()
    lacking = lacking_without(session.run(lambda mq: mq.admin.cluster()), node)
    if lacking:
        note(f"warning: {lacking}")
    if not yes:
        confirm(f"Take node {node} out of the cluster?")
    note(f"what node {node} carries moves to other nodes; Ctrl-C leaves that under way")
    session.run(lambda mq: _remove(mq, node))
    note(f"node {node} is no longer a member: its process can be stopped, its folder deleted")


@cluster.command()
@click.argument("node", type=click.IntRange(1))
@click.argument("new", type=click.IntRange(1))
@click.argument("address", type=ADDRESS)
@_place_options
@yes_option
@with_session
def replace(
    session: Session,
    node: int,
    new: int,
    address: tuple[str, int],
    zone: str,
    machine: str,
    yes: bool,
) -> None:
    """Let the node NEW, at ADDRESS, take over all that NODE carries, after asking.

    For a node whose machine is exchanged. NEW needs a number that was never used, as the other
    nodes must not mistake it for the old one. A node that lost only its disk re-enters by itself:
    start it with a blank folder.

    \b
    raftmq cluster replace 2 4 10.0.0.4:7400
    """
    host, port = address
    if not yes:
        confirm(f"Shall node {new} take the place of node {node} for good?")

    async def call(mq: "Client") -> "ClusterView":
        await _check_answer(session.url, new, address)
        await mq.admin.replace_node(node, new, host, port, zone=zone, machine=machine)
        return await mq.admin.cluster()

    view = session.run(call)
    note(f"node {new} takes over; if it does not run yet, start it with these in its node.toml:")
    _echo_settings(view, new, address, zone, machine, leaving=node)
    old = next((known for known in view.nodes if known.id == node), None)
    if old is not None and old.zone != zone:
        note(
            f"node {new} stands elsewhere than node {node}: when it runs, let `raftmq cluster "
            "balance --execute` set copies apart"
        )
    _note_security(session)
    note(f"node {node} may be stopped when `raftmq cluster status` no longer shows it")


async def _check_answer(url: str, node: int, address: tuple[str, int]) -> None:
    """Refuse the address of a process that is another node; a silent address is accepted, as the
    node may start there later."""
    from raftmq.client.address import Address, parse_url
    from raftmq.client.routing.connection import open_connection
    from raftmq.client.tls import tls_of
    from raftmq.client.world import RealWorld

    world = RealWorld(tls_of(parse_url(url)))
    try:
        connection = await open_connection(world, Address(*address), cluster="")
    except (OSError, RaftmqError):
        return
    connection.close()
    await connection.run()
    if connection.node != node:
        raise Failure(
            f"at {address[0]}:{address[1]} node {connection.node} of cluster "
            f"{connection.welcome.cluster!r} answers, not node {node}",
            fix="give the address that the new node listens on, which no other node has",
        )


def _echo_settings(
    view: "ClusterView",
    node: int,
    address: tuple[str, int],
    zone: str,
    machine: str,
    *,
    leaving: int = 0,
) -> None:
    """Print the settings of a node that joins; its `join` lists every other node that stays."""
    host, port = address
    click.echo(f'[node]\nid = {node}\ncluster = "{view.cluster}"\nhost = "{host}"\nport = {port}')
    click.echo('data = "/var/lib/raftmq"  # a folder of its own')
    for name, value in (("zone", zone), ("machine", machine)):
        if value:
            click.echo(f'{name} = "{value}"')
    others = [known for known in view.nodes if known.id not in (node, leaving)]
    lines = [f'  {{ id = {o.id}, host = "{o.host}", port = {o.port} }},' for o in others]
    click.echo("\n".join(["join = [", *lines, "]"]))


def _note_security(session: Session) -> None:
    """Tell what a node that joins a cluster under TLS needs beside this."""
    if session.is_under_tls:
        note(
            "it also needs `[tls]`, with a certificate of its own (`raftmq cert make`), and the "
            "`[access]` of the other nodes, if they have it: else it serves no client"
        )


def lacking_without(view: "ClusterView", node: int) -> str:
    """A warning that names the groups with too few copies once a node is gone; empty: none."""
    staying = {known.id for known in view.nodes if not known.is_leaving} - {node}
    short = [group.id for group in view.groups if group.copies > len(staying)]
    if not short or all(known.id != node for known in view.nodes):
        return ""
    copies = max(group.copies for group in view.groups)
    return (
        f"no node is free to take over from node {node}: {groups_text(short)} will have "
        f"{counted(len(staying), 'copy', 'copies')} where {copies} are wanted, until a node is "
        f"added; `raftmq cluster replace {node}` gives its copies to a new node at once"
    )


async def _remove(mq: "Client", node: int) -> None:
    """Remove a node, and wait until it has left and no partition group has it as a member."""
    import anyio

    await mq.admin.remove_node(node)
    with anyio.move_on_after(REMOVE_SECONDS_MAX):
        while True:
            view = await mq.admin.cluster()
            carried = [g.id for g in view.groups if node in g.voters or node in g.learners]
            if not carried and all(known.id != node for known in view.nodes):
                return
            await anyio.sleep(0.2)
    raise Failure(
        f"node {node} still carries groups {carried}: its share is moving to others",
        fix="leave it running until `raftmq cluster status` no longer shows it",
    )


def _nodes_table(picture: dict[str, Any]) -> Table:
    # Most clusters name no places.
    places = [
        (name, heading)
        for name, heading in (("zone", "ZONE"), ("machine", "MACHINE"))
        if any(node[name] for node in picture["nodes"])
    ]
    rows = [
        (
            node["id"],
            node["address"],
            *(node[name] or "-" for name, _ in places),
            _state(node),
            node["pid"] or "-",
            ", ".join(map(str, node["leads"])) or "-",
            _age(node["uptime_ms"]) if node["is_reachable"] else "-",
            node.get("data", "-"),
        )
        for node in picture["nodes"]
    ]
    headings = [heading for _, heading in places]
    columns = [">NODE", "ADDRESS", *headings, "STATE", ">PID", "LEADS", ">UP", "DATA"]
    return Table(columns, rows, title=f"cluster {picture['cluster']}")


def _groups_table(groups: list[dict[str, Any]]) -> Table:
    rows = [
        (
            group["id"],
            group["leader"] or "none",
            group["term"],
            ", ".join(map(str, group["voters"])),
            ", ".join(map(str, group["learners"])) or "-",
            group["commit"],
            behind_text(group),
        )
        for group in groups
    ]
    columns = [">GROUP", ">LEADER", ">TERM", "VOTERS", "LEARNERS", ">COMMIT", ">BEHIND"]
    return Table(columns, rows)


def _state(node: dict[str, Any]) -> str:
    away = "starting" if IS_STARTING in node.get("error", "") else "unreachable"
    marks = [mark for mark in ("leaving", "drained", "absent") if node[f"is_{mark}"]]
    return ", ".join(["up" if node["is_reachable"] else away, *marks])


def behind_text(group: dict[str, Any]) -> str:
    """The most records that an answering member lacks, then the members that do not answer; `-`:
    there is no leader to tell.

    >>> behind_text({"leader": 1, "behind": {"1": 0, "2": 7, "3": None}})
    '7 (3: -)'
    """
    if not group["leader"]:
        return "-"
    known = max((n for n in group["behind"].values() if n is not None), default=0)
    unknown = ", ".join(f"{node}: -" for node, n in group["behind"].items() if n is None)
    return f"{known} ({unknown})" if unknown else f"{known}"


def _age(milliseconds: int) -> str:
    """An age in its two largest units.

    >>> _age(65_000), _age(3 * 3600_000), _age(900)
    ('1m 5s', '3h 0m', '0s')
    """
    seconds = milliseconds // 1000
    for unit, size, lower, lower_size in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} {seconds % size // lower_size}{lower}"
    return f"{seconds // 60}m {seconds % 60}s" if seconds >= 60 else f"{seconds}s"
