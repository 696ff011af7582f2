"""Certificates of real nodes: one that expires, and an authority that gives way to another.

    one authority ──> both are trusted ──> new certificates ──> the other authority alone

Each step leaves certificates with which everything works: cancelling between two steps, as the heal
does, leaves the cluster in order. Nodes take up changed files by themselves; clients read theirs
when they connect, so new ones take the place of all clients after each of the first two steps.

All nodes and clients of a run share one folder, so a step reaches the nodes within the same second.
"""

import shutil
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from raftmq.chaos.faults import Event
from raftmq.chaos.faults.arena import Skipped, Steps
from raftmq.chaos.faults.partitions import between
from raftmq.chaos.real.arena import Make, RealArena
from raftmq.chaos.real.run_state import RunState
from raftmq.chaos.real.waiting import wait_found, wait_true
from raftmq.tls.local_cluster import ADMIN, DAYS
from raftmq.tls.names import parse_urn

LIFE_SECONDS = 4.0
"""How long a certificate is valid that expires in mid-run."""
TAKEN_UP_SECONDS_MAX = 5.0
"""Time for nodes that run to take up changed files."""
REFUSED_SECONDS_MAX = 6.0
"""Time for another node to find that a certificate has expired."""
CLIENTS_SECONDS = 0.5
"""Until new clients have connected."""
TAKEN_UP = "took up certificates"
"""Part of the line that a node logs."""


def expiry(arena: RealArena, event: Event) -> Steps:
    """A node gets a certificate that expires soon, its connections break, and the others refuse it
    until it has another one."""
    state, (node,) = arena.state, event.nodes[:1]
    arena.later(partial(_let_expire, state, node))
    yield from ()


async def _let_expire(state: RunState, node: int) -> None:
    folder = _folder(state)
    async with state.certifying:
        state.running(node)
        renew(folder, folder, f"node-{node}", days=LIFE_SECONDS / 86_400)
        expires = trio.current_time() + LIFE_SECONDS
        try:
            await _wait_taken_up(state, node)
            await trio.sleep_until(expires + 0.2)
            state.note(node, "has a certificate that has expired")
            others = [other for other in state.everyone if other != node]
            state.network.break_connections(set(between([node], others)))
            is_refused = partial(_is_refused, state, node)
            is_seen = await wait_found(is_refused, timeout=REFUSED_SECONDS_MAX, look_seconds=0.2)
        finally:
            renew(folder, folder, f"node-{node}", days=DAYS)
        await _wait_taken_up(state, node)
        state.note(node, "has a valid certificate again")
    if not is_seen:
        raise Skipped("no other node was seen to refuse the certificate")


async def _is_refused(state: RunState, node: int) -> bool:
    statuses = await state.nodes.statuses()
    links = [status["links"].get(str(node)) for other, status in statuses.items() if other != node]
    return any(link and not link["connected"] and "expired" in link["last_error"] for link in links)


def rotation(arena: RealArena, event: Event) -> Steps:
    """Another authority takes the place of the one that made all certificates."""
    arena.later(partial(_rotate, arena.state))
    yield from ()


async def _rotate(state: RunState) -> None:
    folder = _folder(state)
    async with state.certifying:
        other = begin_authority(folder)
        trust(folder, folder, other)
        await _wait_all_read(state)
        give_out(folder, other)
        state.note(0, "all have certificates of another authority")
        await _wait_all_read(state)
        trust(folder, other)
        await _wait_taken_up(state, *state.everyone)
        state.counts["authorities replaced"] += 1


async def _wait_all_read(state: RunState) -> None:
    """Wait until the nodes have taken up their files, and let clients read theirs."""
    await _wait_taken_up(state, *state.everyone)
    state.workload.restart()
    await trio.sleep(CLIENTS_SECONDS)


async def _wait_taken_up(state: RunState, *nodes: int) -> None:
    """Wait until each of these nodes that runs has taken up what was just written; one that stands
    still does so when it goes on."""
    running = [node for node in nodes if state.nodes.is_running(node)]
    before = Counter({node: state.nodes.log(node).count(TAKEN_UP) for node in running})

    def is_taken_up() -> bool:
        return all(
            state.nodes.log(node).count(TAKEN_UP) > before[node]
            for node in running
            if state.nodes.is_running(node)
        )

    await wait_true(is_taken_up, timeout=TAKEN_UP_SECONDS_MAX)


def _folder(state: RunState) -> Path:
    if state.nodes.certs is None:
        raise Skipped("the connections are plain")
    return state.nodes.certs


# Files. Each is renamed into place, as a node may read it at any moment.


def begin_authority(folder: Path) -> Path:
    """Make another authority; returns its folder, within that of the present one."""
    from raftmq.tls.authority import Authority

    number = len(list(folder.glob("authority-*")))
    other = folder / f"authority-{number}"
    Authority(other)
    return other


def trust(folder: Path, *authorities: Path) -> None:
    """Let nodes and clients that use a folder trust these authorities, and no others."""
    from raftmq.tls.authority import CA, CRL

    # The lists first: a chain needs the list of its authority.
    for name in (CRL, CA):
        parts = [_own(place / name) for place in authorities]
        _put(folder / name, b"".join(dict.fromkeys(parts)))


def give_out(folder: Path, other: Path) -> None:
    """Give all nodes, and the administrator, certificates of another authority, and let it make
    those of the nodes that come. The present one stays trusted."""
    from raftmq.tls.authority import CA, CA_KEY

    for path in sorted(folder.glob("node-*.pem")):
        renew(folder, other, path.stem, days=DAYS)
    renew(folder, other, f"user-{ADMIN}", days=DAYS)
    before = (folder / CA).read_bytes()
    _put(folder / CA_KEY, (other / CA_KEY).read_bytes(), mode=0o600)
    own = (other / CA).read_bytes()
    _put(folder / CA, own + before.replace(own, b""))


def renew(folder: Path, authority: Path, holder: str, *, days: float) -> None:
    """Give a holder, by the stem of its files, another certificate of an authority."""
    from raftmq.tls.authority import CA, CA_KEY, Authority, describe

    known = describe(folder / f"{holder}.pem")
    name = parse_urn(known.names[0])
    assert name is not None, f"{holder} is none of raftmq's"
    with TemporaryDirectory(dir=folder) as place:
        for file in (CA, CA_KEY):
            shutil.copy(authority / file, place)
        made = Authority(Path(place), may_begin=False).issue(name, known.hosts, days=days)
        # The key comes first, as `issue` names it: certificate and key do not fit in between, and
        # a node leaves such files for its next look.
        for path in made:
            _put(folder / path.name, path.read_bytes(), mode=path.stat().st_mode & 0o777)


def _own(path: Path) -> bytes:
    """The first object in a PEM file: the authority's own, where others follow."""
    end = b"-----END "
    head, mark, rest = path.read_bytes().partition(end)
    return head + mark + rest.partition(b"\n")[0] + b"\n"


def _put(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=mode)
    new.write_bytes(data)
    new.replace(path)


OWN: Mapping[str, Make] = {"certificate-expiry": expiry, "ca-rotation": rotation}
"""By name of the fault."""
