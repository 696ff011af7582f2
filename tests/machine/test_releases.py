"""Batches that brokers make of delayed messages, whatever the batches are that they come from."""

from array import array
from random import Random

import pytest

from raftmq.batch import Batch, Compression, Flag, admit, encode
from raftmq.batch.columns import I32, I64, vector
from raftmq.errors import CorruptRecord, Reason
from raftmq.log.record import Kind, Record
from raftmq.log.record import encode as encode_record
from raftmq.machine import releases
from raftmq.machine.delay_queue import Rows
from raftmq.machine.delays import POSITION_BITS
from raftmq.machine.releases import copy, release
from raftmq.results import Refused
from tests.batch.test_admit import is_admitted, wide_samples
from tests.batch.test_corrupt import EMPTY, made, mutated

from .delay_log import DelayLog


def record_of(payload: bytes, index: int = 5) -> Record:
    """A batch in the log."""
    return encode_record(payload, index=index, term=1, kind=Kind.BATCH, timestamp=0, chain=0)


def rows_of(*places: tuple[int, int]) -> Rows:
    """Rows that are due, by record and position."""
    numbers = array("q", range(1, len(places) + 1))
    stand = array("q", [(index << POSITION_BITS) + at for index, at in places])
    return Rows(array("q", [1] * len(places)), numbers, stand)


def test_whatever_is_admitted_can_be_released_and_copied() -> None:
    random = Random(20_261_123)
    originals = wide_samples()
    released = 0
    for _ in range(2_000):
        payload = mutated(random, random.choice(originals))
        if not is_admitted(payload):
            continue
        count = min(len(Batch.decode(payload)), 40)
        rows = rows_of(*[(5, at) for at in range(count)])
        Batch.decode(release(7, rows, {5: record_of(payload)})).messages()
        Batch.decode(copy(7, rows, {5: record_of(payload)}).batch).messages()
        released += 1
    assert released > 100


@pytest.mark.parametrize("created", [-1, 1 << 62])
def test_batch_with_a_time_that_no_encoder_takes_is_refused_and_still_released(
    created: int,
) -> None:
    payload = made([EMPTY, vector(I64, [created, 5])], flags=Flag.CREATED, count=2)
    with pytest.raises(CorruptRecord, match="a time is out of range"):
        admit(payload, bytes_max=1 << 20)
    # As older brokers have stored it.
    batch = Batch.decode(release(7, rows_of((5, 0), (5, 1)), {5: record_of(payload)}))
    assert len(batch) == 2


def test_batch_whose_properties_no_release_could_read_is_not_delayed() -> None:
    log = DelayLog()
    sealed = encode([b"a"], deliver_at_ms=[5_000], props=[{"n": 2**40}])
    payload = bytearray(sealed.to_bytes(queue=7, producer=1, first_sequence=0))
    # The tag of the column: i32 in place of i64.
    at = bytes(payload).index(bytes((0xD8, I64, 0x48)) + (2**40).to_bytes(8, "little"))
    payload[at + 1] = I32
    (result,) = log.add(Kind.BATCH, bytes(payload))
    assert isinstance(result, Refused)
    assert result.reason is Reason.CORRUPT_BATCH


def test_large_batches_are_decoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    batch_of = releases.batch_of

    def counted(record: Record) -> Batch:
        decoded.append(record.index)
        return batch_of(record)

    monkeypatch.setattr(releases, "batch_of", counted)
    bodies = [b"now", bytes(3 << 20)]
    payload = encode(bodies, compression=Compression.ZSTD).to_bytes(queue=7)
    assert len(payload) < 10_000
    records = {index: record_of(payload, index) for index in range(1, 101)}
    rows = rows_of(*[(index, 0) for index in records])
    batch = Batch.decode(release(7, rows, records))
    assert [bytes(body) for body in batch.bodies] == [b"now"] * len(batch)
    assert 1 <= len(batch) == len(decoded) < 10


def test_release_of_large_properties_is_no_longer_than_a_batch_may_be() -> None:
    random = Random(20_261_123)
    payload = encode(
        [b""] * 4, props=[{"s": random.randbytes(40_000)} for _ in range(4)], base_ms=1
    ).to_bytes(queue=7)
    records = {index: record_of(payload, index) for index in range(1, 41)}
    rows = rows_of(*[(index, at) for index in records for at in range(4)])
    for bytes_max in (100_000, 200_000, 16 << 20):
        made_of = [
            release(7, rows, records, bytes_max=bytes_max),
            copy(7, rows, records, bytes_max=bytes_max).batch,
        ]
        for batch in made_of:
            admit(batch, bytes_max=bytes_max)
            assert len(batch) < 2 * releases.BYTES_MAX
    # One message alone has its length: it was taken so.
    assert len(Batch.decode(release(7, rows, records, bytes_max=10_000))) == 1
