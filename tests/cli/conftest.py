"""Fixtures of the command line's tests."""

import pytest

from tests.cli.command_line import CommandLine


@pytest.fixture
def raftmq(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs commands in this process."""
    return CommandLine(capsys)
