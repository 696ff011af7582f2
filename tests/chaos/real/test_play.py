"""Short runs on real processes: many kinds of faults at once, and nothing is lost."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import raftmq
from raftmq.chaos.faults import FAULTS, Event, Schedule, World
from raftmq.chaos.outcome import Outcome
from raftmq.chaos.real import play, run
from raftmq.chaos.real.clients.workload import Workload
from raftmq.chaos.real.disk.disks import why_no_overlay
from raftmq.chaos.real.run_state import RunState
from raftmq.chaos.report.timeline import DEAD, UP, spans
from raftmq.checkers import Verdict
from raftmq.checkers.history import Recorder
from raftmq.testing import cluster

pytestmark = pytest.mark.process


def schedule(seconds: float, *events: tuple[float, str, tuple[int, ...], float, float]) -> Schedule:
    """Of (second, fault, nodes, how long, level)."""
    made = [
        Event(int(at * 1000), fault, nodes, int(lasts * 1000), level)
        for at, fault, nodes, lasts, level in events
    ]
    return Schedule(1, seconds, tuple(sorted(made)))


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that name a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found += [line] if str(folder) in line and int(entry.name) != os.getpid() else []
    return found


def check(outcome: Outcome, *, faults: int) -> None:
    """The outcome is valid, and at least `faults` kinds struck; a busy machine may miss one."""
    assert outcome.verdict is Verdict.VALID, str(outcome)
    assert not outcome.vacuous
    assert outcome.world is World.REAL
    struck = {name for name in FAULTS if outcome.counts.get(f"fault {name}")}
    assert len(struck) >= faults, f"only {struck}: {dict(outcome.counts)}"
    assert outcome.counts["total-queue: acknowledged"] == outcome.counts["acked"] > 1_000
    assert outcome.counts["log: deliveries"] >= 3 * outcome.counts["acked"]
    assert outcome.timeline
    assert outcome.coverage


def test_faults_of_network_processes_clocks_and_clients_lose_nothing(tmp_path: Path) -> None:
    outcome = run(
        schedule(
            9,
            (0.2, "duplicate", (1, 2, 3), 4, 0.3),
            (0.3, "reorder", (1, 2, 3), 4, 0.3),
            (0.4, "step-clock", (1,), 0, 3000),
            (0.5, "skew", (2,), 3, -60_000),
            (0.6, "drift", (3,), 3, 0.1),
            (0.8, "isolate-leader", (), 1, 0),
            (1.0, "client-churn", (), 0, 0),
            (1.2, "client-crash", (), 0, 0),
            (2.0, "kill", (1,), 0, 0),
            (2.5, "stale-replay", (2, 3), 0, 0),
            (2.7, "client-resend", (), 0, 0),
            (3.0, "mute", (2,), 1, 0),
            (3.5, "pause", (3,), 1, 0),
            (4.0, "cut-in-frame", (2, 3), 0, 0),
            (4.2, "flap", (2, 3), 1, 100),
            (5.5, "kill-majority", (1, 3), 0, 0),
        ),
        folder=tmp_path,
        is_liveness=True,
        is_overlay_wanted=False,
    )
    check(outcome, faults=15)
    assert outcome.counts["elections"] > 4
    assert outcome.counts["longest to progress without one node, ms"] > 0
    assert processes_in(tmp_path) == []
    shown = spans(outcome.timeline, int(outcome.simulated_seconds * 1000))
    for node in (1, 3):
        lives = [one.role for one in sorted(shown, key=lambda s: s.start_ms) if one.node == node]
        # A node that is down while the rest must make progress without it is dead twice.
        later = [life for life in lives[lives.index(DEAD) :] if life != DEAD]
        assert later[0] == UP, f"node {node} was killed and came back"
        assert lives[-1] in ("leader", "follower")


def test_faults_of_connections_under_tls_lose_nothing(tmp_path: Path) -> None:
    outcome = run(
        schedule(
            9,
            (0.3, "duplicate", (1, 2, 3), 3, 0.3),
            (0.8, "isolate-leader", (), 1, 0),
            (2.0, "kill", (1,), 0, 0),
            (2.6, "cut-in-frame", (2, 3), 0, 0),
            (3.0, "client-crash", (), 0, 0),
            (3.4, "stale-replay", (2, 3), 0, 0),
        ),
        folder=tmp_path,
        is_overlay_wanted=False,
        is_secure=True,
    )
    check(outcome, faults=5)
    assert outcome.counts["elections"] > 0


def test_certificates_that_expire_and_an_authority_that_gives_way_lose_nothing(
    tmp_path: Path,
) -> None:
    outcome = run(
        schedule(
            36,
            (0.3, "certificate-expiry", (2,), 0, 0),
            (3.0, "kill", (1,), 0, 0),
            (11.0, "ca-rotation", (), 0, 0),
        ),
        folder=tmp_path,
        is_overlay_wanted=False,
        is_secure=True,
    )
    check(outcome, faults=2)
    assert outcome.counts["authorities replaced"] == 1


@pytest.mark.campaign
def test_no_node_of_a_cluster_stays_dead_that_has_no_majority_without_it(tmp_path: Path) -> None:
    faults = schedule(3, (0.5, "kill", (1,), 0, 0))
    outcome = run(faults, folder=tmp_path, nodes=2, is_liveness=True, is_overlay_wanted=False)
    check(outcome, faults=1)
    assert "ms to progress without one node" not in outcome.counts


@pytest.mark.skipif(bool(why_no_overlay()), reason=why_no_overlay())
def test_faults_of_disks_lose_nothing(tmp_path: Path) -> None:
    outcome = run(
        schedule(
            9,
            (0.4, "slow-disk", (3,), 1, 10),
            (0.5, "short-write", (2,), 0, 0),
            (0.6, "sync-error", (1,), 0, 0),
            (2.0, "full-disk", (3,), 1, 1000),
            (3.5, "power-loss-all", (1, 2, 3), 0, 0),
        ),
        folder=tmp_path,
    )
    check(outcome, faults=5)
    assert outcome.counts["disk faults that hit: fsync"] == 1
    assert outcome.counts["nodes that ended by themselves"] >= 1
    assert processes_in(tmp_path) == []
    assert not os.path.ismount(tmp_path / "disks")


def test_registers_stay_linearizable_under_faults(tmp_path: Path) -> None:
    outcome = run(
        schedule(
            10,
            (0.5, "isolate-leader", (), 1, 0),
            (2.0, "client-crash", (), 0, 0),
            (2.5, "kill-leader", (), 0, 0),
            (3.0, "client-hang", (), 1, 0),
            (4.5, "client-churn", (), 0, 0),
            (5.0, "pause", (2,), 1, 0),
        ),
        "register",
        folder=tmp_path,
        is_overlay_wanted=False,
    )
    assert outcome.verdict is Verdict.VALID, str(outcome)
    assert outcome.history is not None
    assert set(outcome.history.functions) == {"read", "write"}
    assert outcome.counts["acked"] > 100


@pytest.mark.campaign
def test_node_with_a_flipped_bit_is_replaced(tmp_path: Path) -> None:
    outcome = run(
        schedule(6, (1.0, "bit-flip", (2,), 0, 0)), folder=tmp_path, is_overlay_wanted=False
    )
    check(outcome, faults=1)
    assert outcome.counts["replaced nodes"] == 1


@pytest.mark.parametrize(
    ("acked", "polled", "struck", "why"),
    [
        (99, 500, {"kill": 1}, "only 99 messages"),
        (500, 0, {"kill": 1}, "no consumer group"),
        (500, 500, {}, "no fault could be made"),
        (500, 500, {"kill": 1}, ""),
    ],
)
def test_run_that_could_show_nothing_is_vacuous(
    acked: int, polled: int, struck: dict[str, int], why: str
) -> None:
    work = SimpleNamespace(acked=acked, polled=polled)
    parts = SimpleNamespace(workload=work, struck=struck, counts={}, compared={"R21": 1})
    state: RunState = parts  # type: ignore[assignment]
    found = play._vacuous(state, schedule(1, (0.1, "kill", (1,), 0, 0)))
    assert found.startswith(why)
    assert bool(found) == bool(why)
    parts.compared["R21"] = 0
    assert play._vacuous(state, schedule(1)), "states that were compared with nothing"


@pytest.mark.parametrize(("polls", "count"), [(5, "polled"), (5, "read_back"), (0, "polled")])
def test_draining_lasts_as_long_as_readers_are_handed_messages(polls: int, count: str) -> None:
    """One message a minute is slow; none for 90 s is the end."""
    complaints: list[str] = []
    work = SimpleNamespace(polled=7, read_back=0, is_read=False)

    async def set_ends() -> None:
        pass

    async def read_all() -> None:
        for _ in range(polls):
            await trio.sleep(60)
            setattr(work, count, getattr(work, count) + 1)
        if not polls:
            await trio.sleep_forever()
        work.is_read = True

    async def drain() -> float:
        async with trio.open_nursery() as readers:
            is_whole = await play._drain(state, readers)
        assert is_whole is bool(polls)
        return trio.current_time() - began

    work.set_ends, work.read_all = set_ends, read_all
    parts = SimpleNamespace(workload=work, complain=lambda name, text: complaints.append(name))
    state: RunState = parts  # type: ignore[assignment]
    clock = MockClock(autojump_threshold=0)
    began = clock.current_time()
    assert trio.run(drain, clock=clock) == (300 if polls else 90)
    assert complaints == ([] if polls else ["V3"])


def test_messages_of_the_last_reader_are_counted_apart_from_those_of_groups() -> None:
    workload = Workload(str, Recorder(), seed=1, complain=lambda name, text: None)
    workload._ends = {0: 2}
    messages = [SimpleNamespace(queue=0, offset=n, body=b"%d" % n) for n in range(2)]
    consumer: Any = SimpleNamespace(position={0: 0})

    async def fetch(count: int, *, wait: float) -> list[SimpleNamespace]:
        consumer.position[0] = len(messages)
        return messages

    consumer.fetch = fetch
    trio.run(partial(workload._poll_until_end, 1, consumer, group=""))
    assert (workload.polled, workload.read_back) == (0, 2)


def test_workload_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="log, queue, register"):
        run(schedule(1), "opera")


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.mark.anyio
async def test_node_armed_by_its_environment_ends_at_that_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster() as nodes, raftmq.connect(nodes.url) as mq:
        await mq.admin.create_topic("t", queues=3)
        nodes.kill(1)
        monkeypatch.setenv("RAFTMQ_FAILPOINT", "before-datasync-segment:2")
        nodes.start(1)
        assert await nodes.wait_exit(1) == -9
        monkeypatch.setenv("RAFTMQ_FAILPOINT", "nowhere")
        nodes.start(1)
        assert await nodes.wait_exit(1) == 1
        assert "there is no failpoint 'nowhere'" in nodes.log(1)
        monkeypatch.delenv("RAFTMQ_FAILPOINT")
        await nodes.restart(1)
