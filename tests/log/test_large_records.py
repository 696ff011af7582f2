"""The checksum of a large record is taken through a view, that of a small one through a copy."""

import tracemalloc

import pytest

from raftmq.errors import CorruptRecord
from raftmq.log.record import _VIEW_BYTES_MIN, HEADER_BYTES, Kind, decode, encode


@pytest.mark.parametrize("size", [_VIEW_BYTES_MIN - 1, _VIEW_BYTES_MIN, 1024 * 1024])
def test_flip_of_any_end_of_a_record_is_refused(size: int) -> None:
    payload = bytes(size - HEADER_BYTES)
    record = encode(payload, index=1, term=1, kind=Kind.BATCH, timestamp=5, chain=0)
    assert decode(record.encoded) == record
    for position in (0, 3, HEADER_BYTES - 5, HEADER_BYTES, size - 1):
        damaged = bytearray(record.encoded)
        damaged[position] ^= 1
        with pytest.raises(CorruptRecord, match="CRC-32C"):
            decode(bytes(damaged))


@pytest.mark.parametrize("size", [80, 1000, 20_000])
def test_payloads_that_wait_to_be_sent_take_little_more_than_they_count(size: int) -> None:
    def held() -> list[bytes | memoryview]:
        return [
            encode(bytes(size), index=n, term=1, kind=Kind.BATCH, timestamp=0, chain=0).held_payload
            for n in range(1, 500)
        ]

    tracemalloc.start()
    try:
        kept = held()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert sum(map(len, kept)) == 499 * size
    # A view of each small record took 5.9 times its length.
    assert taken <= 499 * (size + 60) * 1.05 if size < 16_384 else taken <= 499 * size * 1.05
