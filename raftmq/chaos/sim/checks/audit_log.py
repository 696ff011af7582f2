"""The audit log against the calls of administrators: each change that was acknowledged is in it.

`judge` counts, for each kind of change and each name, the calls that were answered `done` and those
without a clear answer. The entries of that kind and name, refused ones left out, must be at least
as many as the former, and at most as many as both together: a repeated request makes no second
entry, and a change without an entry is missed. Where the cluster knows its users, each entry has
the user of these calls, and no entry is an intruder's.

Left out: acts of other logs than the catalog's, whose entries may stay `begun`.
"""

from collections import Counter
from collections.abc import Iterator

from raftmq.chaos.sim.checks.intruders import INTRUDER
from raftmq.chaos.sim.clients import Clients
from raftmq.chaos.sim.cluster import Cluster
from raftmq.checkers.history import History, RowType
from raftmq.checkers.objects.administration import DONE
from raftmq.machine.catalog import audit
from raftmq.machine.catalog.audit import Entry

JUDGED = "acts in the audit log"
ACTS = {
    "make_topic": "create_topic",
    "grow_topic": "alter_topic",
    "drop_topic": "delete_topic",
    "put_group": "put_consumer_group",
    "detach": "detach",
    "drop_group": "delete_consumer_group",
}
"""Function of a history → act of an entry."""


class AuditLog:
    """The audit log of one run."""

    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self._cluster = cluster
        self._clients = clients
        self._entries: list[Entry] = []
        self.compared: Counter[str] = Counter()
        """By check: acknowledged changes that were looked for."""

    def take(self) -> None:
        """Take down the entries by the node that has applied most, while the nodes run."""
        catalogs = [node.catalog for node in self._cluster.nodes.values()]
        if catalogs:
            newest = max(catalogs, key=lambda catalog: catalog.applied)
            self._entries = list(newest.audit.entries.values())

    def judge(self, history: History) -> Iterator[str]:
        """The differences, in words; `history` has the calls of `workloads.administrators`."""
        user = self._clients.administrator if self._cluster.network.is_under_tls else ""
        sure, perhaps = _calls(history)
        noted: Counter[tuple[str, str]] = Counter()
        for entry in self._entries:
            act = entry.act
            if act.user == INTRUDER:
                yield f"entry {entry.number}: {act.what} of an intruder"
            if (act.what, act.name) in sure.keys() | perhaps.keys():
                if act.user != user:
                    yield f"entry {entry.number}: {act.what} of {act.user!r}, not {user!r}"
                noted[act.what, act.name] += entry.result in (audit.DONE, audit.UNCHANGED)
        self.compared[JUDGED] += sure.total()
        for key in sorted(sure.keys() | perhaps.keys()):
            least, most = sure[key], sure[key] + perhaps[key]
            if not least <= noted[key] <= most:
                what, name = key
                yield f"{what} {name}: {noted[key]} entries, and {least} to {most} changes"


def _calls(history: History) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """By act and name: the calls that were answered `done`, and those without a clear answer."""
    sure: Counter[tuple[str, str]] = Counter()
    perhaps: Counter[tuple[str, str]] = Counter()
    outcomes = history.outcomes()
    answers = {
        int(history.operation[row]): history.values[int(history.value[row])]
        for row in range(len(history))
        if history.type[row] == RowType.OK and history.value[row] >= 0
    }
    for row in range(len(history)):
        act = ACTS.get(history.functions[int(history.function[row])])
        if act is None or history.type[row] != RowType.INVOKE:
            continue
        operation = int(history.operation[row])
        key = act, history.keys[int(history.key[row])]
        if outcomes[operation] == RowType.UNKNOWN:
            perhaps[key] += 1
        elif answers.get(operation) == DONE:
            sure[key] += 1
    return sure, perhaps
