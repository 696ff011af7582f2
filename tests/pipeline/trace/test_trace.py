"""A trace of a real cluster agrees with the cluster on each message."""

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import raftmq
from raftmq.client import Trace, format_id
from raftmq.client.admin.events import SETTLED, SWEEPING
from raftmq.pipeline import PipelineError
from raftmq.pipeline.trace import job
from raftmq.pipeline.trace.folder import EVENTS, TIMELINES, files, load
from raftmq.pipeline.trace.query import quantiles, show, slowest
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient
    from raftmq.client.blocking.popping import BlockingPoppedMessage

# Two runs of Spark beside three nodes: half a minute, or much more on a busy machine.
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def send(mq: "BlockingClient") -> None:
    with mq.producer("orders") as producer:
        producer.send_many(bodies=[b"x"] * 60, queue=0)
        producer.send_many(bodies=[b"y"] * 20, queue=1)


def live(mq: "BlockingClient", group: str, count: int) -> None:
    """Messages that are acked, nacked, given up, left to run out, and some that wait for long."""
    lazy = mq.consumer("orders", group=group, mode="pop", prefetch=0, invisible=1.0)
    busy = mq.consumer("orders", group=group, mode="pop", prefetch=0, invisible=60.0)
    with lazy, busy:
        assert lazy.pop(10, wait=30.0)
        left = count
        while left:
            for message in list(busy.pop(left, wait=30.0)):
                left -= settle(message)


def settle(message: "BlockingPoppedMessage") -> bool:
    """Whether it is over, at least for now."""
    kind = message.offset % 20
    if kind == 8 and message.attempt == 1:
        message.nack(delay=0.0)
        return False
    if kind == 7:
        message.reject("bad")
    elif kind == 19:
        message.nack(delay=600.0)
    else:
        message.ack()
    return True


class Traced(NamedTuple):
    """A trace, and the cluster's own answers."""

    folder: Path
    traces: dict[tuple[int, int], Trace]
    steps: list[list[job.Step]]


@pytest.fixture(scope="module")
def traced(spark: "SparkSession", nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Two runs, with a leader killed in between."""
    folder = tmp_path_factory.mktemp("trace") / "lives"
    with raftmq.blocking.connect(nodes.url) as mq:
        mq.admin.create_topic("orders", queues=2)
        for group in ("audit", "billing"):
            mq.admin.create_consumer_group(group, schedule=[0.2], attempts_max=4)
        send(mq)
        live(mq, "billing", 80)
        first = list(job.run(spark, folder, url=nodes.url))
        victim = nodes.leader(1)
        nodes.kill(victim)
        send(mq)
        live(mq, "billing", 80)
        live(mq, "audit", 160)
        second = list(job.run(spark, folder, url=nodes.url))
        nodes.restart(victim)
        info = mq.admin.describe_topic("orders")
        traces = {
            (queue.queue, offset): mq.trace(format_id(info.id << 16 | queue.queue, offset))
            for queue in info.queues
            for offset in range(queue.end)
        }
    return Traced(folder, traces, [first, second])


def timelines(folder: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """By group, queue and offset; each message once."""
    import pyarrow.dataset as ds

    paths = files(folder, TIMELINES, load(folder))
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in ds.dataset(paths, format="parquet").to_table().to_pylist():
        for offset in range(row["offset"], row["offset"] + row["count"]):
            key = row["group"], row["queue"], offset
            assert key not in found
            found[key] = row
    return found


def test_timelines_say_what_the_traces_of_all_messages_say(traced: Traced) -> None:
    found = timelines(traced.folder)
    outcomes = set()
    for (queue, offset), trace in traced.traces.items():
        assert trace.stored is not None
        for journey in trace.journeys:
            row = found.pop((journey.group, queue, offset))
            events = journey.events
            handed = [event for event in events if event.what == "handed out"]
            assert row["outcome"] == journey.state
            assert row["handed"] == len(handed)
            assert row["attempts"] == max(event.attempt for event in events)
            assert row["failed"] == sum(t.what in ("nacked", "expired") for t in events)
            assert row["wait_ms"] == handed[0].timestamp - trace.stored.timestamp
            if journey.state in SETTLED:
                assert row["total_ms"] == events[-1].timestamp - trace.stored.timestamp
            outcomes.add((journey.state, len(handed)))
    assert found == {}
    assert {state for state, _ in outcomes} == {"acked", "dead", "waiting"}
    assert max(handed for _, handed in outcomes) > 1


def test_story_of_a_message_is_its_trace(traced: Traced) -> None:
    for (queue, offset), trace in list(traced.traces.items())[::17]:
        rows = show(traced.folder, "orders", queue, offset)
        told = [(row["index"], row["what"]) for row in rows if row["what"] not in SWEEPING]
        assert sorted(told) == sorted((event.index, event.what) for event in trace.events)


def test_slowest_are_the_slowest_with_their_story(traced: Traced) -> None:
    found = slowest(traced.folder, by="wait", limit=3)
    rows = timelines(traced.folder).values()
    longest = max(row["wait_ms"] for row in rows)
    assert found[0].timeline["wait_ms"] == longest
    assert found[0].story[0]["what"] == "stored"
    assert {each["group"] for each in found[0].story[1:]} == {found[0].timeline["group"]}
    assert len(slowest(traced.folder, group="audit", limit=1000)) < len(
        slowest(traced.folder, limit=1000)
    )


def test_quantiles_count_messages_and_not_runs(spark: "SparkSession", traced: Traced) -> None:
    rows = quantiles(spark, traced.folder, at=(0.0, 1.0))
    lives = timelines(traced.folder)
    for row in rows:
        mine = [life for (group, _, _), life in lives.items() if group == row["group"]]
        assert row["messages"] == len(mine)
        waits = [life["wait_ms"] for life in mine]
        assert row["waits"] == [min(waits), max(waits)]
    assert [row["group"] for row in rows] == ["audit", "billing"]
    by_minute = quantiles(spark, traced.folder, unit="minute", group="billing")
    assert sum(row["messages"] for row in by_minute) == rows[1]["messages"]


def test_killed_run_leaves_files_that_do_not_count_and_is_done_again(
    spark: "SparkSession", nodes: Nodes, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = traced.folder
    state, before = load(folder), timelines(folder)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with raftmq.blocking.connect(nodes.url) as mq, mq.producer("orders") as producer:
        sent = producer.send(b"last", queue=1)
    assert sent.offset is not None
    steps = job.run(spark, folder, url=nodes.url)
    with monkeypatch.context() as patch:
        patch.setattr(job, "save", die)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
    assert load(folder) == state
    strays = list((folder / EVENTS).rglob(f"r{state.runs:05}-*.parquet"))
    assert strays
    assert not {str(path) for path in strays} & set(files(folder, EVENTS, state))
    assert timelines(folder) == before
    done = list(job.run(spark, folder, url=nodes.url))
    assert sum(step.events for step in done) >= 1
    assert [row["what"] for row in show(folder, "orders", 1, sent.offset)] == ["stored"]
    assert job.plan(folder, nodes.url).stale == []


def test_two_processes_do_not_write_into_one_folder(traced: Traced, nodes: Nodes) -> None:
    from raftmq.pipeline.trace.folder import writing

    with writing(traced.folder), pytest.raises(PipelineError, match="another process writes"):
        next(job.run(None, traced.folder, url=nodes.url))  # type: ignore[arg-type]


def test_records_that_retention_took_are_an_error_or_kept_as_lost(
    traced: Traced, nodes: Nodes
) -> None:
    path = traced.folder / "trace.json"
    said = path.read_text()
    state = json.loads(said)
    state["next"]["1"] = 1
    path.write_text(json.dumps(state))
    try:
        with pytest.raises(PipelineError, match="records 1 to 1 of the log of partition group 1"):
            job.plan(traced.folder, nodes.url)
        found = job.plan(traced.folder, nodes.url, skips_lost=True)
        assert [tuple(span) for span in found.lost] == [(1, 1, 2)]
    finally:
        path.write_text(said)


def test_plan_leaves_nothing_that_keeps_the_process_alive(tmp_path: Path, nodes: Nodes) -> None:
    before = set(threading.enumerate())
    assert job.plan(tmp_path / "lives", nodes.url).spans
    assert [each for each in threading.enumerate() if not each.daemon and each not in before] == []
