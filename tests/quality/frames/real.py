"""An attack on the process of a node, as `raftmq up --secure` starts it: sockets, TLS, a disk.

Several attackers are connected at once, as one alone waits most of the time. A bystander, a process
of its own, asks the node for its status all the time: its longest wait is an upper bound of the
time for which the loop was held, on a machine that has nothing else to do. Memory is the process's
resident size.
"""

import math
import multiprocessing
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from random import Random

import trio

from raftmq import testing
from raftmq.tls.authority import Authority
from raftmq.tls.local_cluster import ADMIN
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.messages import FrameKind, Status

from .attack import Attack, Outcome
from .stage import FEW, Opens, Peer, plant

BURST, PATIENCE = 64, 0.1
ATTACKERS = 12
"""Attackers connected at once: twelve keep a node of one core busy."""
SLICE_FRAMES = 20_000
LOOK_SECONDS = 0.05
GROWTH_MIB_MAX = 256
"""What the process may grow by: logs in memory have a bound of their own beside it."""


def attack_process(user: str, seed: int, frames: int, tell: Callable[[str], object]) -> Outcome:
    """Attack the only node of a new cluster."""
    return trio.run(_attack, user, seed, frames, tell)


async def _attack(user: str, seed: int, frames: int, tell: Callable[[str], object]) -> Outcome:
    async with testing.cluster(1, secure=True) as nodes:
        certs = nodes.certs
        assert certs is not None, "the cluster is secure"
        opens = opens_at(nodes.address(1), certs)
        things = await plant(opens)
        pid, before = nodes.pid(1), _memory_mib(nodes.pid(1))
        outcome = Outcome()
        attacks = [
            Attack(
                opens,
                things,
                user,
                Random(f"frames {user} {seed} {number}"),
                outcome=outcome,
                burst=BURST,
                patience=PATIENCE,
            )
            for number in range(ATTACKERS)
        ]
        with _bystander(nodes.address(1), certs) as longest:
            while outcome.frames < frames and nodes.pid(1) == pid:
                until = min(outcome.frames + SLICE_FRAMES, frames)
                async with trio.open_nursery() as nursery:
                    for attack in attacks:
                        nursery.start_soon(attack.run, until)
                tell(
                    f"{outcome.frames:,} frames, {_memory_mib(pid)} MiB (before: {before}), "
                    f"longest wait of a bystander {longest.value * 1000:.0f} ms"
                )
            if longest.value in (0.0, math.inf):
                outcome.find("a bystander is not served")
        if nodes.pid(1) != pid:
            outcome.find(f"the node ended: {nodes.log(1)[-2000:]}")
        elif (grown := _memory_mib(pid) - before) > GROWTH_MIB_MAX:
            outcome.find(f"the process grew by {grown} MiB")
        return outcome


@contextmanager
def _bystander(address: str, certs: Path) -> Iterator["Synchronized[float]"]:
    """A client that asks all the time, and does nothing wrong; yields its longest wait, in
    seconds: 0 before its first answer, infinite after it was refused."""
    processes = multiprocessing.get_context("spawn")
    longest = processes.Value("d", 0.0)
    process = processes.Process(target=_stand_by, args=(address, certs, longest), daemon=True)
    process.start()
    try:
        yield longest
    finally:
        process.terminate()
        process.join()


def _stand_by(address: str, certs: Path, longest: "Synchronized[float]") -> None:
    try:
        trio.run(_ask, opens_at(address, certs), longest)
    finally:
        longest.value = math.inf


async def _ask(opens: Opens, longest: "Synchronized[float]") -> None:
    async with opens(ADMIN) as stream:
        peer = Peer(stream)
        await peer.greet()
        while True:
            begun = trio.current_time()
            await peer.ask(FrameKind.STATUS, Status())
            longest.value = max(longest.value, trio.current_time() - begun)
            await trio.sleep(LOOK_SECONDS)


def opens_at(address: str, certs: Path) -> Opens:
    """Opens connections under TLS to a node; the attacker does not care who answers."""
    contexts: dict[str, ssl.SSLContext] = {}

    @asynccontextmanager
    async def opens(user: str) -> AsyncIterator[trio.abc.Stream]:
        context = contexts.get(user)
        if context is None:
            context = contexts[user] = ssl.create_default_context(cafile=str(certs / "ca.pem"))
            if user:
                context.load_cert_chain(_certificate(certs, user))
        host, _, port = address.rpartition(":")
        tcp = await trio.open_tcp_stream(host, int(port))
        stream = trio.SSLStream(tcp, context, server_hostname=host, https_compatible=True)
        try:
            yield stream
        finally:
            await trio.aclose_forcefully(stream)

    return opens


def _certificate(certs: Path, user: str) -> Path:
    """The certificate of a user, with its key; made when it is first needed."""
    path = certs / f"user-{user}.pem"
    if not path.exists():
        assert user == FEW, user
        Authority(certs).issue(CertificateName(_cluster_of(certs), USER, user), (), days=1.0)
    return path


def _cluster_of(certs: Path) -> str:
    """The cluster's id, as node 1 has it in its settings."""
    found = re.search(r'cluster = "([^"]+)"', (certs.parent / "node-1.toml").read_text())
    assert found is not None, "the settings name the cluster"
    return found[1]


def _memory_mib(pid: int) -> int:
    """The resident size of a process."""
    if not pid:
        return 0
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 // (1 << 20)
