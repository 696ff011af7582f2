"""Keyed messages tell whether they come in order."""

import pytest

from bench.keys import KEYS, KeyOrder, keyed


def test_messages_of_a_key_are_kept_apart() -> None:
    keys, bodies = keyed(range(KEYS - 1, KEYS + 1), 100)
    assert keys == ["key-3999", "key-0"]
    assert [len(body) for body in bodies] == [100, 100]
    order = KeyOrder()
    order.check(reversed(bodies))


def test_earlier_message_after_a_later_one_of_its_key_is_an_error() -> None:
    _, bodies = keyed(range(0, 2 * KEYS, KEYS), 100)
    order = KeyOrder()
    order.check(bodies)
    with pytest.raises(RuntimeError, match="message 0 of key 0 came after 4000"):
        order.check(bodies[:1])
