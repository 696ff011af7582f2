"""Values of MariaDB and MySQL as a message writes them, from the binary log and from a query alike.

The binary log's values come as Python's, a query's as the server's text; both become the same:

| type | kind | written as |
|---|---|---|
| integers but for unsigned BIGINT, YEAR | int | number |
| unsigned BIGINT, BIT | text | digits |
| DECIMAL | text | digits with the column's scale |
| FLOAT, DOUBLE | text | the shortest that gives the same double; a FLOAT as a double |
| CHAR, VARCHAR, TEXT, ENUM, SET, JSON | text | as it is |
| BINARY, VARBINARY, BLOB | bytes | base64 |
| DATE, DATETIME, TIMESTAMP, TIME | text | with the column's digits of a second; TIMESTAMP in UTC |

Left out, with an error: generated columns, other types, and dates of which a part is zero.
"""

import base64
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from raftmq.pipeline.cdc.change import Column, Value
from raftmq.pipeline.errors import PipelineError

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_FLOATS = frozenset({"float", "double"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_TEXTS = frozenset(
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"}
)
_DATES = frozenset({"date", "datetime", "timestamp"})
_OTHERS = frozenset({"decimal", "bit", "time"})
_UNICODE = frozenset({"ascii", "utf8", "utf8mb3", "utf8mb4"})
_CHARACTER_SETS = _UNICODE | {
    "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp932", "gb2312", "gbk", "koi8r",
    "latin1", "latin2", "latin5", "latin7", "macroman",
}  # fmt: skip
"""Those whose texts in the log are decoded as a query gives them; with `latin1`, those of Python's
cp1252. All characters of the first plane were compared on MySQL 8.0.15 and MariaDB 10.11: of other
sets mysql-replication 1.0 gives other characters, or bytes."""
_YEAR_ZERO = 1900
"""The year 0000 as mysql-replication 1.0 gives it; 1900 cannot be stored."""


@dataclass(frozen=True, slots=True)
class Cell:
    """How the values of one column are read."""

    column: Column
    """The column as messages describe it."""
    type: str
    """The plain type of the column, in lower case."""
    digits: int
    """Digits of a second's fraction."""
    width: int
    """Bytes of a BINARY, which the log does not pad."""
    members: tuple[str, ...]
    """Members of a SET, in their order."""

    def selected(self, name: str) -> str:
        """The expression that a query selects for the column."""
        # As text a FLOAT has six digits, and a BIT is bytes.
        match self.type:
            case "float":
                return f"{name} * 1e0"
            case "bit":
                return f"{name} + 0"
        return name

    def read(self, value: str | bytes | None) -> Value:
        """A value that a query found."""
        if value is None:
            return None
        if self.column.kind == "bytes":
            return _base64(value if isinstance(value, bytes) else value.encode())
        text = value.decode() if isinstance(value, bytes) else value
        if self.column.kind == "int":
            return int(text)
        if self.type in _FLOATS:
            return repr(float(text))
        if self.type in _DATES and (text.startswith("0000") or "-00" in text[:10]):
            self._refuse_date()
        return text

    def logged(self, value: Any, nothing: str | None) -> Value:
        """A value in the binary log. `nothing`: why it is None."""
        if value is None:
            if nothing == "empty set":
                return ""
            if nothing not in (None, "null"):
                self._refuse_date()
            return None
        if self.type == "year" and value == _YEAR_ZERO:
            return 0
        if self.column.kind == "int":
            return int(value)
        if self.column.kind == "bytes":
            data = value if isinstance(value, bytes) else str(value).encode()
            return _base64(data.ljust(self.width, b"\0") if self.type == "binary" else data)
        match self.type:
            case "float" | "double":
                return repr(float(value))
            case "decimal":
                return format(value, "f")
            case "bit":
                return str(int(value, 2))
            case "set":
                return ",".join(member for member in self.members if member in value)
            case "date":
                return str(value.isoformat())
            case "datetime" | "timestamp":
                return self._moment(value)
            case "time":
                return self._span(value)
        return str(value)

    def _moment(self, value: datetime) -> str:
        if self.type == "timestamp" and value == datetime(1970, 1, 1):  # noqa: DTZ001  # as it comes
            # That second cannot be stored: it stands for a date of zeros.
            self._refuse_date()
        return value.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0") + self._fraction(
            value.microsecond
        )

    def _span(self, value: timedelta) -> str:
        is_negative = value < timedelta(0)
        value = abs(value)
        seconds, fraction = value.days * 86_400 + value.seconds, value.microseconds
        if is_negative and fraction:
            # The log has the complement of a negative fraction, and mysql-replication 1.0 gives it
            # as it is: -0.25 s as -0.75.
            fraction = 1_000_000 - fraction
        text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return ("-" if is_negative else "") + text + self._fraction(fraction)

    def _fraction(self, microseconds: int) -> str:
        return f".{microseconds:06}"[: self.digits + 1] if self.digits else ""

    def _refuse_date(self) -> None:
        raise PipelineError(
            f"the column {self.column.name} has a date of which a part is zero",
            "correct it, and have the server refuse such dates (sql_mode NO_ZERO_IN_DATE, "
            "NO_ZERO_DATE)",
        )


def cell_of(
    column: Column,
    type_: str,
    *,
    digits: int,
    width: int,
    is_generated: bool,
    character_set: str | None,
) -> Cell:
    """How the values of a column are read; its kind is filled in. `character_set`: of a text.

    Raises:
        PipelineError: the column cannot be captured.
    """
    type_ = type_.lower()
    known = _INTEGERS | _FLOATS | _BYTES | _TEXTS | _DATES | _OTHERS
    if type_ not in known or is_generated:
        what = "generated" if is_generated else type_.upper()
        raise PipelineError(
            f"the column {column.name} is {what}, which cannot be captured",
            "put it into a table of its own",
        )
    # The package takes the members of ENUM and SET for UTF-8.
    has_members = type_ in ("enum", "set") and not column.type.isascii()
    if character_set not in (_UNICODE if has_members else _CHARACTER_SETS) | {None}:
        raise PipelineError(
            f"the column {column.name} has texts in {character_set}, which cannot be captured",
            "ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4",
        )
    kind = "text"
    if type_ in _BYTES:
        kind = "bytes"
    elif type_ in _INTEGERS and not (type_ == "bigint" and "unsigned" in column.type):
        kind = "int"
    members = re.findall(r"'((?:[^']|'')*)'", column.type) if type_ == "set" else []
    return Cell(
        column._replace(kind=kind),
        type_,
        digits,
        width,
        tuple(member.replace("''", "'") for member in members),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
