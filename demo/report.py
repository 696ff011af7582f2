"""The verdict: one line for each thing that was to be proven, and the figures beside it."""

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
"""What must hold for each consumer group."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was to be proven."""

    promise: str
    """What should be so."""
    group: str
    """The consumer group that saw it; empty: it is not about one."""
    violations: int
    """How often it is not so."""
    examples: list[str] = field(default_factory=list)
    """The first of those, in words."""

    @property
    def holds(self) -> bool:
        """True if it was never violated."""
        return self.violations == 0


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured. Rates are messages a second, the failover included."""

    messages: int
    """Sent."""
    keyless: int
    """Of those, without a key: no order is promised for them."""
    send_per_s: float
    """Receipts."""
    read_per_s: dict[str, float]
    """By consumer group."""
    frozen_with: int
    """Messages that the frozen consumer had in hand."""
    refused: int
    """Acknowledgements that came after the lease was over."""
    failover_seconds: float
    """The longest time without an ack in the queues whose leader was killed."""
    killed_node: int
    """Which node that was."""
    new_leader: int
    """Who took over its partition group."""
    ready_seconds: float
    """From nothing to a cluster with a leader for each partition group."""
    total_seconds: float
    """The whole demo."""
    memory_bytes_max: int
    """The most this process held: producer, readers and checker together."""


@dataclass(frozen=True, slots=True)
class Report:
    """How the demo went."""

    figures: Figures
    """What was measured."""
    checks: list[Check]
    """What was proven, or not."""

    @property
    def holds(self) -> bool:
        """True if every check holds."""
        return all(check.holds for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        checks = [{**asdict(check), "holds": check.holds} for check in self.checks]
        return {"verdict": self.holds, "figures": asdict(self.figures), "checks": checks}


def checks_of(ledger: Ledger, errors: list[str], witnesses: list[Witness]) -> list[Check]:
    """What the clients' observations prove; call `finish` of each witness before."""
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
