"""Change data capture: the changes of a relational table in a topic, and the table rebuilt.

    SQLite, PostgreSQL,
    MariaDB, MySQL      ─capture─> topic ─rebuild─> DIR/v=<n>/*.parquet ─verify─> equal

Start reading at `change` (what a message is), then `source` (what a database offers),
`change_capture` (each change once), `rebuild` (the table from the topic) and `verify` (equal by
digest).

Invariants:
- The order of a topic's messages is the order of commits, and (position, seq) proves it.
- Every step can be killed at any point and started again: the topic's last message, and `CURRENT`
  beside the versions of the table, record what was done.
- Capture needs no Spark; the databases' drivers are loaded when they are used (`raftmq[cdc]`).
"""

from .change_capture import capture
from .source import open_source

__all__ = ["capture", "open_source"]
