"""The nodes of one machine, from one file of settings: their numbers, ports and folders.

`raftmq serve --nodes 3` with `node.id = 2`, `node.port = 7400` and one folder in `node.disks`:

| node | port | its folder |
|---|---|---|
| 2 | 7400 | `node-2` in `node.data` |
| 102 | 7401 | `node-102` in the folder of `node.disks` |
| 202 | 7402 | `node-202` in `node.data` |

The numbers are `STRIDE` apart, so the nodes of one machine are never neighbours among the founders
([decision](../../../docs/decisions/0044-nodes-of-a-machine.md)): a cluster puts a group on
neighbours when it is founded, and the system group's voters have the lowest numbers.

A node that `node.peers` does not name joins: its `join` is that list.

Invariants:
- A node stays in the folder that it has, whatever `node.disks` says by now: in a blank one it would
  come back as a node that lost its disk.
- No node is left out silently: a folder of a node that would not run is refused.
- Nothing is written here.
"""

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftmq.broker.cluster.identity import FILE as IDENTITY
from raftmq.broker.local_nodes import toml_value
from raftmq.cli.exits import Failure
from raftmq.cli.values import NODES_MAX

if TYPE_CHECKING:
    from raftmq.broker.settings import NodeSettings, Settings

STRIDE = 100
"""Between the numbers of two nodes of a machine; a machine has a number below it."""


class MachineNode(NamedTuple):
    """One node of a machine."""

    id: int
    """Its number."""
    overrides: tuple[str, ...]
    """The settings that are its own, as `--set` takes them."""


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def folders_of(own: "NodeSettings") -> list[Path]:
    """The folders, one a disk, in which the nodes of a machine have theirs."""
    return [Path(own.data), *map(Path, own.disks)]


def nodes_of(settings: "Settings", wanted: int | None) -> list[MachineNode]:
    """The nodes of this machine.

    Args:
        settings: the machine's file; `node.id` is the first node's number, and so the machine's.
        wanted: how many; None: one a processor, and at least as many as have folders here.

    Raises:
        Failure: the settings, or what is in the folders, do not allow it.
    """
    own = settings.node
    if own.id >= STRIDE:
        raise Failure(
            f"node.id is {own.id}: with --nodes it numbers the machine, from 1 to {STRIDE - 1}",
            fix=f"the nodes of machine 2 are 2, {2 + STRIDE}, {2 + 2 * STRIDE} and so on",
        )
    machine = own.machine or _host_name()
    homes = _homes(own)
    known = _known_nodes(own, homes)
    needed = max(known, default=own.id) // STRIDE + 1
    count = max(needed, min(NODES_MAX, processors())) if wanted is None else wanted
    if count < needed:
        lost = [number for number in sorted(known) if number >= count * STRIDE]
        raise Failure(
            f"--nodes {count} leaves out {_nodes_text(lost)}, whose folders are here: "
            f"{', '.join(str(known[number]) for number in lost)}",
            fix=f"--nodes {needed} runs all. To have fewer, `raftmq cluster remove {lost[-1]}` "
            "while it runs, then delete its folder; the highest number goes first",
        )
    if own.port + count > 65_536:
        last = own.port + count - 1
        raise Failure(f"ports {own.port} to {last} do not exist", fix="choose a smaller node.port")
    founders = {peer.id for peer in own.peers}
    nodes = []
    for at in range(count):
        number = own.id + at * STRIDE
        folder = known.get(number, homes[at % len(homes)] / f"node-{number}")
        values = {
            "node.id": number,
            "node.port": own.port + at,
            "node.data": str(folder),
            "node.disks": [],
            "node.machine": machine,
        }
        if founders and number not in founders:
            rows = [{"id": peer.id, "host": peer.host, "port": peer.port} for peer in own.peers]
            values |= {"node.peers": [], "node.join": rows}
        texts = (f"{name}={toml_value(value)}" for name, value in values.items())
        nodes.append(MachineNode(number, tuple(texts)))
    return nodes


def require_own_folder(own: "NodeSettings") -> None:
    """See that a node that is started alone is not meant to be one of several.

    Raises:
        Failure: its settings or its folder are those of a machine with `--nodes`.
    """
    if own.disks:
        raise Failure(
            "node.disks is for the nodes of `raftmq serve --nodes`",
            fix="add --nodes, or take node.disks out",
        )
    if found := sorted(_nodes_in(Path(own.data))):
        raise Failure(
            f"{own.data} has the folders of {_nodes_text(found)}",
            fix="`raftmq serve --nodes` runs them; a node alone needs a folder of its own",
        )


def _host_name() -> str:
    """This machine's name, as a place.

    Raises:
        Failure: it has a form that no place has.
    """
    from raftmq.machine.names import why_no_place

    name = socket.gethostname()
    if problem := why_no_place(name):
        raise Failure(f"the name of this machine: {problem}", fix="set node.machine")
    return name


def _homes(own: "NodeSettings") -> list[Path]:
    """The folders for the nodes, in the order of the settings.

    Raises:
        Failure: one is given twice, or is a single node's.
    """
    homes = folders_of(own)
    if len({home.absolute() for home in homes}) < len(homes):
        raise Failure(
            f"node.data and node.disks name a folder twice: {', '.join(map(str, homes))}",
            fix="name one folder a disk",
        )
    for home in homes:
        if (home / IDENTITY).exists():
            raise Failure(
                f"{home} is the folder of one node that ran without --nodes",
                fix=f"stop that node and move all that is in {home} into "
                f"{home / f'node-{own.id}'}, or name another folder",
            )
    return homes


def _known_nodes(own: "NodeSettings", homes: Iterable[Path]) -> dict[int, Path]:
    """The folders of nodes that ran here.

    Raises:
        Failure: one of them is no node of this machine, or has two.
    """
    known: dict[int, Path] = {}
    for home in homes:
        for number, folder in _nodes_in(home).items():
            if number in known:
                raise Failure(
                    f"node {number} has two folders: {known[number]} and {folder}",
                    fix="keep the one that it had last, and move the other away",
                )
            if number % STRIDE != own.id or number >= own.id + NODES_MAX * STRIDE:
                raise Failure(
                    f"{folder} is of node {number}, which is none of machine {own.id}: those are "
                    f"{own.id}, {own.id + STRIDE}, {own.id + 2 * STRIDE} and so on",
                    fix="correct node.id, or move that folder away",
                )
            known[number] = folder
    return known


def _nodes_in(home: Path) -> Mapping[int, Path]:
    """Number → folder of the nodes that ran in this folder."""
    return {
        int(match[1]): path.parent
        for path in home.glob(f"node-*/{IDENTITY}")
        if (match := re.fullmatch(r"node-(\d{1,9})", path.parent.name))
    }


def _nodes_text(numbers: Sequence[int]) -> str:
    """Nodes in words.

    >>> _nodes_text([101]), _nodes_text([101, 201])
    ('node 101', 'nodes 101, 201')
    """
    return f"node{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
