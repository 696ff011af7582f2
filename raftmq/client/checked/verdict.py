"""The result of `check`, and the exception if a promise was broken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from raftmq.checkers import Report, Verdict, explain
from raftmq.checkers.history import History
from raftmq.errors import Inconsistent


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of `check`: no promise was broken."""

    verdict: Literal["valid", "unknown"]
    """`valid`: all promises held, and the calls could have shown otherwise. `unknown`: too few
    calls were made to tell, as when nothing was sent."""
    reasons: tuple[str, ...]
    """Why the verdict is unknown."""
    counts: Mapping[str, int]
    """Numbers of judged messages: `acknowledged`, `delivered`, `handed out`, `acked` and so on;
    those whose names begin with `not judged` or `completeness undecided` say what is left open.
    For an embedded queue, a message that several groups popped counts for each, and reading back
    counts as delivering."""

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {count}" for name, count in self.counts.items() if count)
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.verdict}{why}" + (f": {figures}" if figures else "")


def raise_broken(found: Sequence[tuple[Report, History]], what: str) -> None:
    """Raise `Inconsistent` if a report is invalid; `what` broke the promise."""
    broken = [(report, history) for report, history in found if report.verdict is Verdict.INVALID]
    if broken:
        text = "\n\n".join(explain(report, history) for report, history in broken)
        names = sorted({a.name for report, _ in broken for a in report.anomalies})
        raise Inconsistent(f"{what} broke a promise:\n{text}", anomalies=tuple(names))
