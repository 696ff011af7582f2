"""An attack on the process of a node, as `raftmq up --secure` starts it: sockets, TLS, a disk.

A bystander asks the node for its status all the time: its longest wait is an upper bound of the
time for which the loop was held, on a machine that has nothing else to do. Memory is the process's
resident size.
"""

import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from raftmq import testing
from raftmq.testing import Cluster
from raftmq.tls.authority import Authority
from raftmq.tls.local_cluster import ADMIN
from raftmq.tls.names import USER, CertificateName
from raftmq.wire.messages import FrameKind, Status

from .attack import Attack, Outcome
from .stage import FEW, Opens, Peer, plant

BURST, PATIENCE = 64, 0.1
SLICE_FRAMES = 20_000
LOOK_SECONDS = 0.05
GROWTH_MIB_MAX = 256
"""What the process may grow by: logs in memory have a bound of their own beside it."""


def attack_process(user: str, seed: int, frames: int, tell: Callable[[str], object]) -> Outcome:
    """Attack the only node of a new cluster."""
    return trio.run(_attack, user, seed, frames, tell)


async def _attack(user: str, seed: int, frames: int, tell: Callable[[str], object]) -> Outcome:
    async with testing.cluster(1, secure=True) as nodes:
        opens = opens_of(nodes)
        things = await plant(opens)
        random = Random(f"frames {user} {seed}")
        attack = Attack(opens, things, user, random, burst=BURST, patience=PATIENCE)
        pid, before = nodes.pid(1), _memory_mib(nodes.pid(1))
        bystander = _Bystander()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander.run, opens)
            while attack.outcome.frames < frames and nodes.pid(1) == pid:
                await attack.run(min(SLICE_FRAMES, frames - attack.outcome.frames))
                tell(
                    f"{attack.outcome.frames:,} frames, {_memory_mib(pid)} MiB (before: {before}), "
                    f"longest wait of a bystander {bystander.longest * 1000:.0f} ms"
                )
            nursery.cancel_scope.cancel()
        outcome = attack.outcome
        if nodes.pid(1) != pid:
            outcome.find(f"the node ended: {nodes.log(1)[-2000:]}")
        elif (grown := _memory_mib(pid) - before) > GROWTH_MIB_MAX:
            outcome.find(f"the process grew by {grown} MiB")
        if not bystander.answers:
            outcome.find("a bystander is not served")
        return outcome


class _Bystander:
    """A client that asks all the time, and does nothing wrong."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.answers = 0

    async def run(self, opens: Opens) -> None:
        async with opens(ADMIN) as stream:
            peer = Peer(stream)
            await peer.greet()
            while True:
                begun = trio.current_time()
                await peer.ask(FrameKind.STATUS, Status())
                self.longest = max(self.longest, trio.current_time() - begun)
                self.answers += 1
                await trio.sleep(LOOK_SECONDS)


def opens_of(nodes: Cluster) -> Opens:
    """Opens connections under TLS to node 1; the attacker does not care who answers."""
    certs = nodes.certs
    assert certs is not None, "the cluster is secure"
    contexts: dict[str, ssl.SSLContext] = {}

    @asynccontextmanager
    async def opens(user: str) -> AsyncIterator[trio.abc.Stream]:
        context = contexts.get(user)
        if context is None:
            context = contexts[user] = ssl.create_default_context(cafile=str(certs / "ca.pem"))
            if user:
                context.load_cert_chain(_certificate(certs, user))
        host, _, port = nodes.address(1).rpartition(":")
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
