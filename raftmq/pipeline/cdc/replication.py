"""PostgreSQL's streaming replication over psycopg 3: the part of it that logical decoding needs.

psycopg 3 has no class for it, but it hands out libpq's functions, and those are enough: the command
START_REPLICATION turns the connection into a copy in both directions.

| from the server | bytes after its letter |
|---|---|
| w data | 8 start, 8 end of the log, 8 time, then a message of the plugin |
| k keepalive | 8 end of what was sent, 8 time, 1 whether an answer is wanted |

| to the server | bytes after its letter |
|---|---|
| r status | 8 written, 8 flushed, 8 applied, 8 time, 1 whether an answer is wanted |

The server wakes the capture; nothing is polled. The server may forget all up to "flushed".

Sources: "Streaming Replication Protocol" in PostgreSQL's documentation.
"""

import select
import time
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from raftmq.pipeline.errors import PipelineError

from .change import needs_snapshot

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGconn, PGresult

WAIT_SECONDS = 0.1
"""Time after which `Waited` comes if nothing else does."""
STATUS_SECONDS = 5.0
"""Time between two unasked status messages; the server gives up after 60 s by default."""
FREED_SECONDS_MAX = 5.0
"""Time that the server may take to see that the last user of a slot is gone."""

_UNDEFINED_OBJECT = b"42704"
"""PostgreSQL's code for a publication that does not exist."""
_DATA_HEAD = 25
_KEEPALIVE = Struct(">QqB")
_STATUS = Struct(">cQQQqB")


class Data(NamedTuple):
    """A message of the plugin."""

    content: bytes
    """For `pgoutput.decode`."""


class Sent(NamedTuple):
    """The server has sent all that is before this place."""

    lsn: int
    """The place."""


class Waited(NamedTuple):
    """Nothing came for a while."""


class Stream:
    """Changes from a slot, on a connection made for replication. Used by one thread."""

    def __init__(self, connection: "Connection", slot: str, publication: str) -> None:
        self._pgconn: PGconn = connection.pgconn
        self._flushed = 0
        self._told = time.monotonic()
        command = (
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '\"{publication}\"')"
        )
        result = self._start(command.encode())
        if result is not None:
            raise PipelineError(
                f"the server does not stream from the slot {slot}: {said(result)}",
                "`SELECT * FROM pg_replication_slots` shows the process that uses it: end that one",
            )

    def _start(self, command: bytes) -> "PGresult | None":
        """Begin to stream; None: the stream has begun, else the server's answer."""
        from psycopg.pq import ExecStatus

        deadline = time.monotonic() + FREED_SECONDS_MAX
        while True:
            self._pgconn.send_query(command)
            self._flush()
            result = self._pgconn.get_result()
            if result is not None and result.status == ExecStatus.COPY_BOTH:
                return None
            # The server may not have noticed yet that the slot's last user was killed.
            if time.monotonic() > deadline or result is None or "is active" not in said(result):
                return result
            while self._pgconn.get_result() is not None:
                pass
            time.sleep(WAIT_SECONDS)

    def read(self) -> Iterator[Data | Sent | Waited]:
        """Messages of the server, without an end."""
        while True:
            size, data = self._pgconn.get_copy_data(1)
            if size > 0:
                content = bytes(data)
                if content[:1] == b"w":
                    yield Data(content[_DATA_HEAD:])
                else:
                    sent, _, is_wanted = _KEEPALIVE.unpack_from(content, 1)
                    if is_wanted:
                        self._tell()
                    yield Sent(sent)
            elif size == 0:
                if not self._wait():
                    yield Waited()
            else:
                raise _ended(self._pgconn.get_result())

    def confirm(self, lsn: int) -> None:
        """Note that all before this place is stored elsewhere: the server may forget it."""
        self._flushed = max(self._flushed, lsn)
        self._tell()

    def ask(self) -> None:
        """Ask the server how far it is."""
        self._tell(is_wanted=True)

    def _wait(self) -> bool:
        """Wait for the server; whether something came."""
        if time.monotonic() - self._told > STATUS_SECONDS:
            self._tell()
        ready, _, _ = select.select([self._pgconn.socket], [], [], WAIT_SECONDS)
        if ready:
            self._pgconn.consume_input()
        return bool(ready)

    def _tell(self, *, is_wanted: bool = False) -> None:
        self._told = time.monotonic()
        flushed = self._flushed
        self._pgconn.put_copy_data(_STATUS.pack(b"r", flushed, flushed, flushed, 0, is_wanted))
        self._flush()

    def _flush(self) -> None:
        while self._pgconn.flush():
            select.select([], [self._pgconn.socket], [])


def _ended(result: "PGresult | None") -> PipelineError:
    """The error: why the stream has ended, and whether a capture can go on from there."""
    from psycopg.pq import DiagnosticField

    text = f"the server ended the stream: {said(result)}"
    state = None if result is None else result.error_field(DiagnosticField.SQLSTATE)
    if state == _UNDEFINED_OBJECT:
        # The server looks for the publication as of each change, so it cannot send changes that
        # were made while there was none, even if there is one again.
        return needs_snapshot(text)
    return PipelineError(text, "start the capture again: it goes on where it was")


def said(result: "PGresult | None") -> str:
    """The server's error message, in one line."""
    if result is None or result.error_message is None:
        return "it closed the connection"
    return result.error_message.decode().strip().partition("\n")[0]
