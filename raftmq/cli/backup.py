"""`raftmq backup`: take a backup of a running cluster, verify one, and restore one.

`take` goes on with what the folder has (`raftmq.backup.copying`), so the same command makes the
first backup, an increment, and the rest of a backup that was stopped. `verify` reads everything and
needs no cluster. `restore` makes the data folder of the first node of a new cluster by the
settings that the node is then started with.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from raftmq.cli.exits import ExitCode, Failure
from raftmq.cli.lazy import HintedGroup
from raftmq.cli.output import (
    Meter,
    Result,
    Table,
    bytes_text,
    output_option,
    print_result,
    time_text,
    with_output,
)
from raftmq.cli.session import Session, with_session
from raftmq.cli.values import BYTE_RATE
from raftmq.words import counted

from .node.settings_file import read_settings, settings_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.backup.copying import Taken
    from raftmq.backup.manifest import Point
    from raftmq.client import Client

MIB = 1024**2
ANOTHER = "take a backup into a new folder, or use another copy of this one"


@click.group(cls=HintedGroup)
def backup() -> None:
    """Back a cluster up; verify backups; restore one."""


@backup.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--rate",
    type=BYTE_RATE,
    metavar="BYTES",
    help="Copy no more bytes a second than this, as 20MB/s.  [default: no bound]",
)
@with_output
@with_session
def take(session: Session, folder: Path, rate: int | None) -> Result:
    """Copy all that is acknowledged by now into FOLDER; a later call copies what is new.

    Each partition group is consistent by its index; groups are not consistent with each other.
    A call that was stopped is taken up by the next one. The user needs the right `admin` on the
    cluster.
    """
    from raftmq.backup.copying import Copying
    from raftmq.backup.manifest import BackupFault
    from raftmq.log.faults import LogFault
    from raftmq.log.files import RealFiles

    with Meter("backup", unit="MiB") as meter:

        async def call(mq: "Client") -> "Taken":
            copying = Copying(
                mq, RealFiles(), str(folder), rate=rate, on_bytes=_shown_by(meter, "backup")
            )
            try:
                return await copying.take()
            except (BackupFault, LogFault) as fault:
                raise Failure(str(fault), fix="") from fault

        taken = session.run(call)
    document = {
        "cluster": taken.cluster,
        "backup": taken.number,
        "records": taken.records,
        "bytes": taken.bytes,
        **_plain(taken.point),
    }
    text = (
        f"backup {taken.number} of cluster {taken.cluster} is in {folder}: "
        f"{counted(taken.records, 'record')} copied, {bytes_text(taken.bytes)}"
    )
    return Result(document, [_table(taken.point)], notes=[text])


@backup.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@output_option()
def verify(folder: Path, output: str) -> int:
    """Read a backup as a whole: each file, the chain of all records, and the state that they make.

    The records are applied as a node applies them, and the state at the end of each backup has to
    be the one that the cluster had.
    """
    from raftmq.backup.manifest import BackupFault
    from raftmq.backup.verification import verify as verified
    from raftmq.log.files import RealFiles

    with Meter("verify", unit="MiB") as meter:
        try:
            found = verified(RealFiles(), str(folder), on_bytes=_shown_by(meter, "verify"))
        except BackupFault as fault:
            raise Failure(str(fault), fix=ANOTHER, code=ExitCode.UNHEALTHY) from fault
    faults = [each.fault for each in found.groups if each.fault]
    rows = [
        (each.group, each.snapshot, each.last, bytes_text(each.bytes), each.fault or "whole")
        for each in found.groups
    ]
    points = found.manifest.points
    document = {
        "cluster": found.manifest.cluster,
        "backups": [_plain(point) for point in points],
        "groups": found.groups,
    }
    failure = None
    if faults:
        damaged = f"{counted(len(faults), 'partition group')} damaged: {faults[0]}"
        failure = Failure(damaged, fix=ANOTHER, code=ExitCode.UNHEALTHY)
    table = Table([">GROUP", ">SNAPSHOT", ">LAST", ">BYTES", "STATE"], rows)
    text = (
        f"{counted(len(points), 'backup')} of cluster {found.manifest.cluster}, "
        f"the last one of {time_text(points[-1].at_ms)}"
    )
    return print_result(Result(document, [table], notes=[text], failure=failure), output)


@backup.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@settings_options("new node", example="node.cluster=shop2")
@click.option(
    "--backup",
    "number",
    type=click.IntRange(1),
    help="The number of the backup in the folder.  [default: the last one]",
)
@with_output
def restore(folder: Path, config: Path, overrides: tuple[str, ...], number: int | None) -> Result:
    """Make the data folder of the first node of a new cluster, by the settings that the node is
    then started with.

    node.data must not exist yet, and node.cluster must be another name than the old cluster's.
    `raftmq serve` starts the node; `raftmq cluster add` adds the next ones, which copy everything.

    \b
    raftmq backup restore orders-backup -c node.toml --set node.cluster=shop2
    raftmq serve -c node.toml --set node.cluster=shop2
    """
    from raftmq.backup.manifest import BackupFault
    from raftmq.backup.restoring import NewNode, Restoring
    from raftmq.broker.settings import WILDCARDS
    from raftmq.log.faults import LogFault
    from raftmq.log.files import RealFiles

    settings = read_settings(config, overrides)
    own = settings.node
    row = next((peer for peer in own.peers if peer.id == own.id), own)
    if row.host in WILDCARDS:
        raise Failure(
            f"node.host is {row.host}, and clients need an address of this node",
            fix="name the node's address in its row of node.peers",
        )
    node = NewNode(own.cluster, own.id, row.host, row.port)
    with Meter("restore", unit="MiB") as meter:
        restoring = Restoring(
            RealFiles(),
            str(folder),
            own.data,
            node,
            number=number,
            segment_bytes=settings.log.segment_bytes,
            on_bytes=_shown_by(meter, "restore"),
        )
        try:
            done = restoring.restore()
        except (BackupFault, LogFault) as fault:
            raise Failure(str(fault), fix="") from fault
    text = (
        f"{own.data} is the folder of node {own.id} of cluster {own.cluster}, as cluster "
        f"{done.old_cluster} was at {time_text(done.point.at_ms)}; start the node with "
        f"`raftmq serve -c {config}` and the same --set"
    )
    document = {
        "cluster": own.cluster,
        "old_cluster": done.old_cluster,
        "node": own.id,
        "generation": done.generation,
        "data": own.data,
        **_plain(done.point),
    }
    return Result(document, [_table(done.point)], notes=[text])


def _shown_by(meter: Meter, what: str) -> "Callable[[int, int], None]":
    def show(group: int, count: int) -> None:
        meter.advance(count / MIB, f"{what}: group {group}")

    return show


def _table(point: "Point") -> Table:
    rows = [(each.group, each.index, each.term, f"{each.digest:08x}") for each in point.groups]
    return Table([">GROUP", ">INDEX", ">TERM", "DIGEST"], rows)


def _plain(point: "Point") -> dict[str, object]:
    return {"at_ms": point.at_ms, "groups": list(point.groups)}
