"""The log of a node tells of its certificate, of failed logins and of denied requests."""

import time
from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

from raftmq.cli.node import serve
from raftmq.cli.node.certificates import DAY_SECONDS
from raftmq.cli.node.log_lines import LogLines

Change = Mapping[str, Any]
"""Names of `FakeNode` → what they are from a look on."""


class FakeNode:
    """A node, its contexts and its gate, which are looked at once an hour."""

    def __init__(self, days: float, changes: Mapping[int, Change]) -> None:
        self.ends_ms = int((time.time() + days * DAY_SECONDS) * 1000)
        self.doubt = self.problem = ""
        self.changed: set[str] = set()
        self.count = self.denied = self.trusts = 0
        self.last = "alice from 10.0.0.9"
        self.last_denied = "bob: write of topic bills"
        self.looks = 0
        self.lines: list[tuple[int, str, str, str]] = []
        """Look, level, event and the first fact of each line."""
        self._changes = changes

    @property
    def gate(self) -> "FakeNode":
        return self

    @property
    def failures(self) -> "FakeNode":
        return self

    def reload(self) -> set[str]:
        self.looks += 1
        self.changed = set()
        vars(self).update(self._changes.get(self.looks, {}))
        return self.changed

    def trust_changed(self) -> None:
        self.trusts += 1

    def note(self, level: str, event: str, facts: Mapping[str, Any]) -> None:
        self.lines.append((self.looks, level, event, str(next(iter(facts.values())))))


class Lines(LogLines):
    """Lines that a fake node keeps."""

    def __init__(self, node: FakeNode) -> None:
        super().__init__(1, is_json=False)
        self._to = node

    def _write(self, level: str, event: str, facts: dict[str, object]) -> None:
        self._to.note(level, event, facts)


def played(
    monkeypatch: pytest.MonkeyPatch, days: float, hours: int, changes: Mapping[int, Change] = {}
) -> FakeNode:
    """A node after some hours, whose certificate ends in `days` days."""
    monkeypatch.setattr(serve, "RENEW_SECONDS", 3600.0)
    node: Any = FakeNode(days, changes)

    async def run() -> None:
        with trio.move_on_after((hours + 0.5) * 3600):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve._renew_certificates, node, node, Lines(node))

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    found: FakeNode = node
    return found


def test_a_certificate_that_ends_soon_is_told_once_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    told = played(monkeypatch, days=10.5, hours=60).lines
    assert [line[:3] for line in told] == [(look, "warning", "certificate") for look in (1, 25, 49)]
    assert told[0][3].startswith("it ends in 10 days")


def test_one_that_ends_later_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert played(monkeypatch, days=40, hours=60).lines == []


def test_a_change_is_told_and_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    short = int((time.time() + 2.5 * DAY_SECONDS) * 1000)
    change = {"changed": {"cert"}, "ends_ms": short, "doubt": "it names another host"}
    node = played(monkeypatch, days=40, hours=27, changes={2: change})
    assert [line[:3] for line in node.lines] == [
        (2, "info", "took up certificates"),
        (2, "warning", "certificate"),
        (2, "warning", "certificate"),
        (26, "warning", "certificate"),
        (26, "warning", "certificate"),
    ]
    assert node.lines[1][3].startswith("it ends in 2 days")
    assert node.lines[2][3] == "it names another host"
    assert node.trusts == 0


@pytest.mark.parametrize("file", ["ca", "crl"])
def test_connections_are_judged_again_by_new_trust(
    monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    assert played(monkeypatch, days=40, hours=3, changes={2: {"changed": {file}}}).trusts == 1


def test_each_problem_and_each_failure_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[int, Change] = {
        2: {"problem": "node-1.pem: no certificate", "count": 3},
        4: {"problem": ""},
        5: {"problem": "node-1.pem: no certificate", "denied": 2, "count": 4},
    }
    assert played(monkeypatch, days=40, hours=8, changes=changes).lines == [
        (2, "error", "certificates not taken up", "node-1.pem: no certificate"),
        (2, "error", "logins failed", "3"),
        (5, "error", "certificates not taken up", "node-1.pem: no certificate"),
        (5, "error", "logins failed", "1"),
        (5, "error", "requests denied", "2"),
    ]
