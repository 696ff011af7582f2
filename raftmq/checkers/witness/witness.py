"""The witness of one client: sends and reads (`queues`), leases (`leases`), and the report.

>>> witness = Witness()
>>> witness.names[7] = "orders/0"
>>> sending = witness.queues.begin(1, 7, [Content(11, b"a"), Content(22, b"b")])
>>> witness.queues.stored(sending, 0)
>>> reader = Reader(2, is_gapless=True, is_steady=True)
>>> witness.queues.read(reader, Run(7, 0, [11, 23], 0, (5, 0, 0), None, 0))
>>> report = witness.report()
>>> report.verdict.value, sorted(report.names())
('invalid', ['inconsistent-offset'])
"""

from raftmq.checkers.verdict import Report, judged

from .findings import Findings
from .leases import Leases
from .queues import Content, Queues, Reader, Run

__all__ = ["Content", "Queues", "Reader", "Run", "Witness"]

CHECKER = "witness"


class Witness:
    """The calls of one client, judged as they come."""

    def __init__(self) -> None:
        self._processes = 0
        self.found = Findings()
        """The anomalies."""
        self.names: dict[int, str] = {}
        """By queue number: `topic/queue`."""
        self.queues = Queues(self.found, self.names)
        """Sends and reads."""
        self.leases = Leases()
        """Messages popped."""
        self.passed: dict[str, int] = {}
        """Messages that are not judged, by the reason."""

    def process(self) -> int:
        """A number for a producer or reader."""
        self._processes += 1
        return self._processes

    def pass_over(self, why: str, count: int = 1) -> None:
        """Count messages that are not judged."""
        self.passed[why] = self.passed.get(why, 0) + count

    def report(self) -> Report:
        """The verdict on everything so far; `counts` also has the messages that are not judged."""
        queues, leases = self.queues, self.leases
        counts = {
            **self.found.counts,
            "acknowledged": queues.acknowledged,
            "delivered": queues.delivered,
            "found as sent": queues.confirmed,
            "handed out": leases.handed,
            "acked": leases.acked,
            **{f"not judged: {why}": count for why, count in sorted(self.passed.items())},
            "not judged: forgotten before they were read": queues.unread.forgotten,
            "not judged again: places forgotten": queues.seen.forgotten,
            "not judged again: leases forgotten": leases.held.forgotten + leases.done.forgotten,
            "not judged: hand-outs without a record": leases.unclear,
        }
        compared = queues.confirmed + leases.handed
        return judged(CHECKER, self.found.anomalies, counts, compared=compared)
