"""Answers about clients: rows of several nodes merged, and what a user may not see left out."""

from types import SimpleNamespace
from typing import Any

import pytest

from raftmq.broker.presence.service import _has_names, client_view, rows_by_client
from raftmq.wire import directory as wire


def row(version: int, uses: list[list[str]], avoided: list[list[float]] | None = None) -> list[Any]:
    return [
        "biller",
        "raftmq 0.1.0",
        "alice",
        "10.0.0.4",
        1000 + version,
        version,
        uses,
        avoided or [],
    ]


def directory(*rows: tuple[int, str, Any]) -> Any:
    return SimpleNamespace(rows=lambda: iter(rows))


def test_newest_word_of_a_client_counts_and_each_node_is_listed() -> None:
    old, new = row(1, [["produce", "t", ""]]), row(2, [["pop", "t", "g"]], [[3, 0.5]])
    found = rows_by_client(
        directory((1, "client a", old), (2, "client a", new), (1, "node", [])), ""
    )
    view = client_view("a", found["a"], everything, everything)
    assert view is not None
    assert view.uses == [wire.Use("pop", "t", "g")]
    assert [each.node for each in view.connections] == [1, 2]
    assert view.avoided == [wire.AvoidedNode(3, 0.5)]
    assert (view.name, view.user) == ("biller", "alice")


def everything(_: str) -> bool:
    return True


def test_client_that_does_nothing_any_longer_is_not_listed() -> None:
    rows = [(1, row(1, [["produce", "t", ""]])), (2, row(2, []))]
    assert client_view("a", rows, everything, everything) is None


def test_row_that_no_node_puts_is_passed_over() -> None:
    odd: list[Any] = [5, None, ["x"], row(1, [["produce"]]), row(1, [])[:3]]
    assert client_view("a", list(enumerate(odd)), everything, everything) is None
    view = client_view(
        "a", [*enumerate(odd), (7, row(1, [["produce", "t", ""]]))], everything, everything
    )
    assert view is not None
    assert [each.node for each in view.connections] == [7]


def test_page_goes_on_after_a_client() -> None:
    uses = [["produce", "t", ""]]
    rows = [(1, f"client {name}", row(1, uses)) for name in "abc"]
    assert sorted(rows_by_client(directory(*rows), "a")) == ["b", "c"]


def test_topics_and_groups_that_the_caller_may_not_see_are_left_out() -> None:
    uses = [["produce", "open", ""], ["produce", "secret", ""], ["pop", "open", "hidden"]]
    rows = [(1, row(1, uses))]
    view = client_view("a", rows, lambda topic: topic == "open", lambda group: False)
    assert view is not None
    assert view.uses == [wire.Use("produce", "open")]


@pytest.mark.parametrize(
    ("client", "name", "use", "is_well"),
    [
        ("c0ffee", "", wire.Use("produce", "orders"), True),
        ("c0ffee", "biller", wire.Use("pop", "orders", "billing"), True),
        ("c0ffee", "biller", wire.Use("pop", "or\nders", "billing"), False),
        ("c0 ffee", "", wire.Use("produce", "orders"), False),
        ("c0ffee", "\x1b[31m", wire.Use("produce", "orders"), False),
        ("c0ffee", "", wire.Use("produce", "\u6d88\u606f"), False),
    ],
)
def test_clients_word_holds_names_alone(
    client: str, name: str, use: wire.Use, *, is_well: bool
) -> None:
    assert _has_names(wire.Doing(client, name, 1, [use], [])) is is_well
