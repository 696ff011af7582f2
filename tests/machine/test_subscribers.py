"""The catalog's subscriptions of consumer groups to topics."""

import cbor2
import pytest

from raftmq.errors import Reason
from raftmq.filters import compile as compile_filter
from raftmq.machine.catalog import subscribers
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node
from raftmq.machine.catalog.subscribers import Subscribe, Unsubscribe
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.results import Changed

from .test_catalog import reason, run


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    run(catalog, Bootstrap([Node(1, "a", 1)], groups=2, replicas=1))
    run(catalog, CreateTopic("orders", 2))
    return catalog


def wanted(catalog: Catalog) -> dict[str, str]:
    topic = catalog.topics["orders"].id
    found = catalog.subscribers.of_topic.get(topic, {})
    return {name: each.expression for name, each in found.items()}


def test_subscription_is_kept_and_replaced_under_another_number(catalog: Catalog) -> None:
    first = run(catalog, Subscribe("orders", "billing", "amount > 5"))
    assert first == Changed(catalog.applied)
    before = catalog.subscribers.of_topic[1]["billing"].number
    assert run(catalog, Subscribe("orders", "billing", "paid || shipped")) != first
    assert wanted(catalog) == {"billing": "paid || shipped"}
    assert catalog.subscribers.of_topic[1]["billing"].number > before


def test_same_subscription_again_changes_nothing(catalog: Catalog) -> None:
    first = run(catalog, Subscribe("orders", "billing", "amount > 5"))
    version = catalog.subscribers.version
    run(catalog, CreateTopic("other", 1))
    assert run(catalog, Subscribe("orders", "billing", "amount > 5")) == first
    assert catalog.subscribers.version == version


def test_text_that_cannot_be_read_is_refused_with_the_place(catalog: Catalog) -> None:
    result = run(catalog, Subscribe("orders", "billing", "city CONTAIN 'x'"))
    assert reason(result) is Reason.BAD_FILTER
    assert str(result.message).splitlines() == [  # type: ignore[union-attr]
        "CONTAIN is no operator; did you mean CONTAINS? (at character 6)",
        "  city CONTAIN 'x'",
        "       ^^^^^^^",
    ]
    assert wanted(catalog) == {}


@pytest.mark.parametrize("text", ["amount == 5", "a && b", "(a || b)", "!a", 'a = "x"', "a != nil"])
def test_signs_that_older_software_refuses_are_refused(catalog: Catalog, text: str) -> None:
    result = run(catalog, Subscribe("orders", "billing", text))
    assert reason(result) is Reason.BAD_FILTER
    assert "keeps tags and SQL" in str(result.message)  # type: ignore[union-attr]
    assert wanted(catalog) == {}
    assert isinstance(
        run(catalog, Subscribe("orders", "billing", compile_filter(text).sql)), Changed
    )


def test_names_and_topics_that_cannot_be_are_refused(catalog: Catalog) -> None:
    assert reason(run(catalog, Subscribe("none", "billing", "*"))) is Reason.UNKNOWN_TOPIC
    assert reason(run(catalog, Unsubscribe("none", "billing"))) is Reason.UNKNOWN_TOPIC
    assert reason(run(catalog, Subscribe("orders", "", "*"))) is Reason.BAD_NAME
    assert reason(run(catalog, Subscribe("orders", "x" * 128, "*"))) is Reason.BAD_NAME


def test_number_and_length_of_all_subscriptions_are_bounded(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "SUBSCRIPTIONS_MAX", 2)
    monkeypatch.setattr(subscribers, "CHARACTERS_MAX", 10)
    run(catalog, Subscribe("orders", "a", "x || y"))
    assert reason(run(catalog, Subscribe("orders", "b", "xx || y"))) is Reason.TOO_LARGE
    run(catalog, Subscribe("orders", "a", "z"))
    run(catalog, Subscribe("orders", "b", "xx || y"))
    assert reason(run(catalog, Subscribe("orders", "c", "y"))) is Reason.TOO_LARGE
    run(catalog, Unsubscribe("orders", "b"))
    assert isinstance(run(catalog, Subscribe("orders", "c", "y")), Changed)


def test_unsubscribing_twice_is_done_once(catalog: Catalog) -> None:
    run(catalog, Subscribe("orders", "billing", "paid"))
    gone = run(catalog, Unsubscribe("orders", "billing"))
    assert gone == Changed(catalog.applied)
    assert run(catalog, Unsubscribe("orders", "billing")) == gone
    assert wanted(catalog) == {}


def test_deleted_topic_takes_its_subscriptions_along(catalog: Catalog) -> None:
    run(catalog, Subscribe("orders", "billing", "paid"))
    run(catalog, DeleteTopic("orders"))
    assert catalog.subscribers.version == catalog.applied
    run(catalog, CreateTopic("orders", 2))
    assert wanted(catalog) == {}


def test_more_queues_of_a_subscribed_topic_are_news_for_data_groups(catalog: Catalog) -> None:
    run(catalog, Subscribe("orders", "billing", "paid"))
    run(catalog, AlterTopic("orders", 4))
    assert catalog.subscribers.version == catalog.applied


def test_snapshot_holds_subscriptions_and_their_bounds(catalog: Catalog) -> None:
    run(catalog, Subscribe("orders", "billing", "paid"))
    run(catalog, Subscribe("orders", "audit", "amount > 7"))
    restored = Catalog.restore(catalog.snapshot())
    assert wanted(restored) == {"billing": "paid", "audit": "amount > 7"}
    for each in (catalog, restored):
        run(each, Subscribe("orders", "third", "x"))
    assert restored.snapshot() == catalog.snapshot()


def test_snapshot_from_before_subscriptions_is_read(catalog: Catalog) -> None:
    _, *state = cbor2.loads(catalog.snapshot())
    older = Catalog.restore(cbor2.dumps([1, *state[:-2]]))
    assert older.topics == catalog.topics
    assert wanted(older) == {}
