"""The checks at the end of a run, when all has come to rest: of the disks, and of acknowledgements.

| promise | what is looked at |
|---|---|
| L8 | each acknowledged record is committed, where it was said to be |
| R21 | the machines of all nodes that are due are the same |
| L7, L4 | every record on their disks is read: it checks out, chains, and is the committed one |
| L6 | an index file that is removed and made again has the same bytes |
"""

from collections.abc import Sequence

from raftmq.chaos.core.cluster import Cluster
from raftmq.chaos.core.disk import contents
from raftmq.chaos.core.node import Node
from raftmq.log.builder import SegmentBuilder
from raftmq.log.faults import RotFound
from raftmq.log.segment import Identity
from raftmq.log.store import LogSettings, LogStore

from .broken import Broken
from .recovery import ALL_BYTES


def check(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Make all checks; `nodes` hold all records and agree."""
    safety = cluster.safety
    safety.compared["L8"] += len(cluster.clients.acked)
    for index, crc in cluster.clients.acked.items():
        known = safety.committed.get(index)
        if known is None or known.crc != crc:
            raise Broken("L8", f"acknowledged record {index} is not there")
    digests = {node.id: node.replica.machine.digest for node in nodes if node.replica is not None}
    safety.compared["R21"] += len(digests) > 1
    if len(set(digests.values())) > 1:
        raise Broken("R21", f"machines differ: {digests}")
    for node in nodes:
        _check_disk(cluster, node)
    if nodes:
        _check_indexes(cluster, nodes[0])


def _check_disk(cluster: Cluster, node: Node) -> None:
    assert node.replica is not None
    store = node.replica.store
    try:
        records = store.read(store.first_index, store.last_index + 1, ALL_BYTES)
    except RotFound as rot:
        raise Broken("L7", f"node {node.id}: {rot}") from rot
    cluster.safety.compared.update({"L4": len(records), "L7": len(records)})
    for record in records:
        known = cluster.safety.committed.get(record.index)
        if known is not None and known.encoded != record.encoded:
            raise Broken("L4", f"node {node.id} holds another record {record.index} than committed")


def _check_indexes(cluster: Cluster, node: Node) -> None:
    """On a copy: remove the newest index file, and make it again."""
    copy = node.disk.copy()
    indexes = [name for name in copy.list("log") if name.endswith(".index")]
    names = [name for name in indexes if name not in node.flipped_indexes]
    if not names:
        return
    before = contents(copy)[names[-1]]
    copy.unlink(f"log/{names[-1]}")
    settings = LogSettings(segment_bytes=cluster.settings.segment_bytes)
    store, _ = LogStore.open(copy, "log", settings, Identity("core", node.id, 0))
    for info in store.layout:
        if info.last is not None:
            store.seal(SegmentBuilder(info.name))
    cluster.safety.compared["L6"] += 1
    if contents(copy).get(names[-1]) != before:
        raise Broken("L6", f"node {node.id}: {names[-1]} is not the same when made again")
