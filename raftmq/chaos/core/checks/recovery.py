"""The checks when a node starts from its disk, and when a node reads back records that it wrote.

| promise | what is compared |
|---|---|
| R6, R11 | the recovered term and vote with what was synced |
| L1 | the disk's bytes before and after a second recovery, on a copy, at times |
| L2 | the recovered log with what was synced: all of that is there |
| L4 | what was cut: never anything that was synced |
| L3 | records that are read back, byte for byte, with what was written |

A node whose disk was damaged by a fault may refuse to start, or start with fewer records and
abstain, and nothing else: the records that it starts with must be right all the same.

Every check counts its comparisons in `compared`: so a run shows which bugs it could have found.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from raftmq.chaos.core.disk import contents
from raftmq.chaos.core.host import Host
from raftmq.chaos.core.replica.machine import Machine
from raftmq.chaos.core.settings import Settings
from raftmq.checkers.servers.invariants import INVARIANTS
from raftmq.errors import CorruptRecord
from raftmq.log.faults import LogFault
from raftmq.log.record import Record
from raftmq.log.segment import INDEX_SUFFIX, Identity
from raftmq.log.store import LogSettings, LogStore, Recovered

from .broken import Broken

ALL_BYTES = 2**30

CHECKED = tuple(name for name in INVARIANTS if name[0] in "RL")
"""The promises that are compared here. Those about time, V1 to V6, end a run when they are due."""

AGAIN_EACH = 4
"""One start in this many is recovered a second time, on a copy of the disk."""


class Recovering:
    """The part of the checks that concerns disks. It is state."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.records: dict[tuple[int, int], Record] = {}
        """By (index, term): each record that was ever in a log."""
        self.committed: dict[int, Record] = {}
        """By index: the record that a leader committed."""
        self.digests: dict[int, int] = {}
        """By index: the machine's digest after it."""
        self.top = 0
        """The highest index that was committed."""
        self.compared = Counter(dict.fromkeys(CHECKED, 0))
        """By promise: comparisons that could have shown it broken."""
        self._starts = 0

    def recovered(
        self, node: Host, store: LogStore, recovered: Recovered, machine: Machine
    ) -> None:
        """A node opened its disk: check the recovered log, then count it as durable."""
        durable, state = node.durable, recovered.hard_state
        self.compared.update(("R6", "R11", "L2"))
        if recovered.abstains and not node.is_damaged:
            raise Broken("L2", f"node {node.id} cuts a log that nothing happened to")
        if state.term < durable.hard_state.term:
            raise Broken("R6", f"node {node.id} had synced term {durable.hard_state.term}: {state}")
        is_same = state.term == durable.hard_state.term
        if is_same and durable.hard_state.vote not in (0, state.vote):
            raise Broken("R11", f"node {node.id} forgot its vote {durable.hard_state}: {state}")
        records = self._records(node, recovered)
        # `returned` checks that none of these records is missing when the member votes again.
        if recovered.abstains:
            node.vouched_for += durable.records
        else:
            self._check_floor(node, recovered, records, durable.floor())
        self.compared["R21"] += machine.applied > 0
        if machine.applied and self.digests.get(machine.applied) != machine.digest:
            raise Broken("R21", f"node {node.id} restored another state at {machine.applied}")
        base = recovered.start
        durable.restart(base.index, base.term, records)
        durable.hard_state = state
        self._starts += 1
        # A second recovery of a member that abstains adds a mark, so the bytes would differ.
        if self._starts % AGAIN_EACH == 0 and not recovered.abstains:
            self._check_again(node)

    def _records(self, node: Host, recovered: Recovered) -> list[Record]:
        """The recovered log, from the records that the simulation knows."""
        records: list[Record] = []
        runs = [*recovered.terms, (recovered.last_index + 1, 0)]
        for (first, term), (end, _) in pairwise(runs):
            for index in range(first, end):
                record = self.records.get((index, term))
                if record is None:
                    raise Broken(
                        "L4", f"node {node.id} recovered a record {index} that no node wrote"
                    )
                records.append(record)
        self.compared["L4"] += len(records)
        if records and records[-1].crc != recovered.end.crc:
            raise Broken("L4", f"node {node.id} recovered another record {records[-1].index}")
        return records

    def _check_floor(
        self, node: Host, recovered: Recovered, records: Sequence[Record], floor: int
    ) -> None:
        if floor > recovered.end.index:
            raise Broken("L2", f"node {node.id} had synced {floor}: {recovered.end}")
        synced = node.durable.at(floor)
        place = floor - recovered.first_index
        is_kept = 0 <= place < len(records)
        if synced is not None and is_kept and records[place].crc != synced.crc:
            raise Broken("L2", f"node {node.id} has another record {floor} than it had synced")

    def _check_again(self, node: Host) -> None:
        copy = node.disk.copy()
        before = contents(copy)
        settings = LogSettings(segment_bytes=self._settings.segment_bytes)
        identity, mends = Identity("core", node.id, 0), self._settings.mends
        LogStore.open(copy, "log", settings, identity, mends=mends)
        after = contents(copy)
        self.compared["L1"] += 1
        if before != after:
            changed = [path for path in before | after if before.get(path) != after.get(path)]
            raise Broken("L1", f"node {node.id}: a second recovery changed {changed}")

    def returned(self, node: Host) -> None:
        """A member whose log was cut votes again: it must hold each committed record that it may
        have acknowledged, or an election by its vote could lose the record."""
        for record in node.vouched_for:
            known = self.committed.get(record.index)
            if known is not None and known.crc == record.crc and not node.durable.holds(record):
                raise Broken(
                    "R13", f"node {node.id} counts again without {record.index}, it had it"
                )
        node.vouched_for.clear()

    def is_sound(self, node: Host) -> bool:
        """Whether everything on a node's disk checks out."""
        settings = LogSettings(segment_bytes=self._settings.segment_bytes)
        copy = node.disk.copy()
        # Without its index each segment is read as a whole, as after the loss of an index.
        for path in copy.paths():
            if path.endswith(INDEX_SUFFIX):
                copy.remove(path)
        try:
            store, _ = LogStore.open(copy, "log", settings, Identity("core", node.id, 0))
            store.read(store.first_index, store.last_index + 1, ALL_BYTES)
        except (LogFault, OSError, CorruptRecord):
            return False
        return True

    def refused(self, node: Host, fault: BaseException) -> None:
        """A node does not start from its disk."""
        if not node.is_damaged:
            raise Broken("L2", f"node {node.id} refuses a disk that nothing happened to: {fault}")

    def read_back(self, node: Host, records: Sequence[Record]) -> None:
        """Records were read from disk, to be sent or applied."""
        self.compared.update({"L3": len(records), "L4": len(records)})
        for record in records:
            known = self.records.get((record.index, record.term))
            if known is None or known.encoded != record.encoded:
                raise Broken("L4", f"node {node.id} serves a damaged {record.index}")
