"""A part of a batch is a batch that holds exactly these messages, whatever the batch holds."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.batch import (
    BATCH_BYTES_MAX,
    HEAD_BYTES,
    Batch,
    Compression,
    Flag,
    PropertyKind,
    Value,
    admit,
    cut,
    encode,
    peek,
)
from raftmq.batch.columns import U8, U32, codes, column, joined, vector
from raftmq.batch.layout import checksum
from raftmq.errors import CorruptRecord
from tests.batch.messages import Drawn, drawn_messages, rows_of
from tests.batch.test_corrupt import made, mutated, samples, with_property

COUNT = 300
EVERYTHING: dict[str, Any] = {
    "keys": [None if i % 5 == 0 else f"key-{i}" for i in range(COUNT)],
    "tags": [None if i % 7 == 0 else f"tag {i % 30}" for i in range(COUNT)],
    "props": [
        {
            "i": i,
            "f": i / 2,
            "b": i % 2 == 0,
            "t": f"ä{i}",
            "c": f"c{i % 40}",
            "y": b"\xff" * (i % 3),
        }
        if i % 3
        else {"i": f"mixed {i}"}
        for i in range(COUNT)
    ],
    "deliver_at_ms": [i % 2 * 10**12 for i in range(COUNT)],
    "created_ms": [10**12 + i for i in range(COUNT)],
    "base_ms": 10**12,
}
BODIES = [b"body %d " % i * (i % 4) for i in range(COUNT)]


def admitted(payload: bytes) -> Batch:
    """The batch, after the check that a broker makes and the slow one."""
    admit(payload, bytes_max=BATCH_BYTES_MAX)
    batch = Batch.decode(payload)
    batch.validate()
    return batch


def check_cut(payload: bytes, start: int, stop: int) -> bytes:
    """A cut has the messages of its range, and a head that says so."""
    part = cut(payload, start, stop)
    whole, batch = Batch.decode(payload), admitted(part)
    assert rows_of(batch) == rows_of(whole)[start:stop]
    if whole.key_hashes is not None and batch.key_hashes is not None:
        assert batch.key_hashes.tolist() == whole.key_hashes[start:stop].tolist()
    before, head = whole.head, batch.head
    assert (head.queue, head.producer, head.epoch) == (before.queue, before.producer, before.epoch)
    assert head.first_sequence == before.first_sequence + start
    assert head.count == stop - start
    assert head.base_ms == before.base_ms
    return part


@given(
    drawn_messages(),
    st.sampled_from(Compression),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**63 - 100),
    st.data(),
)
def test_cut_has_the_messages_of_its_range(
    drawn: Drawn, compression: Compression, number: int, first_sequence: int, data: st.DataObject
) -> None:
    sealed = drawn.seal(compression=compression)
    payload = sealed.to_bytes(
        queue=number, producer=number ^ 1, epoch=number & 0xFFFF, first_sequence=first_sequence
    )
    start = data.draw(st.integers(0, sealed.count - 1), "start")
    stop = data.draw(st.integers(start + 1, sealed.count), "stop")
    part = check_cut(payload, start, stop)
    assert cut(memoryview(payload), start, stop) == part


@given(drawn_messages(max_count=12), st.data())
def test_cut_of_a_cut_is_the_smaller_cut(drawn: Drawn, data: st.DataObject) -> None:
    payload = drawn.seal().to_bytes(queue=1, first_sequence=5)
    count = len(drawn.bodies)
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    inner = data.draw(st.integers(start, stop - 1))
    end = data.draw(st.integers(inner + 1, stop))
    twice = cut(cut(payload, start, stop), inner - start, end - start)
    assert rows_of(admitted(twice)) == drawn.rows()[inner:end]
    assert peek(twice).first_sequence == 5 + inner


@pytest.mark.parametrize("compression", Compression)
def test_every_range_of_a_batch_with_every_kind_of_column(compression: Compression) -> None:
    payload = encode(BODIES, **EVERYTHING, compression=compression).to_bytes(queue=1)
    assert {column.kind for column in Batch.decode(payload).columns} == set(PropertyKind)
    edges = [0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 298, 299, 300]
    for start in edges:
        for stop in edges:
            if start < stop:
                check_cut(payload, start, stop)


def test_whole_range_is_the_payload_itself() -> None:
    payload = encode(BODIES, compression=Compression.LZ4).to_bytes(queue=1)
    assert cut(payload, 0, COUNT) is payload
    assert cut(memoryview(payload), 0, COUNT) == payload


def test_cut_of_a_compressed_batch_is_raw() -> None:
    payload = encode(BODIES, compression=Compression.ZSTD).to_bytes(queue=1)
    assert peek(payload).flags & Flag.ZSTD
    assert peek(check_cut(payload, 10, 20)).flags == 0


def test_columns_without_a_value_in_the_range_are_left_out() -> None:
    payload = encode(
        [b"x"] * 4,
        keys=["k", None, None, None],
        tags=["t", None, None, None],
        props=[{"n": 1, "s": "a"}, {}, {}, {"n": 2}],
        deliver_at_ms=[5, 0, 0, 0],
        created_ms=[8, 7, 7, 7],
        base_ms=7,
    ).to_bytes(queue=1)
    assert check_cut(payload, 1, 3) == encode([b"x"] * 2, base_ms=7).to_bytes(
        queue=1, first_sequence=1
    )
    last = Batch.decode(check_cut(payload, 1, 4))
    assert last.head.flags == Flag.PROPERTIES
    assert [each.name for each in last.columns] == ["n"]


def test_dictionaries_are_cut_to_what_is_used() -> None:
    tags = [f"a tag of some length {i}" for i in range(COUNT)]
    props = [{"city": f"a city with a long name {i // 2}"} for i in range(COUNT)]
    payload = encode([b""] * COUNT, tags=tags, props=props).to_bytes(queue=1)
    assert len(payload) > 10_000
    part = check_cut(payload, 280, 283)
    batch = Batch.decode(part)
    assert batch.tags.dictionary == tags[280:283]
    assert batch.columns[0].kind is PropertyKind.TEXT_CODED
    assert len(part) < HEAD_BYTES + 250


def test_codes_are_as_narrow_as_the_dictionary_that_is_left() -> None:
    payload = encode([b""] * COUNT, tags=[f"t{i}" for i in range(COUNT)]).to_bytes(queue=1)
    assert Batch.decode(payload).tags.codes.itemsize == 2
    assert Batch.decode(check_cut(payload, 0, 256)).tags.codes.itemsize == 2
    assert Batch.decode(check_cut(payload, 0, 255)).tags.codes.itemsize == 1


def test_cut_of_a_large_batch_is_small() -> None:
    payload = encode([bytes(100)] * 8000, keys=["key"] * 8000, tags=["tag"] * 8000).to_bytes(
        queue=1
    )
    assert len(check_cut(payload, 7999, 8000)) < 250
    assert len(check_cut(payload, 4000, 4100)) < 13_000


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (made([vector(U32, [0, 0])])[:70], "cut inside its head"),
        (made([]), "no column of tag 70"),
        (made([vector(U32, [1, 0])], body=b"two"), "add up to 1, the content has 3"),
        (made([vector(U32, [0, 9])], body=b"two"), "add up to 9, the content has 3"),
        (made([vector(U32, [0, 0]), b"x"]), "1 bytes follow the last column"),
        (
            made(
                [vector(U32, [0, 0]), joined([b"a", b"b"]), codes([3, 0], 4)],
                flags=Flag.TAGS.value,
            ),
            "code 3 where 2 is the highest",
        ),
        (
            made(
                [vector(U32, [0, 0]), vector(U32, [9, 9]), column(0, b"a"), codes([1, 0], 4)],
                flags=Flag.TAGS.value,
            ),
            "add up to 18, the content has 1",
        ),
        (with_property(4, joined([b"a"]), codes([1, 0], 2)), "code 1 where 0 is the highest"),
        (with_property(4, joined([]), codes([0, 0], 1)), "code 0 where -1 is the highest"),
        (with_property(3, vector(U32, [9, 9]), column(0, b"a")), "add up"),
        (with_property(2, column(U8, b"\x00")), "1 bytes where 2 are needed"),
        (made([vector(U32, [0, 0])], header=b"\x81\x80"), "header and flags do not agree"),
    ],
)
def test_what_cannot_be_cut_is_corrupt(payload: bytes, match: str) -> None:
    with pytest.raises(CorruptRecord, match=match):
        cut(payload, 0, 1)


def test_range_beyond_the_batch_is_corrupt() -> None:
    payload = encode([b"x"] * 3).to_bytes(queue=1)
    with pytest.raises(CorruptRecord, match="batch of 3 messages where there should be 4"):
        cut(payload, 1, 4)


def test_sequence_numbers_beyond_63_bits_are_corrupt() -> None:
    payload = encode([b"x"] * 3).to_bytes(queue=1, first_sequence=2**63 - 2)
    assert peek(cut(payload, 1, 2)).first_sequence == 2**63 - 1
    with pytest.raises(CorruptRecord, match="sequence numbers exceed 63 bits"):
        cut(payload, 2, 3)


def test_cut_that_would_not_fit_into_a_batch_is_corrupt() -> None:
    large = bytes(BATCH_BYTES_MAX - 5000)
    payload = encode([large, b"", b""], compression=Compression.ZSTD).to_bytes(queue=1)
    assert len(payload) < 100_000
    # A batch of keys that fit only as long as the bodies are compressed: brokers took it once.
    keys = [column(U32, bytes(12)), vector(U32, [len(large), 0, 0])]
    keys += [vector(U32, [4000, 4000, 0]), column(0, b"k" * 8000)]
    stored = payload[-peek(payload).stored_bytes :]
    flags = Flag.ZSTD.value | Flag.KEYS.value
    batch = made(keys, flags=flags, count=3, body=stored, body_bytes=len(large))
    with pytest.raises(CorruptRecord, match="bytes with raw bodies"):
        admit(batch, bytes_max=BATCH_BYTES_MAX)
    with pytest.raises(CorruptRecord, match="longer than 33554432 bytes"):
        cut(batch, 0, 2)
    assert peek(cut(batch, 1, 3)).count == 2


def outcome(act: Callable[[], object]) -> object:
    """The result of `act`; None if the bytes are corrupt. No other error may be raised."""
    try:
        return act()
    except CorruptRecord:
        return None


def test_mutated_batches_are_cut_or_corrupt() -> None:
    random_ = random.Random(20_261_121)
    originals = samples()
    cuts = refused = agreed = 0
    for _ in range(8_000):
        payload = mutated(random_, random_.choice(originals))
        head = outcome(lambda payload=payload: peek(payload))  # type: ignore[misc]
        count = getattr(head, "count", 1)
        start = random_.randrange(count)
        stop = random_.randint(start + 1, count)
        part = outcome(lambda: cut(payload, start, stop))  # noqa: B023
        rows = outcome(lambda: rows_of(Batch.decode(payload)))  # noqa: B023
        if part is None:
            refused += 1
            # A batch that can be read can be cut.
            assert rows is None
            continue
        cuts += 1
        assert isinstance(part, bytes)
        assert peek(part).crc == checksum(part)
        if isinstance(rows, list):
            agreed += 1
            # As text: damage may have made a NaN, which equals nothing.
            assert repr(rows_of(Batch.decode(part))) == repr(rows[start:stop])
    assert refused > 2_000
    assert cuts > agreed > 500


def cpu_seconds(act: Callable[[], object], times: int) -> float:
    """The least of several runs."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(times):
            act()
        best = min(best, time.process_time() - start)
    return best / times


def test_cutting_is_ten_times_faster_than_decoding_and_encoding() -> None:
    keys = [f"key-{i % 50}" for i in range(8000)]
    props: list[dict[str, Value]] = [{"n": i, "city": f"c{i % 7}"} for i in range(8000)]
    payload = encode([bytes(100)] * 8000, keys=keys, props=props).to_bytes(queue=1)

    def again() -> bytes:
        batch = Batch.decode(payload, check=False)
        messages = batch.messages()[4000:4100]
        return encode([m.body for m in messages], keys=[m.key for m in messages]).to_bytes(queue=1)

    # Measured: about 60.
    assert cpu_seconds(again, 2) > 10 * cpu_seconds(lambda: cut(payload, 4000, 4100), 100)


def test_column_of_a_range_has_the_values_of_its_messages() -> None:
    batch = Batch.decode(encode(BODIES, **EVERYTHING).to_bytes(queue=1))
    assert {column.kind for column in batch.columns} == set(PropertyKind)
    for start, stop in [(0, COUNT), (0, 1), (1, 2), (17, 18), (100, 203), (COUNT - 1, COUNT)]:
        for whole in batch.columns:
            part = whole.between(start, stop)
            assert part.to_list() == whole.to_list()[start:stop]
            filled: list[dict[str, Value]] = [{} for _ in range(start, stop)]
            part.fill(filled)
            assert [row.get(whole.name) for row in filled] == part.to_list()
            if part.present is not None:
                given = [value is not None for value in part.to_list()]
                assert part.present.tolist() == given
                assert len(part.values) == sum(given)


def test_column_that_cannot_be_read_cannot_be_read_in_part() -> None:
    payload = with_property(PropertyKind.TEXT.value, joined([b"a", b"\xff"]))
    (whole,) = Batch.decode(payload).columns
    part = whole.between(0, 1)
    for read in (whole.check, part.check, part.to_list):
        with pytest.raises(CorruptRecord, match="UTF-8"):
            read()
