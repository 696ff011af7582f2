"""The kinds of values that options take: durations, sizes, starting points, properties, addresses.

| kind | examples |
|---|---|
| `DURATION` | `500ms`, `10s`, `2m`, `1.5h`, `7d`, `10` (seconds) |
| `SCHEDULE` | `10s,1m,1h`; `1s*2..1h`: begins with 1 s, doubles, at most 1 h |
| `RATE` | `100/s`, `0.5/s`, `100` (a second), `600/m` |
| `BYTE_RATE` | `10MB/s`, `64KiB` (a second) |
| `COUNT_RATE` | as `RATE`, and a whole number a second |
| `SIZE` | `100`, `10k` and `10kB` (10,000 bytes), `64KiB` (65,536), `1M`, `1MiB` |
| `START` | `earliest`, `latest`, `4711` (an offset), `2026-11-20T10:00`, `15m` (that long ago) |
| `PROPERTY` | `buyerId=7`, `paid=true`, `price=1.5`, `city=Paris`, `zip="01234"` (text) |
| `ADDRESS` | `10.0.0.3:7400` |
| `NODE_COUNT` | `4`, `auto` |
"""

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from datetime import datetime

    Scalar = int | float | bool | str
    Kind = click.ParamType[Any]
else:
    # Generic from click 8.4 on, and only for type checkers.
    Kind = click.ParamType

NODES_MAX = 64
"""Nodes of one machine."""

_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {
    "": 1,
    "k": 1000,
    "ki": 1024,
    "m": 1000**2,
    "mi": 1024**2,
    "g": 1000**3,
    "gi": 1024**3,
}


class _Kind(Kind, ABC):
    """A kind whose `read` turns text into a value, or raises `ValueError` with the right form."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Click's entry: defaults that are values already pass through."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    @abstractmethod
    def read(self, text: str) -> Any:
        """The value of a text."""


class _Duration(_Kind):
    name = "duration"

    def read(self, text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", text)
        if match is None:
            _refuse(text, "a duration, as 500ms, 10s, 2m or 1h")
        # 1.1 * 3600 is a little more than 3960, and would differ from the value that a group keeps.
        return round(float(match[1]) * _SECONDS[match[2]], 6)


class _Schedule(_Kind):
    name = "schedule"

    def read(self, text: str) -> tuple[float, ...]:
        if "*" in text or ".." in text:
            return self._rising(text)
        return tuple(DURATION.read(part.strip()) for part in text.split(","))

    def _rising(self, text: str) -> tuple[float, ...]:
        from raftmq.client import exponential
        from raftmq.errors import Rejected

        match = re.fullmatch(r"([^*,]+)\*(\d+(?:\.\d+)?)\.\.([^*,]+)", text)
        if match is None:
            _refuse(
                text, "a schedule, as 10s,1m,1h or 1s*2..1h (begins with 1s, doubles, at most 1h)"
            )
        first, factor, most = DURATION.read(match[1]), float(match[2]), DURATION.read(match[3])
        try:
            return tuple(exponential(first, factor=factor, most=most))
        except Rejected as error:
            raise ValueError(str(error)) from error


class _Rate(_Kind):
    name = "rate"

    def read(self, text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?", text)
        if match is None or float(match[1]) == 0:
            _refuse(text, "a rate, as 100/s, 0.5/s or 600/m")
        return float(match[1]) / _SECONDS[match[2] or "s"]


class _CountRate(_Rate):
    def read(self, text: str) -> int:
        rate = super().read(text)
        if not rate.is_integer():
            _refuse(text, "a whole number a second, as 100/s")
        return int(rate)


class _ByteRate(_Kind):
    name = "byte rate"

    def read(self, text: str) -> int:
        size = _bytes_of(text.removesuffix("/s"))
        if not size:
            _refuse(text, "a number of bytes a second, as 10MB/s or 64KiB/s")
        return size


class _Size(_Kind):
    name = "size"

    def read(self, text: str) -> int:
        size = _bytes_of(text)
        if size is None:
            _refuse(text, "a number of bytes, as 100, 10k, 64KiB or 1M")
        return size


class _Start(_Kind):
    name = "start"

    def read(self, text: str) -> "str | int | datetime":
        from datetime import UTC, datetime, timedelta

        if text in ("earliest", "latest"):
            return text
        if text.isdecimal():
            return int(text)
        try:
            return datetime.now(UTC) - timedelta(seconds=DURATION.read(text))
        except ValueError:
            pass
        try:
            # A time without a zone is in this machine's zone.
            return datetime.fromisoformat(text.removeprefix("@")).astimezone()
        except ValueError:
            _refuse(
                text,
                "earliest, latest, an offset, a time as 2026-11-20T10:00, or 15m (that long ago)",
            )


class _Property(_Kind):
    name = "name=value"

    def read(self, text: str) -> "tuple[str, Scalar]":
        name, found, value = text.partition("=")
        if not name or not found:
            _refuse(text, "a property as name=value")
        return name, _scalar(value)


class _Address(_Kind):
    name = "host:port"

    def read(self, text: str) -> tuple[str, int]:
        from raftmq.wire.address import why_no_address

        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isascii() and port.isdecimal()):
            _refuse(text, "an address as host:port")
        problem = why_no_address(host, int(port))
        if problem:
            _refuse(text, f"an address as host:port: {problem}")
        return host, int(port)


class _NodeCount(_Kind):
    name = "number"

    def read(self, text: str) -> str | int:
        if text == "auto":
            return text
        if not re.fullmatch(r"[1-9]\d?", text) or int(text) > NODES_MAX:
            _refuse(text, f"a number of nodes from 1 to {NODES_MAX}, or auto")
        return int(text)


DURATION = _Duration()
SCHEDULE = _Schedule()
RATE = _Rate()
BYTE_RATE = _ByteRate()
COUNT_RATE = _CountRate()
SIZE = _Size()
START = _Start()
PROPERTY = _Property()
ADDRESS = _Address()
NODE_COUNT = _NodeCount()


def _bytes_of(text: str) -> int | None:
    """The number of bytes that a text means; None: it means none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?i?)b?", text.lower())
    if match is None or match[2] not in _BYTES:
        return None
    return int(float(match[1]) * _BYTES[match[2]])


def _scalar(text: str) -> "Scalar":
    """A number, true, false or quoted text as in JSON; any other text is a text as written."""
    import json

    try:
        value = json.loads(text)
    except ValueError:
        return text
    is_scalar = isinstance(value, int | float | bool | str)
    is_finite = value == value and value not in (float("inf"), float("-inf"))
    return value if is_scalar and is_finite else text


def _refuse(text: str, right: str) -> NoReturn:
    raise ValueError(f"{text!r} is not {right}")
