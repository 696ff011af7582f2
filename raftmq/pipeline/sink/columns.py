"""The columns that rows may have, and their way from Spark's columns to the client's.

| column | Spark's type | meaning |
|---|---|---|
| body | binary or string | what is sent; needed, never null |
| key | string | null: none |
| tag | string | null: none |
| props | map<string, one type>, or a struct | strings, numbers, booleans, binary; null: none |
| delay | double, or any number | seconds; null, or not above 0: at once |
| deliver_at | timestamp | instead of delay; null: at once |
| queue | int | the queue within the topic; null: by key |

Rows without queue and key go to one queue for each task and batch: (partition + label) % queues.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

_VALUES = {
    "string", "binary", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double",
}  # fmt: skip
_TYPES: dict[str, set[str]] = {
    "body": {"binary", "string"},
    "key": {"string"},
    "tag": {"string"},
    "props": set(),
    "delay": {"tinyint", "smallint", "int", "bigint", "float", "double"},
    "deliver_at": {"timestamp"},
    "queue": {"tinyint", "smallint", "int", "bigint"},
}

NAMES = tuple(_TYPES)
"""All columns."""


def check_columns(fields: list[tuple[str, str]]) -> None:
    """Check names and types, each a pair in Spark's words (`("body", "binary")`).

    Raises:
        PipelineError: the sink cannot take them.
    """
    names = [name for name, _ in fields]
    exist = f"columns are {', '.join(NAMES)}; select those, and rename with .alias(...)"
    for name, kind in fields:
        if name not in _TYPES:
            raise PipelineError(f"the sink has no column {name!r}", exist)
        if name != "props" and kind not in _TYPES[name]:
            wanted = " or ".join(sorted(_TYPES[name]))
            raise PipelineError(f"column {name} is {kind}", f"cast it to {wanted}")
        if name == "props" and not _is_props(kind):
            fix = "make it a map<string,string>, or a struct of numbers, booleans and strings"
            raise PipelineError(f"column props is {kind}", fix)
    if len(set(names)) < len(names):
        raise PipelineError(f"a column stands twice in {', '.join(names)}", "select each once")
    if "body" not in names:
        raise PipelineError("there is no column body, the content of the messages", exist)
    if "delay" in names and "deliver_at" in names:
        raise PipelineError("there are both delay and deliver_at", "keep one of them")


def _is_props(kind: str) -> bool:
    if kind.startswith("map<string,") and kind.endswith(">"):
        return kind[len("map<string,") : -1] in _VALUES
    # A field's name may hold any text, so the types behind it are checked when a row is encoded.
    return kind.startswith("struct<")


class Parts(NamedTuple):
    """The rows of a batch, divided by when they are delivered."""

    at_once: "pa.RecordBatch"
    """Rows as `Producer.put_arrow` takes them, without `deliver_at`."""
    later: "pa.RecordBatch | None"
    """Rows with a column `delay` or `deliver_at` that says when; None: there are none."""
    positions: "Any"
    """The places of `at_once` in the batch, as an array; None: all, in order."""


def divided(rows: "pa.RecordBatch") -> Parts:
    """Divide rows into those at once and those for later, whatever the time of day."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    name = next((n for n in ("delay", "deliver_at") if n in rows.schema.names), None)
    if name is None:
        return Parts(rows, None, None)
    plain = rows.drop_columns([name])
    column = rows.column(name)
    is_later = column.is_valid()
    if name == "delay":
        is_later = pc.greater(column, 0).fill_null(False)
    mask = is_later.to_numpy(zero_copy_only=False)
    if not mask.any():
        return Parts(plain, None, None)
    positions = np.flatnonzero(~mask)
    return Parts(plain.take(pa.array(positions)), rows.filter(is_later), positions)


def with_times(rows: "pa.RecordBatch", now_ms: int) -> "pa.RecordBatch":
    """Rows for later as `Producer.put_arrow` takes them: a delay becomes a time."""
    import numpy as np
    import pyarrow as pa

    if "delay" not in rows.schema.names:
        return rows
    seconds = rows.column("delay").to_numpy(zero_copy_only=False).astype(np.float64)
    # The client refuses more than ten years; a cast of more than 64 bits would give a random time.
    dues = now_ms + np.ceil(np.minimum(np.nan_to_num(seconds), 1e12) * 1000)
    times = pa.array(dues.astype(np.int64)).cast(pa.timestamp("ms", "UTC"))
    return rows.drop_columns(["delay"]).append_column("deliver_at", times)
