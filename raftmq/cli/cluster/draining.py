"""`raftmq cluster drain`, `undrain` and `roll`: nodes that lead nothing while they are restarted.

`roll` restarts all nodes, one after the other, and goes on only when all is well again:

    wait until all is well | drain | the restart | wait until the node is back | undrain | next

Nodes are restarted without a drain where the cluster's feature level is too low for it, and where
no other node could lead. A node that stops gracefully hands over anyway.

All is well if `raftmq cluster status` has no complaint and no node lacks many records.

The node that leads the system group comes last, so that group changes its leader once.

Invariants:
- At most one node is drained by `roll`. The drain ends before the next node, and when `roll` ends
  in whatever way but a second Ctrl-C; if the cluster does not answer then, `roll` names the node. A
  node that was drained before stays so.
"""

import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.exits import Failure
from raftmq.cli.interrupts import as_interrupts
from raftmq.cli.output import note
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import DURATION
from raftmq.errors import RaftmqError, Reason, Rejected, Unavailable

from .balancing import move_away
from .picture import groups_text, picture_of

if TYPE_CHECKING:
    from raftmq.client import Client

DRAIN_SECONDS_MAX = 60.0
"""Seconds that `drain` waits until the node leads nothing."""
LOOK_SECONDS = 0.2
"""Between two looks at the cluster."""
LACKING_MAX = 256
"""Records that a node may lack for all to be well: with more, no leader hands over to it."""
UNDRAIN_SECONDS_MAX = 5.0
"""Seconds that the end of a drain may take."""

_FIELDS = ("{node}", "{host}", "{port}", "{pid}")


@click.command()
@click.argument("node", type=click.IntRange(1))
@click.option(
    "--move",
    "moves",
    is_flag=True,
    help="Move its copies to other nodes, too, as before its disk is exchanged.",
)
@with_session
def drain(session: Session, node: int, moves: bool) -> None:
    """Have NODE lead no partition group, as before a restart.

    The other nodes take over what NODE leads; it keeps its copies, and votes as before. The
    command ends once it leads nothing. `raftmq cluster undrain` ends the drain; a restart does not.

    With --move it also ends only once other nodes have all its copies of data groups. After
    `undrain`, `raftmq cluster balance` gives it a share again.
    """
    session.run(lambda mq: _drain(mq, node))
    if moves:
        move_away(session, node)
    note(f"node {node} leads nothing and may be stopped; after that: raftmq cluster undrain {node}")


@click.command()
@click.argument("node", type=click.IntRange(1))
@with_session
def undrain(session: Session, node: int) -> None:
    """Let NODE lead its share of the partition groups again."""
    session.run(lambda mq: mq.admin.drain_node(node, is_on=False))
    note(f"node {node} takes back the groups that it should lead, one after the other")


@click.command()
@click.option(
    "--run",
    "command",
    help="The command that restarts a node: {node}, {host}, {port} and {pid}, of its process, are "
    "filled in, no shell reads it.  [default: you restart each node when asked]",
)
@click.option("--node", "nodes", type=click.IntRange(1), multiple=True, help="Only these nodes.")
@click.option(
    "--wait",
    type=DURATION,
    default="10m",
    show_default=True,
    help="The longest that a node may take to come back, and the cluster to be well again.",
)
@with_session
def roll(session: Session, command: str | None, nodes: tuple[int, ...], wait: float) -> None:
    """Restart all nodes, one after the other, while the cluster serves.

    Each node leads nothing when it is stopped, so no client waits for an election. The next one
    follows once all is well. For newer software the command installs it first.

    \b
    raftmq cluster roll --run 'ssh {host} sudo systemctl restart raftmq'
    raftmq cluster roll --run 'ssh {host} sudo kill {pid}'      # of `raftmq serve --nodes`
    """
    words = _words(command)
    with as_interrupts(signal.SIGTERM, signal.SIGHUP):
        # On trio, as Ctrl-C has to end the drain before the program ends.
        session.run(lambda mq: _Roll(mq, words, wait).run(nodes), backend="trio")
    note("all is well")


def _words(command: str | None) -> list[str]:
    """The words of the command that restarts a node; empty: there is none.

    Raises:
        click.BadParameter: it is the same for each node, or has an open quote.
    """
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(f"{command!r}: {error}", param_hint="--run") from error
    if not any(field in word for field in _FIELDS for word in words):
        text = f"{command!r} names no node: write {', '.join(_FIELDS[:-1])} or {_FIELDS[-1]} in it"
        raise click.BadParameter(text, param_hint="--run")
    return words


async def _drain(mq: "Client", node: int) -> None:
    """Drain a node, and wait until it leads nothing.

    Raises:
        Failure: it still leads groups after `DRAIN_SECONDS_MAX`.
    """
    import anyio

    await mq.admin.drain_node(node)
    led: list[int] = []
    with anyio.move_on_after(DRAIN_SECONDS_MAX):
        while True:
            with suppress(Unavailable):
                groups = (await picture_of(mq))["groups"]
                led = [group["id"] for group in groups if group["leader"] == node]
                if not led and all(group["leader"] for group in groups):
                    return
            await anyio.sleep(LOOK_SECONDS)
    raise Failure(
        f"node {node} still leads {groups_text(led)}" if led else "some groups have no leader",
        fix="`raftmq cluster status` shows which nodes are well",
    )


class _Roll:
    """A rolling restart."""

    def __init__(self, mq: "Client", command: Sequence[str], seconds_max: float) -> None:
        """`command`: words that restart a node; none: the operator does it."""
        self._mq = mq
        self._command = command
        self._seconds_max = seconds_max

    async def run(self, wanted: Sequence[int]) -> None:
        """Restart the nodes, all if none is named."""
        picture = await self._until("all is well", _why_not_well)
        known = {node["id"]: node for node in picture["nodes"]}
        if unknown := sorted(set(wanted) - known.keys()):
            raise Failure(
                f"there is no node {unknown[0]}",
                fix=f"the nodes are {', '.join(map(str, sorted(known)))}",
            )
        leader = next(group["leader"] for group in picture["groups"] if group["id"] == 0)
        order = sorted(set(wanted) or known, key=lambda number: (number == leader, number))
        for place, number in enumerate(order, 1):
            note(f"node {number} ({place} of {len(order)})")
            node = next((each for each in picture["nodes"] if each["id"] == number), None)
            if node is None:
                note(f"node {number} has left the cluster meanwhile")
                continue
            async with self._drained(node, picture["level"]):
                await self._restart(node)
            picture = await self._until("all is well", _why_not_well)

    @asynccontextmanager
    async def _drained(self, node: dict[str, Any], level: int | None) -> AsyncIterator[None]:
        """Inside, the node is drained, as far as that can be. Node and level of the cluster are
        those of a picture that was taken just now."""
        import anyio

        from raftmq.machine.catalog.levels import DRAIN_LEVEL

        number = node["id"]
        if (level or 0) < DRAIN_LEVEL:
            note(f"not drained: that needs feature level {DRAIN_LEVEL}")
            yield
            return

        async def undrain() -> None:
            if not node["is_drained"]:
                with anyio.CancelScope(shield=True):
                    await self._mq.admin.drain_node(
                        number, is_on=False, timeout=UNDRAIN_SECONDS_MAX
                    )

        try:
            # Within: a drain that fails, or is interrupted, may have marked the node.
            try:
                await _drain(self._mq, number)
            except Rejected as error:
                if error.reason is not Reason.BAD_ARGUMENT:
                    raise
                note(f"not drained: {error}")
            yield
        except BaseException:
            try:
                await undrain()
            except RaftmqError as error:
                # Raised, it would hide the error that ends the roll.
                note(f"node {number} is still drained ({error}): raftmq cluster undrain {number}")
            raise
        await undrain()

    async def _restart(self, node: dict[str, Any]) -> None:
        """Have a node restarted, and wait until it serves again and lacks nothing."""
        import anyio

        begun = anyio.current_time()
        number = node["id"]
        if self._command:
            await self._run_command(node)
        else:
            note(f"node {number} at {node['address']} leads nothing: restart it now")

        def why_not_back(picture: dict[str, Any]) -> str:
            found = next((each for each in picture["nodes"] if each["id"] == number), None)
            if found is None or not found["is_reachable"]:
                return f"node {number} does not answer"
            if found["uptime_ms"] >= (anyio.current_time() - begun) * 1000:
                return f"node {number} was not restarted"
            return _why_not_well(picture)

        await self._until(f"node {number} is back", why_not_back)

    async def _run_command(self, node: dict[str, Any]) -> None:
        import anyio

        host, _, port = node["address"].rpartition(":")
        words = list(self._command)
        values = (str(node["id"]), host, port, str(node["pid"]))
        for field, value in zip(_FIELDS, values, strict=True):
            words = [word.replace(field, value) for word in words]
        try:
            async with await anyio.open_process(
                words, stdin=subprocess.DEVNULL, stdout=None, stderr=None
            ) as process:
                try:
                    with anyio.fail_after(self._seconds_max):
                        code = await process.wait()
                finally:
                    # The end of the block waits for the process.
                    if process.returncode is None:
                        process.kill()
            problem = f"it ended with {code}" if code else ""
        except TimeoutError:
            problem = f"it did not end within {self._seconds_max:g} s"
        except OSError as error:
            problem = str(error)
        if problem:
            raise Failure(
                f"{shlex.join(words)}: {problem}",
                fix=f"node {node['id']} and those after it were not restarted; run it by hand",
            )

    async def _until(self, what: str, why_not: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
        """The first picture of the cluster of which `why_not` tells nothing.

        Raises:
            Failure: there is none in time.
        """
        import anyio

        reason = ""
        with anyio.move_on_after(self._seconds_max):
            while True:
                try:
                    picture = await picture_of(self._mq)
                    reason = why_not(picture)
                except RaftmqError as error:
                    reason = str(error)
                if not reason:
                    return picture
                await anyio.sleep(LOOK_SECONDS)
        raise Failure(
            f"not within {self._seconds_max:g} s: {what}; {reason}",
            fix="`raftmq cluster status` shows what is wrong; then call this again",
        )


def _why_not_well(picture: dict[str, Any]) -> str:
    """The first reason not to stop a node; empty: there is none."""
    for problem in picture["problems"]:
        return str(problem)
    for group in picture["groups"]:
        for node, records in group["behind"].items():
            if records is None:
                return f"the leader of group {group['id']} does not know what node {node} lacks"
            if records > LACKING_MAX:
                return f"node {node} lacks {records} records of group {group['id']}"
    return ""
