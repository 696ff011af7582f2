"""Each change once, in the order of commits, whatever is killed: from each kind of database."""

import subprocess
import sys
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.cdc import capture
from tests.pipeline.cdc.shops import (
    Shop,
    assert_in_order,
    capture_all,
    contents,
    fold,
    opened,
    rows_of,
)
from tests.pipeline.nodes import Nodes

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient


@pytest.fixture
def changes(request: pytest.FixtureRequest) -> str:
    """The name of a topic that is not there yet."""
    return "c-" + str(request.node.name)[5:].replace("[", "-").replace("]", "")


def check(mq: "BlockingClient", shop: Shop, topic: str) -> None:
    """The topic makes the table, and is in order."""
    found = contents(mq, topic)
    assert_in_order(found)
    rows = rows_of(shop, topic)
    assert fold(found) == rows
    # By a query of the test's own, and not as the source reads it.
    asked = shop.execute("SELECT id, name FROM item").fetchall()
    assert {row["id"]: row["name"] for row in rows} == dict(map(tuple, asked))
    assert len(rows) == len(asked)


@pytest.mark.parametrize("has_words", [False, True], ids=["numbers", "words"])
def test_random_transactions_come_in_the_order_of_commits(
    mq: "BlockingClient", shop: Shop, changes: str, *, has_words: bool
) -> None:
    shop.create(has_words=has_words)
    random = Random(7)
    shop.write(random, 20)
    sent = capture_all(mq, shop, changes)
    for turn in range(4):
        shop.write(random, 30)
        sent += capture_all(mq, shop, changes, snapshot=turn == 2)
        check(mq, shop, changes)
    found = contents(mq, changes)
    assert len(found) == sent
    assert {change["op"] for change in found} == set("trcudm")


def test_transactions_are_marked_where_they_end(
    mq: "BlockingClient", shop: Shop, changes: str
) -> None:
    capture_all(mq, shop, changes)
    shop.execute("BEGIN")
    for key in range(3):
        shop.execute("INSERT INTO item (id) VALUES (?)", key)
    shop.execute("COMMIT")
    shop.execute("BEGIN")
    shop.execute("UPDATE item SET id = 9 WHERE id = 0")
    shop.execute("COMMIT")
    capture_all(mq, shop, changes)
    found = [change for change in contents(mq, changes) if change["op"] in "cud"]
    assert [(c["op"], c["key"]) for c in found] == [
        ("c", "0"), ("c", "1"), ("c", "2"), ("d", "0"), ("c", "9"),
    ]  # fmt: skip
    if shop.url.startswith("sqlite"):
        # All changes of one read count as one transaction.
        assert [c["last"] for c in found] == [False, False, False, False, True]
    else:
        assert [c["last"] for c in found] == [False, False, True, False, True]
        assert len({c["txid"] for c in found}) == len({c["position"] for c in found}) == 2


@pytest.mark.campaign
def test_killed_capture_loses_and_doubles_nothing(
    nodes: Nodes, mq: "BlockingClient", shop: Shop, changes: str
) -> None:
    random = Random(11)
    shop.write(random, 10)
    with opened(shop, changes):
        pass
    command = [sys.executable, "-m", "raftmq", "pipeline", "cdc", "capture", shop.url]
    command += ["--table", "item", "--topic", changes, "--url", nodes.url]
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            end = time.monotonic() + random.uniform(0.8, 2.0)
            while time.monotonic() < end:
                shop.write(random, 3)
            process.kill()
            assert process.stdout is not None
            said = process.stdout.read()
            assert b"error" not in said, said.decode()
    capture_all(mq, shop, changes)
    check(mq, shop, changes)


def test_snapshot_that_was_cut_short_begins_anew(
    mq: "BlockingClient", shop: Shop, changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftmq.pipeline.cdc.change_capture.BATCH_MESSAGES", 3)
    for key in range(10):
        shop.execute("INSERT INTO item (id) VALUES (?)", key)
    with opened(shop, changes) as source:
        steps = capture(mq, source, changes)
        assert next(steps).phase == "snapshot"
        # As in a kill: later changes are never sent.
        steps.close()  # type: ignore[attr-defined]  # it is a generator
    assert fold(contents(mq, changes)) == []
    shop.execute("DELETE FROM item WHERE id < 5")
    capture_all(mq, shop, changes)
    found = contents(mq, changes)
    assert [change["op"] for change in found].count("t") == 2
    check(mq, shop, changes)


def test_emptied_table_is_one_change(mq: "BlockingClient", shop: Shop, changes: str) -> None:
    if shop.url.startswith("sqlite"):
        pytest.skip("SQLite has no TRUNCATE: it deletes row by row")
    shop.execute("INSERT INTO item (id) VALUES (1), (2)")
    capture_all(mq, shop, changes)
    shop.execute("TRUNCATE TABLE item")
    shop.execute("INSERT INTO item (id) VALUES (3)")
    capture_all(mq, shop, changes)
    found = contents(mq, changes)
    assert [c["op"] for c in found if c["op"] != "m"] == ["t", "r", "r", "t", "c"]
    check(mq, shop, changes)


def test_marks_say_how_far_while_only_others_are_written(
    mq: "BlockingClient", postgresql_item: Shop, changes: str
) -> None:
    shop = postgresql_item
    capture_all(mq, shop, changes)
    shop.create("other")
    shop.execute("INSERT INTO other (id) VALUES (1)")
    with opened(shop, changes) as source:
        wanted = source.now()
        assert sum(step.sent for step in capture(mq, source, changes, until=wanted)) == 1
    last = contents(mq, changes)[-1]
    assert last["op"] == "m"
    assert last["position"] >= wanted.position


def test_columns_that_changed_end_the_capture_and_a_snapshot_goes_on(
    mq: "BlockingClient", shop: Shop, changes: str
) -> None:
    shop.execute("INSERT INTO item (id) VALUES (1)")
    capture_all(mq, shop, changes)
    with opened(shop, changes) as source:
        # While it runs ...
        shop.execute("ALTER TABLE item ADD COLUMN size integer")
        shop.execute("INSERT INTO item (id, size) VALUES (2, 3)")
        with pytest.raises(PipelineError, match=r"changed.*--snapshot"):
            list(capture(mq, source, changes, until=source.now()))
    # ... and when it is started.
    with pytest.raises(PipelineError, match=r"columns of .*item have changed.*--snapshot"):
        capture_all(mq, shop, changes)
    capture_all(mq, shop, changes, snapshot=True)
    shop.execute("UPDATE item SET size = 4 WHERE id = 1")
    capture_all(mq, shop, changes)
    found = contents(mq, changes)
    assert [row["size"] for row in fold(found)] == [4, 3]
    assert found[-2]["schema"] != found[0]["schema"]
    check(mq, shop, changes)


def test_two_captures_at_once_are_refused(mq: "BlockingClient", shop: Shop, changes: str) -> None:
    capture_all(mq, shop, changes)
    with opened(shop, changes) as one, one.claim():  # noqa: SIM117  # the claim is not the test
        with pytest.raises(PipelineError, match=r"another capture of .*item is running"):
            capture_all(mq, shop, changes)


def test_topic_of_another_table_is_refused(mq: "BlockingClient", shop: Shop, changes: str) -> None:
    capture_all(mq, shop, changes)
    shop.create("other")
    wrong = pytest.raises(PipelineError, match=r"carries .*item of .*a topic of its own")
    with opened(shop, changes, "other") as source, wrong:
        list(capture(mq, source, changes, until=source.now()))


def test_topic_of_several_queues_is_refused(
    mq: "BlockingClient", sqlite_item: Shop, topic: str
) -> None:
    with pytest.raises(PipelineError, match=r"has 4 queues.*--queues 1"):
        capture_all(mq, sqlite_item, topic)


def test_topic_of_other_messages_is_refused(
    mq: "BlockingClient", sqlite_item: Shop, changes: str
) -> None:
    mq.admin.create_topic(changes, 1)
    with mq.producer(changes) as producer:
        producer.send(b"{}")
    with pytest.raises(PipelineError, match="offset 0 that is no change of a table"):
        capture_all(mq, sqlite_item, changes)


def test_table_without_a_primary_key_is_refused(shop: Shop) -> None:
    shop.execute("DROP TABLE IF EXISTS loose")
    shop.execute("CREATE TABLE loose (id integer)")
    with pytest.raises(PipelineError, match=r"loose has no primary key.*ADD PRIMARY KEY"):
        opened(shop, "loose", "loose").__enter__()


def test_table_that_is_not_there_is_refused(shop: Shop) -> None:
    with pytest.raises(PipelineError, match="has no table 'nothing'"):
        opened(shop, "nothing", "nothing").__enter__()
