"""A report of a real cluster equals what its clients did."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from raftmq.pipeline.report import cluster_poll, event_reader, opened, rounds, rules, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq.blocking import BlockingClient
    from raftmq.pipeline.report import Report
    from tests.pipeline.nodes import Nodes

LATER_MS = 120_000
"""The report believes that it is this much later: minutes are closed at once."""


def finish(report: "Report", mq: "BlockingClient") -> None:
    """Read all there is, and close all minutes up to now and the next one."""
    while report.round().is_behind:
        pass
    look = cluster_poll.look_at(mq, has_standings=True)
    report.round(structs.replace(look, time=look.time + LATER_MS))


def of(rows: list[dict[str, Any]], topic: str, group: str) -> list[dict[str, Any]]:
    return [row for row in rows if (row["topic"], row["group"]) == (topic, group)]


def total(rows: list[dict[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows)


def lags(mq: "BlockingClient", topic: str) -> dict[str, tuple[int, int]]:
    """The broker's figures: lag, and messages that were never handed out, by group."""
    found: dict[str, tuple[int, int]] = {}
    for each in mq.admin.backlogs(topic=topic):
        lag, fresh = found.get(each.group, (0, 0))
        found[each.group] = (lag + each.lag, fresh + each.fresh)
    return found


def consume(mq: "BlockingClient", topic: str, group: str, *, count: int) -> Counter[str]:
    """Pop `count` messages: some are nacked, some rejected, some given back once. The result counts
    them by column of the report."""
    did: Counter[str] = Counter()
    returned: set[str] = set()
    with mq.consumer(topic, group=group, mode="pop", prefetch=0) as consumer:
        while did["handed_out"] < count:
            batch = list(consumer.pop(count - did["handed_out"]))
            did["handed_out"] += len(batch)
            failed = [each for each in batch if each.offset % 9 == 3]
            bad = [each for each in batch if each.offset % 30 == 5]
            unbegun = [each for each in batch if each.offset % 30 == 7 and each.id not in returned]
            returned |= {each.id for each in unbegun}
            others = {each.id for each in (*failed, *bad, *unbegun)}
            good = [each for each in batch if each.id not in others]
            # Two attempts are what the group allows.
            last = sum(each.attempt == 2 for each in failed)
            consumer.nack(failed, 0)
            for message in bad:
                message.reject("bad")
            for message in unbegun:
                message.give_back()
            consumer.ack(good)
            did["acked"] += len(good)
            did["dead"] += len(bad) + last
            did["retries"] += len(failed) - last
            did["given_back"] += len(unbegun)
    return did


def make(mq: "BlockingClient", topic: str, group: str) -> None:
    mq.admin.create_consumer_group(group, schedule=[0.0], attempts_max=2)
    mq.admin.attach(topic, group)


def produce(mq: "BlockingClient", topic: str, count: int) -> None:
    with mq.producer(topic) as producer:
        producer.send_many(bodies=[b"x"] * count, keys=[f"k{n}" for n in range(count)])


def test_numbers_equal_what_clients_did(mq: "BlockingClient", topic: str, tmp_path: Path) -> None:
    billing, audit = f"{topic}-billing", f"{topic}-audit"
    make(mq, topic, billing)
    make(mq, topic, audit)
    mq.admin.attach(topic, f"{topic}-idle")
    produce(mq, topic, 200)
    mq.admin.attach(topic, f"{topic}-nobody", start="latest")
    with mq.consumer(topic, group=f"{topic}-late", mode="pop", start="latest") as consumer:
        # It begins at the end: where that is stands in the log when this has been asked.
        consumer.pop(1, wait=0)
    with opened(tmp_path, mq, reader=event_reader.here(mq), rules=rules.read()) as report:
        report.round()
        did = {billing: consume(mq, topic, billing, count=150)}
        did[audit] = consume(mq, topic, audit, count=80)
        letters = mq.admin.dead_letters(topic, billing)
        redriven = mq.admin.redrive(letters[:2])
        purged = mq.admin.purge(letters[2:3])
        mq.admin.reset_group(audit, topic, to="latest")
        produce(mq, topic, 100)
        with mq.consumer(topic, group=f"{topic}-pulls", start="earliest") as puller:
            assert puller.fetch(10, wait=60)
            puller.commit()
        finish(report, mq)
    rows = tables.read(tmp_path, "report_minute")
    assert total(of(rows, topic, ""), "stored") == 300
    # Each call of `produce` opens one, and both may be in one minute.
    assert total(of(rows, topic, ""), "producers") == 2
    assert {row["producers"] for row in of(rows, topic, billing)} == {None}
    for group, counts in did.items():
        for name in ("acked", "retries", "dead"):
            assert total(of(rows, topic, group), name) == counts[name], (group, name)
    # Leaders may hand out more than was asked for; the client gives that back by itself.
    ended = ("acked", "retries", "dead", "given_back")
    in_hand = sum(each.leased for each in mq.admin.backlogs(topic=topic, group=billing))
    handed_out = total(of(rows, topic, billing), "handed_out")
    assert handed_out == sum(total(of(rows, topic, billing), name) for name in ended) + in_hand
    assert handed_out >= did[billing]["handed_out"]
    assert total(of(rows, topic, billing), "redriven") == redriven
    assert total(of(rows, topic, billing), "purged") == purged
    assert redriven * purged
    assert total(of(rows, topic, audit), "skipped") > 0
    last = {group: of(rows, topic, group)[-1] for group in lags(mq, topic)}
    assert {g: (row["lag"], row["fresh"]) for g, row in last.items()} == lags(mq, topic)
    left = {name: last[f"{topic}-{name}"]["lag"] for name in ("late", "idle", "nobody")}
    assert left == {"late": 100, "idle": 300, "nobody": 100}
    assert last[f"{topic}-idle"]["oldest_ms"] > 0
    pulls = of(rows, topic, f"{topic}-pulls")[-1]
    known = mq.admin.describe_group(f"{topic}-pulls").lag
    assert (pulls["origin"], pulls["lag"]) == ("snapshot", known)
    assert pulls["acked"] is None
    assert {row["consumers"] for row in of(rows, topic, billing)} >= {1}


def test_spark_finds_what_one_process_finds(
    mq: "BlockingClient", topic: str, spark: "SparkSession", nodes: "Nodes"
) -> None:
    mq.admin.attach(topic, "billing")
    produce(mq, topic, 50)
    look = cluster_poll.look_at(mq, has_standings=False)
    tasks = [
        event_reader.Task(number, first, end, b"", look.attachments)
        for number, (first, end) in look.ranges.items()
    ]
    found = event_reader.on_spark(spark, nodes.url)(tasks)
    assert sorted(found, key=lambda done: done.partition_group) == event_reader.here(mq)(tasks)
    assert sum(flow.stored for done in found for flow in done.facts.flows.values()) >= 50


class Killed(BaseException):
    """In place of `kill -9`."""


class Crashing:
    """Kills a report at one of its steps that leave something: before it, or after it."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        for name in ("save", "write", "send"):
            patch.setattr(rounds, name, self._wrapped(getattr(rounds, name)))

    def _wrapped(self, step: Callable[..., None]) -> Callable[..., None]:
        def wrapper(*args: Any) -> None:
            self._pass()
            step(*args)
            self._pass()

        return wrapper

    def _pass(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def test_killed_anywhere_it_publishes_the_same_and_each_alert_once(
    mq: "BlockingClient", topic: str, tmp_path: Path
) -> None:
    alerts = f"{topic}-alerts"
    mq.admin.create_topic(alerts, queues=1)
    mq.admin.attach(topic, "nobody")
    produce(mq, topic, 20)
    first = cluster_poll.look_at(mq, has_standings=False)
    # A minute with the rule broken, and one in which it holds.
    looks = [structs.replace(first, time=first.time + n * 60_000) for n in (0, 1, 2, 3)]
    rule = rules.Rule("came", "stored", threshold=0, topic=topic, group="")

    def run(folder: Path) -> None:
        reader = event_reader.here(mq)
        with opened(folder, mq, reader=reader, rules=[rule], topic=alerts) as report:
            for look in looks:
                report.round(look)

    def published(folder: Path) -> tuple[list[Any], list[Any]]:
        return tables.read(folder, "report_minute"), tables.read(folder, "alert")

    run(tmp_path / "whole")
    expected = published(tmp_path / "whole")
    assert [alert["state"] for alert in expected[1]] == ["open", "closed"]
    at, was_killed = 0, True
    while was_killed:
        at, folder = at + 1, tmp_path / f"killed-{at}"
        with pytest.MonkeyPatch.context() as patch:
            Crashing(patch, at)
            try:
                run(folder)
                was_killed = False
            except Killed:
                pass
        run(folder)
        assert published(folder) == expected, at
    with mq.consumer(alerts, start="earliest") as consumer:
        sent: list[dict[str, Any]] = []
        while batch := consumer.fetch(500, wait=0.5):
            sent += [json.loads(message.body) for message in batch]
    told = Counter((each["report"], each["number"]) for each in sent)
    assert set(told.values()) == {1}
    assert len({report for report, _ in told}) == at + 1 == len(told) // 2
    assert at > 12
