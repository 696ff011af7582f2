"""A digest of a table, whatever the order of its rows, computed alike in Python and in Spark.

A row's text joins the texts of its values, in the order of the columns: `~` for NULL, else the
number of the value's characters (Unicode code points), a colon, and the value as in a message
(`true`/`false` for booleans). The digest is the number of rows and two sums, over all rows: of the
first 15 hexadecimal digits of the SHA-256 of the row's text in UTF-8, and of the next 15.

>>> digest_of([[1, "a"], [2, None]]) == digest_of([[2, None], [1, "a"]])
True
>>> digest_of([["ab", "c"]]) == digest_of([["a", "bc"]])
False

Sums, and not exclusive ors, in which a pair of equal rows would cancel out.
"""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from .change import Column, Value

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

_DIGITS = 15
"""Hexadecimal digits of a sum's terms: 60 bits, which fit Spark's bigint."""


class Digest(NamedTuple):
    """The digest of a table. Equal digests: equal tables, but for a chance of about 2^-120."""

    rows: int
    """Number of rows."""
    first: int
    """The sum over the first digits."""
    second: int
    """The sum over the next digits."""

    def __str__(self) -> str:
        return f"{self.rows}:{self.first:x}:{self.second:x}"


def digest_of(rows: Iterable[Iterable[Value]]) -> Digest:
    """The digest of rows, each as its values in the order of the columns."""
    return summed(map(row_digest, rows))


def summed(digests: Iterable[str]) -> Digest:
    """The digest of a table, from the digests of its rows."""
    count = first = second = 0
    for digits in digests:
        count += 1
        first += int(digits[:_DIGITS], 16)
        second += int(digits[_DIGITS : 2 * _DIGITS], 16)
    return Digest(count, first, second)


def row_digest(row: Iterable[Value]) -> str:
    """The SHA-256 of a row's text, in hexadecimal."""
    return hashlib.sha256(row_text(row).encode()).hexdigest()


def row_text(row: Iterable[Value]) -> str:
    """The text of some values of a row."""
    return "".join(map(_text, row))


def values_of(text: str) -> list[str]:
    """The values in a row's text, all as text, NULL as `~`.

    >>> values_of("1:7~2:ab")
    ['7', '~', 'ab']
    """
    values = []
    while text:
        head, _, rest = text.partition(":")
        if text[0] == "~":
            value, text = "~", text[1:]
        else:
            value, text = rest[: int(head)], rest[int(head) :]
        values.append(value)
    return values


def digest_in_spark(table: "DataFrame", columns: Iterable[Column]) -> Digest:
    """The digest of a rebuilt table (`rebuild`). Runs one Spark job."""
    from pyspark.sql import functions as f

    digits = row_digest_in_spark(columns)
    parts = [
        f.conv(f.substring(digits, start, _DIGITS), 16, 10).cast("decimal(38,0)")
        for start in (1, 1 + _DIGITS)
    ]
    first, second = (f.coalesce(f.sum(part), f.lit(0)) for part in parts)
    count = f.count(f.lit(1)).alias("count")
    row = table.agg(count, first.alias("first"), second.alias("second")).first()
    assert row is not None
    return Digest(row["count"], int(row["first"]), int(row["second"]))


def row_digest_in_spark(columns: Iterable[Column]) -> "SparkColumn":
    """`row_digest` of a rebuilt table."""
    from pyspark.sql import functions as f

    return f.sha2(row_text_in_spark(columns), 256)


def row_text_in_spark(columns: Iterable[Column]) -> "SparkColumn":
    """`row_text` of these columns of a rebuilt table."""
    from pyspark.sql import functions as f

    return f.concat(*map(_spark_text, columns))


def _text(value: Value) -> str:
    if value is None:
        return "~"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{len(text)}:{text}"


def _spark_text(column: Column) -> "SparkColumn":
    from pyspark.sql import functions as f

    value = f.col(quoted(column.name))
    # Spark breaks base64 into lines.
    lines = f.translate(f.base64(value), "\r\n", "")
    text = lines if column.kind == "bytes" else value.cast("string")
    return f.coalesce(f.concat(f.length(text).cast("string"), f.lit(":"), text), f.lit("~"))


def quoted(name: str) -> str:
    """A column's name for Spark, which otherwise splits a name at a dot.

    >>> quoted("a.b`c")
    '`a.b``c`'
    """
    return "`" + name.replace("`", "``") + "`"
