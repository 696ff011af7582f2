"""Our corner of CBOR against cbor2, which knows all of it."""

import ast
import struct
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raftmq
from raftmq.batch import HEAD_BYTES, Flag, peek
from raftmq.batch.cbor import strict_decoder
from raftmq.batch.columns import F64, FORMATS, I64, PLAIN, U8, U32, WIDTHS, Cursor, column, vector
from raftmq.errors import CorruptRecord
from tests.batch.messages import Drawn, drawn_messages

EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, 70_000]


@pytest.mark.parametrize("tag", WIDTHS)
@pytest.mark.parametrize("size", EDGES)
def test_cbor2_reads_our_columns_and_writes_the_same(tag: int, size: int) -> None:
    content = bytes(size * WIDTHS[tag])
    item = content if tag == PLAIN else cbor2.CBORTag(tag, content)
    assert cbor2.dumps(item) == column(tag, content)
    cursor = Cursor(memoryview(column(tag, content)), 0, len(column(tag, content)))
    assert bytes(cursor.take(tag, size).content) == content
    cursor.finish()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_vectors_are_little_endian_typed_arrays(numbers: list[int]) -> None:
    tagged = cbor2.loads(vector(U32, numbers))
    assert tagged.tag == 70
    assert list(struct.unpack(f"<{len(numbers)}I", tagged.value)) == numbers


def test_columns_have_the_tags_of_rfc_8746() -> None:
    # RFC 8746 §2.1: 0b010_f_s_e_ll; f: float, s: signed, e: little-endian, ll: log2 of the width.
    for tag, letter in FORMATS.items():
        is_float, is_signed = letter == "d", letter in "iq"
        width = struct.calcsize(f"<{letter}")
        # Floats count from 2 bytes, and a byte has no order.
        log2 = width.bit_length() - (2 if is_float else 1)
        little = width > 1
        assert tag == 0b010_00000 | is_float << 4 | is_signed << 3 | little << 2 | log2


def items(data: bytes) -> Iterator[object]:
    """The items of a CBOR sequence (RFC 8742)."""
    source = BytesIO(data)
    while source.tell() < len(data):
        yield cbor2.CBORDecoder(source, read_size=1).decode()


@given(drawn_messages())
def test_everything_between_head_and_bodies_is_a_cbor_sequence(drawn: Drawn) -> None:
    payload = drawn.seal().to_bytes(queue=1)
    head = peek(payload)
    columns_end = len(payload) - head.stored_bytes
    header, *columns = items(payload[HEAD_BYTES:columns_end])
    assert isinstance(header, list)
    assert all(isinstance(item, bytes | cbor2.CBORTag) for item in columns)
    per_kind = {0: 1, 1: 1, 2: 1, 3: 2, 4: 3, 5: 2}
    expected = 1
    expected += 3 * bool(head.flags & Flag.KEYS) + 3 * bool(head.flags & Flag.TAGS)
    expected += bool(head.flags & Flag.DELIVERY) + bool(head.flags & Flag.CREATED)
    expected += sum(per_kind[kind] + nullable for _, kind, nullable in header)
    assert len(columns) == expected


@given(st.binary(max_size=40), st.sampled_from([PLAIN, U8, U32, I64, F64]), st.integers(0, 5))
def test_cursor_agrees_with_cbor2_on_random_bytes(data: bytes, tag: int, count: int) -> None:
    cursor = Cursor(memoryview(data), 0, len(data))
    try:
        taken = bytes(cursor.take(tag, count).content)
    except CorruptRecord:
        return
    item = cbor2.loads(data)
    assert item == taken if tag == PLAIN else (item.tag, item.value) == (tag, taken)
    assert data.startswith(cbor2.dumps(item)), "the shortest form"


@pytest.mark.parametrize(
    "data",
    [
        cbor2.dumps(cbor2.CBORTag(35, "a+")),
        cbor2.dumps(cbor2.CBORTag(36, "From: x")),
        cbor2.dumps(2**64),
        cbor2.dumps(cbor2.CBORTag(70, b"")),
        cbor2.dumps(cbor2.CBORTag(12_345, 0)),
        b"\x9f\xff",
        b"\x5f\xff",
        b"\xa2\x61a\x01\x61a\x02",
        b"\xa1\x01\x02",
        b"\x81" * 33 + b"\x00",
        b"\x61\xff",
        b"\x5b" + b"\xff" * 8,
        b"\x9b" + b"\xff" * 8,
        b"",
    ],
)
def test_strict_decoder_refuses(data: bytes) -> None:
    with pytest.raises(cbor2.CBORError):
        strict_decoder(BytesIO(data)).decode()


@given(st.binary(max_size=60))
def test_strict_decoder_raises_one_family_of_errors(data: bytes) -> None:
    try:
        strict_decoder(BytesIO(data)).decode()
    except cbor2.CBORError:
        return


def plain_only(value: object) -> bool:
    """Whether the value has only types that `cbor2.dumps` writes in the usual form."""
    if isinstance(value, list | tuple):
        return all(map(plain_only, value))
    return value is None or type(value) in (bool, int, float, str, bytes)


@given(drawn_messages())
def test_no_memoryview_array_or_range_reaches_cbor2(drawn: Drawn) -> None:
    seen: list[object] = []

    def spy(value: object) -> bytes:
        seen.append(value)
        return real(value)

    real = cbor2.dumps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cbor2, "dumps", spy)
        payload = drawn.seal().to_bytes(queue=1)
    assert all(map(plain_only, seen))
    assert len(seen) == bool(peek(payload).flags & Flag.PROPERTIES)
    assert not any(body and body in repr(seen).encode() for body in drawn.bodies if len(body) > 20)


def test_cbor2_writes_in_the_two_places_that_are_tested() -> None:
    root = Path(raftmq.__file__).parent
    callers = set()
    for folder in ("batch", "wire"):
        for file in (root / folder).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                name = node.attr if isinstance(node, ast.Attribute) else ""
                name = node.id if isinstance(node, ast.Name) else name
                if name in {"dumps", "dump", "CBOREncoder", "encode_to_bytes"}:
                    callers.add(f"{folder}/{file.name}")
    assert callers == {"batch/encode.py", "wire/codec.py"}


def test_importing_batch_loads_no_numpy_and_no_compressor() -> None:
    script = "import sys, raftmq.batch; print({'numpy', 'zstandard', 'lz4'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "set()"
