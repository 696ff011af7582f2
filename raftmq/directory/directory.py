"""A member of the directory: it puts its own rows in, and sees those of all members.

    wanted     {"beat": …, "node": …, "client 7": …}    of this member, by its owner
    confirmed  what the others have, as far as known    the difference goes out at each beat
    rows       {"3 client 7": [round, value], …}        of all members, as they have come here

A member writes its own rows alone, so no two members ever contradict each other, and a blank epoch
fills again from what each of them wants. Each member has a *beat*, a row that changes all the time:
a member whose beat stands still is not present, and its rows are not shown.

pysyncobj may lose a call, and under load its members' states may drift apart (decision 0048). So
all rows go out again every `ROUND_SECONDS`, each with the number of that *round*, and rows that are
two rounds old are not shown: states that drifted apart agree after two rounds.

Invariants:
- No call blocks, and no message of another member makes one raise.
- A member publishes at most `ROWS_MAX` rows.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import cbor2

from raftmq.errors import ProtocolError
from raftmq.wire import directory as wire

from .epoch import Epoch
from .leases import Leases
from .replica import Replica

TICK_SECONDS = 0.1
"""Between two calls of `tick`."""
BEAT_SECONDS = 2.0
"""Between two beats of a member, and so the longest time until a changed row goes out."""
SILENT_SECONDS = 10.0
"""A member whose beat stands still for this long is not present."""
ROUND_SECONDS = 300.0
"""Between two rounds."""
BUILD_SECONDS = 4 * BEAT_SECONDS
"""In this time after the first leader of an epoch all members have put their rows in, even if a
call was lost."""
RESEND_SECONDS = 2 * BEAT_SECONDS
"""A call that has no answer after this time is made again."""
CHUNK_BYTES = 16 * 1024
"""About the most bytes of rows in one call."""
ROWS_MAX = 10_000

_BEAT = "beat"
_GONE = object()
"""In place of a row's value: the row is removed."""
_logger = logging.getLogger(__name__)


class Row(NamedTuple):
    """A row of a member that is present."""

    member: int
    key: str
    value: Any


class _Sent(NamedTuple):
    """A row in a call that is under way."""

    value: Any
    at: float
    """When the call was made."""


class _Beat(NamedTuple):
    """The last beat of a member that came here."""

    number: int
    at: float
    """When it came, by this member's clock."""


class Directory:
    """One member. Its owner calls `tick` every `TICK_SECONDS`."""

    def __init__(
        self,
        own: int,
        *,
        boot: int,
        now: Callable[[], float],
        wall: Callable[[], float],
        send: Callable[[int, wire.DirectoryMessage], bool],
        is_connected: Callable[[int], bool],
    ) -> None:
        """
        Args:
            own: this member's number.
            boot: see `Epoch`.
            now: a clock that only goes forward, in seconds.
            wall: wall-clock time in seconds, about equal at all members.
            send: sends a message to a member; False if it was dropped.
            is_connected: whether a member can be reached now.
        """
        self._own = own
        self._now = now
        self._send = send
        self._is_connected = is_connected
        self._epoch = Epoch(own, boot)
        self._wanted: dict[str, Any] = {}
        self._confirmed: dict[str, Any]
        self._is_counted: bool
        self._sent: dict[str, _Sent]
        self._beat_due: float
        self._beats: dict[int, _Beat] = {}
        self._beat = 0
        self._round_due = now()
        self._round = 0
        self._led_since: float | None
        self.faults = 0
        """Errors of pysyncobj, each of which made a new epoch."""
        self.leases = Leases(str(own), now, wall)
        """The leases that this member has."""
        self._replica = self._enter()

    # What the owner tells

    def follow(self, members: Iterable[int]) -> None:
        """Have these members, this one among them."""
        if self._epoch.follow(members):
            self._begin()

    def publish(self, rows: Mapping[str, Any]) -> None:
        """Replace this member's rows; those beyond `ROWS_MAX` are dropped."""
        self._wanted = dict(islice(rows.items(), ROWS_MAX))

    def receive(self, sender: int, heard: wire.DirectoryMessage) -> None:
        """Act on a message of another member."""
        if sender not in self._epoch.boots:
            # It was removed, or is not known here yet: its epoch says nothing.
            return
        boots = {each.member: each.boot for each in heard.boots}
        if self._epoch.learn(boots):
            self._begin()
        message = heard.message
        if boots != self._epoch.boots:
            # Members that differ on who is a member would answer each other for ever.
            if message is not None:
                self._send(sender, wire.DirectoryMessage(self._epoch.listed, None))
        elif isinstance(message, wire.Behind):
            # The leader has compacted what this member lacks, and snapshots do not travel.
            self._renew()
        elif message is not None:
            self._guard(partial(self._replica.receive, sender, message))

    def tick(self) -> None:
        """Run elections, appends and calls that are due."""
        self._guard(self._replica.tick)
        now, leader = self._now(), self._replica.leader
        if not leader:
            self._led_since = None
            return
        if self._led_since is None:
            self._led_since = now
        self._guard(lambda: self.leases.tick(self._replica.locks))
        if now >= self._beat_due:
            self._beat_due = now + BEAT_SECONDS
            self._guard(self._put_rows)
            self._guard(self._note_beats)

    def close(self) -> None:
        """Take no further part."""
        self._replica.close()

    # What the owner asks

    @property
    def leader(self) -> int:
        """The member that leads; 0: none is known."""
        return self._replica.leader

    @property
    def starts(self) -> int:
        """Members that have entered since the directory was last built again, about."""
        return self._replica.starts

    @property
    def members(self) -> list[int]:
        """All members, present or not."""
        return list(self._epoch.boots)

    @property
    def whole_seconds(self) -> float:
        """Seconds since the rows of all present members must be here; 0: some may be missing."""
        if self._led_since is None:
            return 0.0
        return max(0.0, self._now() - self._led_since - BUILD_SECONDS)

    def is_present(self, member: int) -> bool:
        """Whether a member was heard lately."""
        beat = self._beats.get(member)
        is_heard = beat is not None and self._now() - beat.at < SILENT_SECONDS
        return member == self._own or is_heard

    def rows(self) -> Iterator[Row]:
        """The rows of all members that are present, this one's as it wants them."""
        yield from (Row(self._own, key, value) for key, value in self._wanted.items())
        found = self._replica.rows
        beats = {m: _held(found.get(f"{m} {_BEAT}")) for m in self._epoch.boots}
        rounds = {m: beat.round if beat is not None else 0 for m, beat in beats.items()}
        # The rows of a new round come in several calls: until the next one the last round counts.
        present = {str(m): m for m in rounds if m != self._own and self.is_present(m)}
        for place, row in found.items():
            owner, _, key = str(place).partition(" ")
            member, held = present.get(owner), _held(row)
            if member is None or held is None or key == _BEAT:
                continue
            if held.round >= rounds[member] - 1:
                yield Row(member, key, held.value)

    # Epochs

    def _begin(self) -> None:
        """Leave the epoch for a new one."""
        self._replica.close()
        self._replica = self._enter()

    def _enter(self) -> Replica:
        """A blank part in the epoch."""
        boots = self._epoch.listed

        def send(member: int, message: wire.ReplicaMessage) -> bool:
            return self._send(member, wire.DirectoryMessage(boots, message))

        self._confirmed, self._sent = {}, {}
        self._is_counted = False
        self._led_since = None
        self._beat_due = self._now()
        self.leases.enter()
        return Replica(self._own, self._epoch.boots, send, self._is_connected)

    def _renew(self) -> None:
        self._epoch.renew()
        self._begin()

    def _guard(self, act: Callable[[], None]) -> None:
        """Call into pysyncobj. An error in it may leave this member's part broken."""
        try:
            act()
        except ProtocolError as error:
            _logger.warning("directory: a message is passed over: %s", error)
        except Exception:
            self.faults += 1
            _logger.exception("directory: this member begins a new epoch")
            self._renew()

    # Rows

    def _put_rows(self) -> None:
        """Tell the others what has changed."""
        now = self._now()
        if now >= self._round_due:
            self._begin_round(now)
        if not self._is_counted:
            self._replica.count_start(self._counted)
        self._beat += 1
        wanted, confirmed = {_BEAT: self._beat, **self._wanted}, self._confirmed
        changed = {k: value for k, value in wanted.items() if confirmed.get(k, _GONE) != value}
        gone = {key: _GONE for key in confirmed if key not in wanted}
        due = {
            k: value for k, value in (changed | gone).items() if not self._is_sent(k, value, now)
        }
        self._sent |= {key: _Sent(value, now) for key, value in due.items()}
        # The call may be made although its answer is lost: until then the others have anything.
        confirmed |= dict.fromkeys((key for key in due if key in wanted), None)
        for chunk in _chunks({key: value for key, value in due.items() if key in wanted}):
            rows = {f"{self._own} {key}": [self._round, value] for key, value in chunk.items()}
            self._replica.put(rows, partial(self._done, confirmed, chunk))
        for chunk in _chunks({key: value for key, value in due.items() if key in gone}):
            places = [f"{self._own} {key}" for key in chunk]
            self._replica.drop(places, partial(self._done, confirmed, chunk))

    def _begin_round(self, now: float) -> None:
        """Have all rows go out again, and remove those whose removal was lost."""
        self._round_due = now + ROUND_SECONDS
        self._round += 1
        begin = f"{self._own} "
        found = [key for key in map(str, self._replica.rows) if key.startswith(begin)]
        self._confirmed = dict.fromkeys((key.removeprefix(begin) for key in found), None)
        self._sent = {}

    def _counted(self, _: Any, reason: int) -> None:
        self._is_counted = self._is_counted or not reason

    def _is_sent(self, key: str, value: Any, now: float) -> bool:
        """Whether a call that puts this row is under way. One without an answer is lost, as the
        leader may have left or not yet entered this epoch."""
        sent = self._sent.get(key)
        return sent is not None and sent.value == value and now - sent.at < RESEND_SECONDS

    def _done(
        self, confirmed: dict[str, Any], rows: Mapping[str, Any], _: Any, reason: int
    ) -> None:
        """A call for these rows was answered; `confirmed` is that of its epoch and round."""
        for key, value in rows.items():
            sent = self._sent.get(key)
            if sent is not None and sent.value == value:
                del self._sent[key]
            if reason:
                continue
            if value is _GONE:
                confirmed.pop(key, None)
            else:
                confirmed[key] = value

    def _note_beats(self) -> None:
        now, rows = self._now(), self._replica.rows
        for member in self._epoch.boots:
            beat, before = _held(rows.get(f"{member} {_BEAT}")), self._beats.get(member)
            if beat is not None and (before is None or before.number != beat.value):
                self._beats[member] = _Beat(beat.value, now)


class _Held(NamedTuple):
    """A row as it stands in the map."""

    round: int
    value: Any


def _held(row: Any) -> _Held | None:
    """A row of the map; None: there is none, or no member puts such a row."""
    match row:
        case [int(number), value]:
            return _Held(number, value)
    return None


def _chunks(rows: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows in parts of about `CHUNK_BYTES`; a row alone may be larger."""
    chunk: dict[str, Any] = {}
    size = 0
    for key, value in rows.items():
        chunk[key] = value
        size += len(cbor2.dumps([key, None if value is _GONE else value]))
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk
