"""The tables of a report, as Parquet.

    DIR/report_minute/dt=2026-11-22/10.parquet      the rows of the hour 10:00 to 10:59 UTC
    DIR/alert/dt=2026-11-22/10.parquet              the alerts that its minutes decided

`report_minute` has a row a minute, topic and consumer group, and one for the topic itself:

| column | type | meaning |
|---|---|---|
| minute | timestamp | its beginning, UTC |
| topic | string | the topic |
| group | string | the consumer group; empty: the topic itself |
| mode | string | how the group is served; empty for a topic |
| origin | string | `log`: from the log's events; `snapshot`: see below |
| is_partial | bool | the log no longer held all events of this minute, or all before it |
| stored | bigint | messages that came; of a topic only |
| handed_out | bigint | hand-outs; a message that came again counts again |
| acked | bigint | messages that are done with |
| retries | bigint | that failed or whose lease ran out, and that come again |
| dead | bigint | that became dead letters |
| given_back | bigint | that were given back unbegun |
| redriven, purged | bigint | dead letters handed out again, thrown away |
| passed | bigint | that the filter passed over |
| lost, skipped | bigint | taken by retention, or passed by a reset, before they were settled |
| lag | bigint | messages not settled at the minute's end, dead letters apart |
| fresh | bigint | those of them that were never handed out |
| oldest_ms | bigint | age of the oldest of them at the minute's end; null: none, or not known |
| wait_p50_ms, wait_p99_ms | double | from stored to first handed out, within 1.6 % |
| service_p50_ms, service_p99_ms | double | from handed out to acked, likewise |
| producers | bigint | producers that sent what came; of a topic only |
| consumers | bigint | consumers that were handed or settled something |

Groups that pull or broadcast leave no events. Their rows have `lag` alone, as the cluster gave it
when the minute was closed: such a row is a `snapshot`. Its lag leaves out queues in which the group
has committed nothing, and is null instead of 0 if there are messages in those queues. A minute that
was closed long after its end has no such rows.

`alert` has a row for each alert that opened or closed: `raftmq.pipeline.report.rules.Alert`.

Invariants:
- (minute, topic, group) is the key of `report_minute`, `number` of `alert`: a row that is written
  again replaces the one before.
- A file is replaced as a whole, and durable before `write` returns.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raftmq.pipeline import durable

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
"""A row, by column; times in milliseconds since 1970."""

ROW = {
    "minute": "timestamp",
    "topic": "string",
    "group": "string",
    "mode": "string",
    "origin": "string",
    "is_partial": "bool",
    "stored": "int64",
    "handed_out": "int64",
    "acked": "int64",
    "retries": "int64",
    "dead": "int64",
    "given_back": "int64",
    "redriven": "int64",
    "purged": "int64",
    "passed": "int64",
    "lost": "int64",
    "skipped": "int64",
    "lag": "int64",
    "fresh": "int64",
    "oldest_ms": "int64",
    "wait_p50_ms": "float64",
    "wait_p99_ms": "float64",
    "service_p50_ms": "float64",
    "service_p99_ms": "float64",
    "producers": "int64",
    "consumers": "int64",
}
"""Columns of `report_minute`."""
ALERT = {
    "number": "int64",
    "state": "string",
    "rule": "string",
    "topic": "string",
    "group": "string",
    "minute": "timestamp",
    "since": "timestamp",
    "metric": "string",
    "value": "float64",
    "peak": "float64",
    "threshold": "float64",
}
"""Columns of `alert`."""
TABLES = {
    "report_minute": (ROW, ("minute", "topic", "group")),
    "alert": (ALERT, ("number",)),
}
"""Table → its columns, and its key."""

HOUR_MS = 3_600_000


def schema(table: str) -> "pa.Schema":
    """The Arrow schema of a table."""
    import pyarrow as pa

    types = {
        "timestamp": pa.timestamp("us", "UTC"),
        "string": pa.string(),
        "bool": pa.bool_(),
        "int64": pa.int64(),
        "float64": pa.float64(),
    }
    return pa.schema([(name, types[kind]) for name, kind in TABLES[table][0].items()])


def write(folder: Path, table: str, rows: Sequence[Row]) -> None:
    """Add rows, which replace those with the same key; durable on return."""
    by_hour: dict[int, list[Row]] = {}
    for row in rows:
        by_hour.setdefault(row["minute"] // HOUR_MS, []).append(row)
    for hour, of_hour in sorted(by_hour.items()):
        _replace(_path(folder, table, hour), table, of_hour)


def read(folder: Path, table: str, *, since_ms: int = 0, until_ms: int = 1 << 62) -> list[Row]:
    """Rows of minutes in [since, until), in the order of their keys; times in milliseconds."""
    keys = TABLES[table][1]
    found: list[Row] = []
    for path, hour in _files(folder, table):
        if hour * HOUR_MS < until_ms and (hour + 1) * HOUR_MS > since_ms:
            found += _rows(path, table)
    found = [row for row in found if since_ms <= row["minute"] < until_ms]
    found.sort(key=lambda row: tuple(row[name] for name in keys))
    return found


def _files(folder: Path, table: str) -> Iterator[tuple[Path, int]]:
    from datetime import UTC, datetime

    for path in sorted((folder / table).glob("dt=*/[0-9][0-9].parquet")):
        day = datetime.strptime(path.parent.name, "dt=%Y-%m-%d").replace(tzinfo=UTC)
        yield path, int(day.timestamp()) // 3600 + int(path.stem)


def _path(folder: Path, table: str, hour: int) -> Path:
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(hour * 3600, UTC)
    return folder / table / f"dt={at:%Y-%m-%d}" / f"{at:%H}.parquet"


def _rows(path: Path, table: str) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Read as a single file: as a dataset the name of its folder would become a column.
    found = pq.ParquetFile(path).read().cast(schema(table))
    for name, kind in TABLES[table][0].items():
        if kind == "timestamp":
            at = found.column_names.index(name)
            milliseconds = found.column(name).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            found = found.set_column(at, name, milliseconds)
    rows: list[Row] = found.to_pylist()
    return rows


def _replace(path: Path, table: str, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, keys = TABLES[table]
    before = _rows(path, table) if path.exists() else []
    merged = {tuple(row[name] for name in keys): row for row in (*before, *rows)}
    times = [name for name, kind in columns.items() if kind == "timestamp"]
    # Arrow takes integers for the unit of the column.
    listed = [
        {**merged[key], **{name: merged[key][name] * 1000 for name in times}}
        for key in sorted(merged)
    ]
    durable.make_folders(path.parent)
    with durable.writing(path) as unfinished:
        pq.write_table(pa.Table.from_pylist(listed, schema(table)), unfinished, compression="zstd")
