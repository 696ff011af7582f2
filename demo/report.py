"""The verdict: one line for each promise to be proven, and the figures."""

from dataclasses import asdict, dataclass, field
from typing import Any

from .checker import Kind, Ledger, Witness

PROMISES = {
    Kind.LOST: "each acked message was read",
    Kind.DUPLICATED: "none was read twice",
    Kind.ALTERED: "as sent: body, key, tag, props",
    Kind.INVENTED: "none was invented",
    Kind.REORDERED: "in order for each key",
    Kind.MISPLACED: "where its receipt says",
}
"""Promises for each consumer group."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise to be proven."""

    promise: str
    """The promise, as text."""
    group: str
    """The consumer group whose reads decide; empty: the promise concerns no group."""
    violations: int
    """Number of violations."""
    examples: list[str] = field(default_factory=list)
    """The first violations, in words."""

    @property
    def holds(self) -> bool:
        """Whether there is no violation."""
        return self.violations == 0


@dataclass(frozen=True, slots=True)
class Figures:
    """The measured figures. Rates are messages a second, the failover included."""

    messages: int
    """Number of sent messages."""
    keyless: int
    """Number of sent messages without a key: no order is promised for them."""
    send_per_s: float
    """Rate of receipts."""
    read_per_s: dict[str, float]
    """Consumer group → its rate."""
    frozen_with: int
    """Messages that the frozen consumer had in hand."""
    refused: int
    """Acknowledgements that came after the lease was over."""
    failover_seconds: float
    """The longest time without an ack in the queues whose leader was killed."""
    killed_node: int
    """The node that was killed."""
    new_leader: int
    """The next leader of the partition group."""
    ready_seconds: float
    """Time from the start to a cluster with a leader for each partition group."""
    total_seconds: float
    """Time of the whole demo."""
    memory_bytes_max: int
    """Peak memory of this process: producer, readers and checker together."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of the demo."""

    figures: Figures
    """The measured figures."""
    checks: list[Check]
    """The checks, held or violated."""

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for `--json`."""
        checks = [{**asdict(check), "holds": check.holds} for check in self.checks]
        return {"verdict": self.holds, "figures": asdict(self.figures), "checks": checks}


def checks_of(ledger: Ledger, errors: list[str], witnesses: list[Witness]) -> list[Check]:
    """The checks that the clients' observations decide; call `finish` of each witness before."""
    unacked = ledger.rows - ledger.acked
    checks = [Check("each message was sent and acked", "", unacked, errors)]
    for witness in witnesses:
        for kind, promise in PROMISES.items():
            if kind is Kind.REORDERED and not witness.is_ordered:
                continue
            found = witness.findings[kind]
            words = [f"{kind.value}: {example}" for example in found.examples]
            checks.append(Check(promise, witness.name, found.count, words))
    return checks
