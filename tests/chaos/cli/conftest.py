"""Fixtures of the tests of `raftmq chaos`."""

import pytest

from raftmq.chaos import campaign
from tests.chaos.cli.simulated_world import play
from tests.cli.command_line import CommandLine


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def simulated_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """All worlds are the one that decides by the schedule."""
    monkeypatch.setattr(campaign, "_runner", lambda plan, mutant: play)
