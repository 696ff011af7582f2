"""`raftmq cluster balance`, `move` and `add-groups`: which nodes carry and lead which groups.

`balance` makes a plan from what the nodes tell (`raftmq.broker.placement.balance`) and shows it.
With `--execute` it has a few groups move at a time, plans again when one has arrived, and ends when
nothing is left to do:

    ask the nodes | plan | begin moves, as many as may be under way | wait a moment | again

Leaders change when all copies have arrived, as the plan for them goes by where the copies are. A
group is copied once in a run: loads change all the time, and a run has to end.

The cluster's state is all there is: a run that was stopped, or whose client died, is taken up by
the next one. Moves that were begun go on by themselves, whatever happens here.

Invariants:
- At most `--moves` groups are under way by the word of their leaders, those of other operators
  among them.
- A group moves from the nodes that the plan was made for, or not at all.
- Nothing is begun while a group lacks its leader, or a node that is not absent does not answer.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from raftmq.cli.exits import Failure
from raftmq.cli.options import execute_option
from raftmq.cli.output import NOT_EXECUTED, Meter, Result, Table, bytes_text, note, with_output
from raftmq.cli.session import Session, with_session
from raftmq.errors import OutcomeUnknown, Reason, Rejected, Unavailable
from raftmq.words import counted

from .picture import ask_nodes, groups_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.broker.placement.balance import GroupLoad, Move, NodeRoom
    from raftmq.broker.placement.loads import Loads
    from raftmq.client import Client
    from raftmq.wire.messages import ClusterView

    Planner = Callable[[Sequence[NodeRoom], Sequence[GroupLoad]], list[Move]]

LOOK_SECONDS = 1.0
"""Between two looks at the groups that move."""
MOVES = 2
"""Groups that move at a time, unless the operator says another number: each is copied from one node
to another, so two use more than one link and leave most of the cluster alone."""
LEADERS = 10
"""Groups that change just their leader at a time: each takes no records for some milliseconds."""
LEAD_SECONDS_MAX = 40.0
"""Seconds that a run waits for the last leaders to change."""
REFUSALS_MAX = 3
"""Refusals after which a run leaves a group alone."""
MIB = 1024**2
WAIT_SECONDS_MAX = 600.0
"""Seconds that a run waits for a node that does not answer, or a group without a leader."""


class _Look(NamedTuple):
    """The cluster at one moment."""

    moves: "list[Move]"
    """The moves that are left."""
    loads: "Loads"
    """The loads that the plan was made from."""


@click.command()
@execute_option
@click.option(
    "--moves",
    type=click.IntRange(1),
    default=MOVES,
    show_default=True,
    help="Groups that move at a time.",
)
@with_output
@with_session
def balance(session: Session, execute: bool, moves: int) -> Result:
    """Even out what nodes hold and lead; shows the plan, and with --execute carries it out.

    Replicas of a group are put on different machines and into different zones, as far as there are
    such; then nodes get even shares of what is stored and written; then of what is led.

    Stop it at any time: moves that were begun go on, and the next call takes the rest up.
    """
    look = session.run(lambda mq: _look(mq, _even))
    size = _bytes(look)
    moves_left = [move._asdict() for move in look.moves]
    document = {"moves": moves_left, "bytes": size, "under_way": look.loads.under_way}
    if not execute or not (look.moves or look.loads.under_way):
        shown: list[Table | str] = [_table(look.moves)] if look.moves else []
        notes = [_summary(look)]
        notes += [NOT_EXECUTED] if look.moves else []
        return Result(document, shown, notes=notes)
    note(_summary(look))
    with _meter("balance", look) as meter:
        last, moved = session.run(lambda mq: _Run(mq, _even, moves, meter).run())
    text = f"{counted(len(moved), 'group')} changed"
    notes = [text]
    if last.moves:
        notes.append(f"loads have changed meanwhile: {_summary(last)}; call this again later")
    if last.loads.led_elsewhere:
        elsewhere = groups_text(last.loads.led_elsewhere)
        notes.append(f"{elsewhere}: another node leads than planned, perhaps as its disk is low")
    return Result({**document, "changed": sorted(moved)}, [], notes=notes)


@click.command()
@click.argument("partition_group", type=click.IntRange(1))
@click.option(
    "--to",
    "members",
    required=True,
    help="The nodes that shall carry it, separated by commas; the first shall lead.",
)
@with_session
def move(session: Session, partition_group: int, members: str) -> None:
    """Have a partition group carried by other nodes.

    \b
    raftmq cluster move 3 --to 4,2,1
    """
    nodes = _nodes(members)

    async def call(mq: "Client") -> None:
        view = await mq.admin.cluster()
        group = next((each for each in view.groups if each.id == partition_group), None)
        if group is None:
            known = ", ".join(str(each.id) for each in view.groups if each.id)
            raise Failure(f"there is no group {partition_group}", fix=f"the groups are {known}")
        await mq.admin.move_group(partition_group, nodes, before=group.wanted)

    session.run(call)
    note(f"group {partition_group} moves to nodes {members}; `raftmq cluster status` shows how far")


@click.command()
@click.argument("count", type=click.IntRange(1))
@execute_option
@with_output
@with_session
def add_groups(session: Session, count: int, execute: bool) -> Result:
    """Found COUNT more data groups; shows their nodes, and with --execute founds them.

    New topics, and new queues of old ones, go to the groups with the fewest of their queues:

    \b
    raftmq cluster add-groups 3 --execute
    raftmq topic alter orders --queues 6
    """

    async def found(mq: "Client") -> list[tuple[int, list[int]]]:
        from raftmq.broker.placement.balance import added

        view, loads = await _loads(mq)
        copies = max((group.copies for group in view.groups), default=0)
        first = max(group.id for group in view.groups) + 1
        planned = added(loads.nodes, loads.groups, count, copies=copies)
        if execute:
            for number, members in enumerate(planned, first):
                await mq.admin.add_group(number, members)
        return list(enumerate(planned, first))

    groups = session.run(found)
    document = {"groups": [{"id": number, "nodes": nodes} for number, nodes in groups]}
    rows = [(number, ", ".join(map(str, nodes))) for number, nodes in groups]
    notes = [f"{groups_text([number for number, _ in groups])} founded"] if execute else []
    return Result(document, [Table([">GROUP", "NODES"], rows)], notes=notes or [NOT_EXECUTED])


def _nodes(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        message = f"{text!r} is no list of nodes, as 4,2,1"
        raise click.BadParameter(message, param_hint="--to") from None


def _table(moves: "Sequence[Move]") -> Table:
    rows = [
        (
            move.group,
            ", ".join(map(str, move.before)),
            ", ".join(map(str, move.members)),
            bytes_text(move.bytes) if move.bytes else "-",
            "; ".join(move.reasons),
        )
        for move in moves
    ]
    return Table([">GROUP", "NODES", "NODES AFTER", ">COPIED", "WHY"], rows)


def _summary(look: _Look) -> str:
    if not look.moves and not look.loads.under_way:
        return "nothing to do"
    text = f"{counted(len(look.moves), 'group')} to change, {bytes_text(_bytes(look))} to copy"
    return text + (f"; {len(look.loads.under_way)} under way" if look.loads.under_way else "")


def move_away(session: Session, node: int) -> None:
    """Have other nodes carry all data groups of a node that is drained, and wait until they do.

    Raises:
        Failure: no other node can take a group.
    """

    def plan(nodes: "Sequence[NodeRoom]", groups: "Sequence[GroupLoad]") -> "list[Move]":
        from raftmq.broker.placement.balance import vacate

        return vacate(nodes, groups, node)

    look = session.run(lambda mq: _look(mq, plan))
    note(_summary(look))
    with _meter("drain", look) as meter:
        last, _ = session.run(lambda mq: _Run(mq, plan, MOVES, meter).run())
    if left := [each.id for each in last.loads.groups if node in each.members]:
        raise Failure(
            f"no other node can take {groups_text(left)} from node {node}",
            fix="add a node, or space to one; `raftmq cluster status` shows the nodes",
        )


def _even(nodes: "Sequence[NodeRoom]", groups: "Sequence[GroupLoad]") -> "list[Move]":
    from raftmq.broker.placement.balance import balance

    return balance(nodes, groups)


def _meter(what: str, look: _Look) -> Meter:
    return Meter(what, total=_bytes(look) / MIB, unit="MiB")


def _bytes(look: _Look) -> int:
    return sum(move.bytes for move in look.moves)


async def _look(mq: "Client", plan: "Planner") -> _Look:
    """The cluster, and the plan for it. Raises: as `_loads`."""
    _, found = await _loads(mq)
    return _Look(plan(found.nodes, found.groups), found)


async def _loads(mq: "Client") -> "tuple[ClusterView, Loads]":
    """The routing table and the loads of a cluster.

    Raises:
        Failure: a node does not answer, a group has no leader, or the feature level is too low.
    """
    from raftmq.broker.placement.loads import loads
    from raftmq.machine.catalog.levels import MOVES_LEVEL

    view, told = await ask_nodes(mq)
    statuses = {number: answer for number, answer in told.items() if isinstance(answer, dict)}
    expected = [n for n in view.nodes if not n.is_leaving and not n.is_absent]
    if silent := [node.id for node in expected if isinstance(told[node.id], str)]:
        raise Failure(
            f"node {silent[0]} does not answer: {told[silent[0]]}",
            fix="start it, or take it out (`raftmq cluster remove`); then call this again",
        )
    level = max((each.get("cluster_level", 0) for each in statuses.values()), default=0)
    if level < MOVES_LEVEL or not all(group.wanted for group in view.groups):
        raise Failure(
            f"this needs feature level {MOVES_LEVEL} on all nodes",
            fix="upgrade them (`raftmq cluster roll`); `raftmq cluster status` names those behind",
        )
    found = loads(view, statuses)
    if found.leaderless:
        raise Failure(
            f"group {found.leaderless[0]} has no leader",
            fix="`raftmq cluster status` shows what is wrong",
        )
    return view, found


class _Run:
    """A run that carries plans out."""

    def __init__(self, mq: "Client", plan: "Planner", moves_max: int, meter: Meter) -> None:
        self._mq = mq
        self._plan = plan
        self._moves_max = moves_max
        self._meter = meter
        self._copied: dict[int, Move] = {}
        """Groups that were moved to other nodes."""
        self._led: dict[int, Move] = {}
        """Groups that got another leader alone."""
        self._refusals: Counter[int] = Counter()
        """Group → how often its move was refused."""

    async def run(self) -> tuple[_Look, set[int]]:
        """Carry plans out until nothing is left to do; the last look, and the groups that changed.

        Raises:
            Failure: the cluster was not well for too long, or nothing was copied for that long.
        """
        import anyio

        well_at = begun_at = moved_at = anyio.current_time()
        waits_for, progress = "", (list[int](), 0)
        while True:
            now = anyio.current_time()
            try:
                look = await _look(self._mq, self._plan)
                due = self._due(look)
                for move in due:
                    await self._begin(move)
                if due or look.loads.under_way:
                    begun_at = now
                # A leader may decline: its disk may be low.
                is_led = not look.loads.led_elsewhere or now - begun_at > LEAD_SECONDS_MAX
                if not due and not look.loads.under_way and is_led:
                    return look, {*self._copied, *self._led}
                self._show(look)
                well_at = now
                if due or progress != (look.loads.under_way, look.loads.copied):
                    progress, moved_at = (look.loads.under_way, look.loads.copied), now
            except (Failure, Unavailable, OutcomeUnknown) as error:
                # A node that dies, or comes back, holds up what is left to begin, and nothing else.
                if now - well_at > WAIT_SECONDS_MAX:
                    raise
                if str(error) != waits_for:
                    waits_for = str(error)
                    note(f"waiting: {waits_for}")
            if now - moved_at > WAIT_SECONDS_MAX:
                raise Failure(
                    f"{groups_text(progress[0])}: nothing was copied for {WAIT_SECONDS_MAX:g} s",
                    fix="a disk may be full, or more be written than `limits.copy_bytes_per_second`"
                    " lets through; `raftmq cluster status` shows who lacks how much",
                )
            await anyio.sleep(LOOK_SECONDS)

    def _due(self, look: _Look) -> "list[Move]":
        """The moves to begin now."""
        free = [
            move
            for move in look.moves
            if move.group not in look.loads.under_way and self._refusals[move.group] < REFUSALS_MAX
        ]
        copies = [m for m in free if not _keeps_nodes(m) and m.group not in self._copied]
        if copies or look.loads.under_way:
            return copies[: max(0, self._moves_max - len(look.loads.under_way))]
        leads = [m for m in free if _keeps_nodes(m) and m.group not in self._led]
        return leads[: max(0, LEADERS - len(look.loads.led_elsewhere))]

    async def _begin(self, move: "Move") -> None:
        try:
            await self._mq.admin.move_group(move.group, move.members, before=move.before)
        except Rejected as error:
            # The catalog has changed since the look: the next plan goes by the new one.
            if error.reason not in (Reason.BAD_ARGUMENT, Reason.UNKNOWN_NODE):
                raise
            self._refusals[move.group] += 1
        else:
            (self._led if _keeps_nodes(move) else self._copied)[move.group] = move

    def _show(self, look: _Look) -> None:
        arrived = [m for group, m in self._copied.items() if group not in look.loads.under_way]
        done = (sum(move.bytes for move in arrived) + look.loads.copied) / MIB
        self._meter.advance(max(0.0, done - self._meter.done))


def _keeps_nodes(move: "Move") -> bool:
    """True if a move only changes which member shall lead."""
    return set(move.before) == set(move.members)
