"""`raftmq produce` with unstored messages: the numbers, the error and the exit code agree."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

import raftmq as package
from raftmq.client import Client, connect
from raftmq.wire.frame import Frame
from raftmq.wire.messages import FrameKind
from tests.cli.command_line import CommandLine
from tests.client.fake_cluster import URL, FakeCluster, FakeNode, Fate

Connect = Callable[..., object]


def _cluster_with(*fates: Fate) -> Connect:
    """A cluster with these fates, batch by batch; the last fate holds for all later batches."""
    left = list(fates)

    def fate(_node: FakeNode, frame: Frame) -> Fate:
        if frame.kind != FrameKind.PRODUCE:
            return Fate.DONE
        return left.pop(0) if len(left) > 1 else left[0]

    @asynccontextmanager
    async def connected(_url: str, *, timeout: float, wait_refused: float) -> AsyncIterator[Client]:
        async with anyio.create_task_group() as tasks:
            cluster = FakeCluster(tasks)
            cluster.create_topic(queues=2)
            cluster.fate = fate
            async with connect(URL, world=cluster, timeout=timeout, wait_refused=0.0) as mq:
                yield mq
            tasks.cancel_scope.cancel()

    return connected


@pytest.mark.parametrize(
    ("fates", "command", "code", "said"),
    [
        (
            [Fate.UNAVAILABLE],
            "a b -q 0",
            3,
            ["0 messages stored", "2 messages not stored", "error: 2 of 2 messages not stored; "],
        ),
        (
            [Fate.IGNORED],
            "a b -q 0",
            1,
            ["0 messages stored", "2 messages sent and not known", "2 of 2 messages not known to"],
        ),
    ],
)
def test_numbers_error_and_exit_code_agree(
    monkeypatch: pytest.MonkeyPatch,
    raftmq: CommandLine,
    fates: list[Fate],
    command: str,
    code: int,
    said: list[str],
) -> None:
    monkeypatch.setitem(vars(package), "connect", _cluster_with(*fates))
    ended = raftmq("produce", "orders", *command.split(), "--timeout", "500ms")
    assert ended.code == code, ended.stderr
    for words in said:
        assert words in ended.stderr
    is_in_doubt = Fate.IGNORED in fates
    assert ("not known to be stored" in ended.stderr) == is_in_doubt
    assert ("not stored" in ended.stderr) != is_in_doubt
    assert "fix:" in ended.stderr


@pytest.mark.parametrize("fates", [[Fate.DONE, Fate.UNAVAILABLE], [Fate.UNAVAILABLE]])
def test_summary_counts_each_message_once_and_the_error_has_its_numbers(
    monkeypatch: pytest.MonkeyPatch, raftmq: CommandLine, fates: list[Fate]
) -> None:
    monkeypatch.setitem(vars(package), "connect", _cluster_with(*fates))
    command = ("produce", "orders", "--count", "3000", "-q", "0", "--size", "10k")
    ended = raftmq(*command, "--timeout", "500ms")
    # Until then the error counted the first chunk alone, and the summary had the rest in doubt.
    lines = re.findall(r"^([\d,]+) messages? (stored|not|sent)", ended.stderr, re.MULTILINE)
    counts = {what: int(number.replace(",", "")) for number, what in lines}
    total = f"{sum(counts.values()):,}"
    assert (counts["stored"] > 0) == (Fate.DONE in fates)
    in_doubt = counts.get("sent", 0)
    failed = f"{in_doubt:,} of {total} messages not known to be stored"
    if not in_doubt:
        failed = f"{counts['not']:,} of {total} messages not stored"
    assert f"error: {failed}; the first one: " in ended.stderr
    assert ended.code == (1 if in_doubt or counts["stored"] else 3)
