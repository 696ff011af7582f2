"""The directory of real nodes: programs and nodes that die, and leases that pass on."""

import signal
import sys
from pathlib import Path

import anyio
import pytest

import raftmq
from raftmq.client import Lease
from raftmq.errors import Unavailable
from raftmq.testing import cluster
from raftmq.wire.directory import LEASE_SECONDS, Use
from tests.cli.command_line import process

pytestmark = [pytest.mark.process, pytest.mark.anyio]

SECONDS_MAX = 60.0
PROGRAM = """
import sys, time, raftmq
with raftmq.blocking.connect(sys.argv[1], name="biller") as mq:
    with mq.consumer("orders", mode="pop", group="billing") as c:
        while True:
            c.pop(wait=1.0)
"""


async def names(mq: raftmq.Client) -> dict[str, list[Use]]:
    found = await mq.directory.clients()
    return {client.name: client.uses for client in found.clients}


def is_held(lease: Lease) -> bool:
    """The property, which a type checker takes for a constant."""
    return lease.is_held


async def wait_whole(mq: raftmq.Client, *, started: int = 0) -> int:
    """Wait until all nodes are there, node 1 with a start after that one; returns its start."""
    with anyio.fail_after(SECONDS_MAX):
        while True:
            found = await mq.directory.nodes()
            starts = {node.node: node.started_ms for node in found.nodes if node.is_present}
            is_whole = found.whole_ms and len(starts) == 3 and all(starts.values())
            if is_whole and starts[1] > started:
                return starts[1]
            await anyio.sleep(0.5)


async def test_directory_of_real_nodes() -> None:
    async with cluster(3) as nodes, raftmq.connect(nodes.url, name="test") as mq:
        await mq.admin.create_topic("orders", queues=2)
        async with mq.producer("orders") as producer:
            command = [sys.executable, "-c", PROGRAM, nodes.url]
            async with await anyio.open_process(command) as program:
                wanted = {
                    "test": [Use("produce", "orders")],
                    "biller": [Use("pop", "orders", "billing")],
                }
                with anyio.fail_after(SECONDS_MAX):
                    while await names(mq) != wanted:
                        await anyio.sleep(0.5)
                of_group = await mq.directory.clients(group="billing")
                assert [client.name for client in of_group.clients] == ["biller"]
                program.kill()
            with anyio.fail_after(SECONDS_MAX):
                while "biller" in await names(mq):
                    await anyio.sleep(0.5)
            started = await wait_whole(mq)
            # A node that dies takes the directory with it, and no message.
            nodes.kill(1)
            for _ in range(20):
                await producer.send(b"meanwhile")
            nodes.start(1)
            await nodes.wait_serving(1)
            await wait_whole(mq, started=started)
        words = ["directory", "nodes", "--url", nodes.url]
        ended = await anyio.to_thread.run_sync(process, words)
        assert ended.stdout.count("present") + ended.stdout.count("leads") == 3, ended.stderr


async def test_lease_has_one_holder_and_passes_on() -> None:
    async with (
        cluster(3) as nodes,
        raftmq.connect(nodes.url) as first,
        raftmq.connect(nodes.url) as second,
    ):
        async with first.directory.lease("report", timeout=SECONDS_MAX) as lease:
            assert lease.is_held
            with pytest.raises(Unavailable, match="did not come within 3 s"):
                async with second.directory.lease("report", timeout=3.0):
                    pass
            held = (await first.directory.nodes()).leases
            with anyio.fail_after(SECONDS_MAX):
                while "report" not in {each.name for each in held}:
                    await anyio.sleep(0.5)
                    held = (await first.directory.nodes()).leases
        assert not is_held(lease)
        async with second.directory.lease("report", timeout=SECONDS_MAX) as other:
            assert other.is_held


async def test_command_runs_while_it_holds_a_lease() -> None:
    async with cluster(3) as nodes:
        url = ["--url", nodes.url]
        script = "import sys; print('done'); sys.exit(7)"
        words = ["directory", "hold", *url, "--wait", "60s", "job", "--", sys.executable, "-c"]
        ended = await anyio.to_thread.run_sync(process, [*words, script])
        assert (ended.code, ended.stdout) == (7, "done\n"), ended.stderr


async def test_lease_of_a_program_that_died_passes_on() -> None:
    program = """
import sys, time, raftmq
with raftmq.blocking.connect(sys.argv[1]) as mq:
    with mq.directory.lease("report"):
        print("held", flush=True)
        time.sleep(600)
"""
    async with cluster(3) as nodes, raftmq.connect(nodes.url) as mq:
        command = [sys.executable, "-c", program, nodes.url]
        async with await anyio.open_process(command) as holder:
            assert holder.stdout is not None
            with anyio.fail_after(SECONDS_MAX):
                assert (await holder.stdout.receive()).startswith(b"held")
            begin = anyio.current_time()
            holder.kill()
        async with mq.directory.lease("report", timeout=SECONDS_MAX):
            # It counted on the lease for a third of this, and may do so still.
            assert anyio.current_time() - begin > LEASE_SECONDS / 3 - 2


async def test_holder_that_cannot_reach_a_majority_loses_its_lease() -> None:
    async with (
        cluster(3) as nodes,
        raftmq.connect(nodes.url) as mq,
        mq.directory.lease("report", timeout=SECONDS_MAX) as lease,
    ):
        for node in (1, 2, 3):
            nodes.kill(node)
        with anyio.fail_after(SECONDS_MAX):
            await lease.wait_lost()
        assert not is_held(lease)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems kill no child with its parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_command_ends_when_hold_ends(tmp_path: Path, number: signal.Signals) -> None:
    """It would go on without the lease."""
    file = tmp_path / "alive"
    script = f"""
import signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
while True:
    open({str(file)!r}, "a").write("x")
    time.sleep(0.05)
"""
    async with cluster(3) as nodes:
        words = ["directory", "hold", "--url", nodes.url, "job", "--", sys.executable, "-c", script]
        async with await anyio.open_process([sys.executable, "-m", "raftmq", *words]) as hold:
            with anyio.fail_after(SECONDS_MAX):
                while not file.exists():
                    await anyio.sleep(0.1)
            hold.send_signal(number)
            with anyio.fail_after(SECONDS_MAX):
                await hold.wait()
        await anyio.sleep(0.3)
        size = file.stat().st_size
        await anyio.sleep(0.5)
        assert file.stat().st_size == size
        assert hold.returncode == (-number if number is signal.SIGKILL else 130)
