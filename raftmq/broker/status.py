"""A node's picture of itself, as plain values: what `cluster status` and dashboards show.

| key | value |
|---|---|
| `id`, `cluster`, `incarnation`, `generation`, `software` | who |
| `host`, `port`, `pid`, `data` | where |
| `level`, `cluster_level` | feature levels: the highest that it allows, and the cluster's |
| `uptime_ms`, `connections`, `request_bytes`, `disk_passes`, `unwritten_bytes` | how it is |
| `free_bytes` | of the disk, beyond `log.reserve_bytes`; null: not measured yet |
| `handshakes_failed`, `logins_failed`, `requests_denied` | numbers since the node started |
| `handshake_error` | why the last handshake of TLS failed |
| `quotas` | requests that quotas hold, and whose they held longest: see `Quotas.status` |
| `leads` | numbers of the partition groups it leads |
| `groups` | one map for each replica: see `_group_status` |
| `scrub` | rounds done, bytes read, and where the scrub of the sealed segments is |
| `links` | one map for each other node |
| `certificate_ends_ms` | milliseconds since 1970; 0: it has none |
| `access_differs` | sentences: how the access of other nodes is set otherwise |
| `settings` | the dynamic settings: see `dynamic.following.DynamicSettings.status` |
| `not_followed` | why `peers` in its settings has no effect; empty: nothing to say |
| `next` | only if more replicas follow: ask again with `Status.after` set to it |
"""

from typing import Any, Protocol

from raftmq.broker.cluster.founders import settings_not_followed
from raftmq.broker.host import SOFTWARE, Host
from raftmq.broker.leader_tasks import LeaderTasks
from raftmq.broker.replica.disk import DiskLoop
from raftmq.broker.replica.group import Group, node_of
from raftmq.broker.replica.repair import Repairs
from raftmq.broker.replica.retention import Retention
from raftmq.broker.replica.space import Space
from raftmq.broker.serve.pages import STATUS_GROUPS
from raftmq.machine.machine import PartitionMachine


class Described(Host, Protocol):
    """The node, with all that its picture shows."""

    repairs: Repairs
    retention: Retention
    started_ms: int
    disk: DiskLoop
    leader_tasks: LeaderTasks
    space: Space


def node_status(node: Described, *, after: int = -1) -> dict[str, Any]:
    """See the table of this module: the replicas after number `after`, as many as fit a page."""
    own = node.settings.node
    numbers = sorted(number for number in node.groups if number > after)
    page = numbers[:STATUS_GROUPS]
    following = {"next": page[-1]} if len(page) < len(numbers) else {}
    return following | {
        "id": node.id,
        "cluster": own.cluster,
        "incarnation": node.incarnation,
        "generation": node.generation,
        "software": SOFTWARE,
        "host": own.host,
        "port": own.port,
        "pid": node.world.process_id,
        "data": own.data,
        "level": node.links.level,
        "cluster_level": node.catalog.level,
        "uptime_ms": node.now_ms() - node.started_ms,
        "connections": node.load.connections,
        "request_bytes": node.load.request_bytes,
        "handshakes_failed": node.load.handshakes_failed,
        "handshake_error": node.load.handshake_error,
        "logins_failed": node.gate.failed,
        "requests_denied": node.gate.denied,
        "quotas": node.quotas.status(),
        "disk_passes": node.disk.passes,
        "unwritten_bytes": node.disk.unwritten_bytes,
        "free_bytes": node.space.free_bytes,
        "leads": sorted(number for number, group in node.groups.items() if group.is_leader),
        "groups": [_group_status(node, node.groups[number]) for number in page],
        "scrub": node.repairs.scrub_status(),
        "links": {
            str(link.peer.id): {"connected": link.is_connected, "last_error": link.last_error}
            for link in node.links.all()
        },
        "certificate_ends_ms": node.world.certificate_ends_ms,
        "access_differs": node.gate.differences,
        "settings": node.dynamic.status(),
        "not_followed": settings_not_followed(node),
    }


def _waiting(group: Group) -> dict[str, Any]:
    """Messages that are not due yet, and transactions that are open."""
    machine = group.machine
    if not isinstance(machine, PartitionMachine):
        return {}
    return {
        "delayed": machine.delays.count,
        "next_due_ms": machine.delays.next_due,
        "open_transactions": len(machine.transactions.open),
    }


def _group_status(node: Described, group: Group) -> dict[str, Any]:
    status = group.raft.status()
    held = node.retention.held.get(group.number)
    return {
        "group": group.number,
        "member": group.raft.id,
        "role": status.role.name.lower(),
        "leader": node_of(status.leader),
        "term": status.hard_state.term,
        "commit": status.hard_state.commit,
        "applied": status.applied,
        "first_index": status.first_index,
        "last_index": status.last_index,
        "digest": group.machine.digest,
        "voters": list(group.conf_state.voters),
        "learners": list(group.conf_state.learners),
        "voters_outgoing": list(group.conf_state.voters_outgoing),
        "refusal": group.refusal,
        "abstains": group.abstains,
        "differs": group.differs,
        "rotten": node.repairs.status(group.number),
        "rotten_snapshots": node.repairs.rotten_snapshots(group),
        "kept_for_dead": held._asdict() if held is not None else None,
        "dead_gone": node.retention.gone.get(group.number, 0),
        **_waiting(group),
        "cache_bytes": group.cache.memory_bytes(),
        "log_bytes": sum(segment.bytes for segment in group.store.segments()),
        "write_rate": round(node.leader_tasks.write_rates.of(group.number)),
        "progress": {
            str(member): {"match": progress.match, "state": progress.state.name.lower()}
            for member, progress in status.progress.items()
        },
    }
