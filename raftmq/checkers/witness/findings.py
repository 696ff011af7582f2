"""The anomalies that a witness has found."""

from collections import Counter

from raftmq.checkers.verdict import EXAMPLES_MAX, Anomaly


class Findings:
    """All are counted, and `EXAMPLES_MAX` of each name are kept."""

    def __init__(self) -> None:
        self.anomalies: list[Anomaly] = []
        """The examples."""
        self.counts: Counter[str] = Counter()
        """By name."""

    def add(self, name: str, fact: str) -> None:
        """Note an anomaly of the dictionary."""
        self.counts[name] += 1
        if self.counts[name] <= EXAMPLES_MAX:
            self.anomalies.append(Anomaly(name, fact))
