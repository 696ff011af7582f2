"""The cost per message of encoding and decoding a batch, and of cutting frames; a table on stdout.

    python -m bench.cores.batch [COUNT [BODY_BYTES]]

Each figure is the best of several runs, so that other work on the machine disturbs it little.
"""

import sys
import timeit
from collections.abc import Callable

import cbor2

from raftmq.batch import Batch, BatchBuilder, Compression, Row, encode, peek, verify
from raftmq.wire.codec import pack, unpack
from raftmq.wire.frame import FrameParser, encode_frame
from raftmq.wire.messages import Produced


def best_us(work: Callable[[], object]) -> float:
    """Microseconds that `work` takes at its fastest."""
    timer = timeit.Timer(work)
    number, seconds = timer.autorange()
    # So that a run takes about a tenth of a second.
    number = max(1, int(number * 0.1 / max(seconds, 1e-9)))
    return min(timer.repeat(7, number)) / number * 1e6


def show(name: str, work: Callable[[], object], count: int) -> None:
    """Print one row: microseconds a batch and a message."""
    us = best_us(work)
    print(f"{name:48} {us:10.2f} us {us / count:9.3f} us/message")


def batches(count: int, size: int) -> None:
    """Encode and decode batches of `count` messages of `size` bytes."""
    bodies = [i.to_bytes(4, "big") * (size // 4) for i in range(count)]
    keys = [f"order-{i:06}" for i in range(count)]
    tags = [("paid", "shipped", "lost", None)[i % 4] for i in range(count)]
    props: list[Row] = [{"buyer": i, "price": i * 0.5, "city": f"c{i % 10}"} for i in range(count)]
    sparse = [{"buyer": i} if i % 3 else None for i in range(count)]

    show("encode bodies", lambda: encode(bodies).to_bytes(queue=1), count)
    show("encode bodies, keys", lambda: encode(bodies, keys=keys).to_bytes(queue=1), count)
    show("encode bodies, tags", lambda: encode(bodies, tags=tags).to_bytes(queue=1), count)
    show("encode bodies, 3 properties", lambda: encode(bodies, props=props), count)
    show("encode bodies, sparse property", lambda: encode(bodies, props=sparse), count)
    show("encode bodies, lz4", lambda: encode(bodies, compression=Compression.LZ4), count)
    show("encode bodies, zstd", lambda: encode(bodies, compression=Compression.ZSTD), count)

    def build(with_all: bool) -> None:
        builder = BatchBuilder()
        for i in range(count):
            if with_all:
                builder.append(bodies[i], key=keys[i], tag=tags[i], props=props[i])
            else:
                builder.append(bodies[i])
        builder.build(queue=1, base_ms=0)

    show("builder, bodies", lambda: build(False), count)
    show("builder, keys, tags, 3 properties", lambda: build(True), count)
    sealed = encode(bodies, keys=keys, tags=tags, props=props)
    show("stamp a sealed batch", lambda: sealed.stamp(queue=1, first_sequence=5), count)

    plain = encode(bodies).to_bytes(queue=1)
    full = sealed.to_bytes(queue=1)
    packed = encode(bodies, compression=Compression.ZSTD).to_bytes(queue=1)
    show("peek", lambda: peek(full), count)
    show("verify", lambda: verify(full), count)
    show("decode", lambda: Batch.decode(full), count)
    show("decode, bodies", lambda: Batch.decode(plain).bodies, count)
    show("decode, zstd, bodies", lambda: Batch.decode(packed).bodies, count)
    show("decode, messages of bodies", lambda: Batch.decode(plain).messages(), count)
    show("decode, messages of all", lambda: Batch.decode(full).messages(), count)
    show("decode, validate all", lambda: Batch.decode(full).validate(), count)
    show("tag filter", lambda: (Batch.decode(full, check=False).tags.codes == 1).sum(), count)
    rows = [[body, key, tag] for body, key, tag in zip(bodies, keys, tags, strict=True)]
    show("for comparison: cbor2 rows of body, key, tag", lambda: cbor2.dumps(rows), count)
    print(f"{'bytes: bodies, with all columns, zstd':48} {len(plain)} {len(full)} {len(packed)}")


def frames() -> None:
    """Encode and parse small frames and a large one."""
    answer = Produced(12_345, 1_700_000_000_000)
    header = pack(answer)
    stream = b"".join(encode_frame(0x82, 7, header)) * 100

    def parse(pieces: list[bytes]) -> None:
        parser = FrameParser(40 * 1024 * 1024)
        for piece in pieces:
            parser.feed(piece)
            for _ in parser.frames():
                pass

    large = b"".join(encode_frame(2, 7, header, [bytes(16 * 1024 * 1024)]))
    pieces = [large[i : i + 65_536] for i in range(0, len(large), 65_536)]
    show("pack a header of 3 fields", lambda: pack(answer), 1)
    show("unpack it", lambda: unpack(Produced, header), 1)
    show("encode a small frame", lambda: encode_frame(0x82, 7, header), 1)
    show("parse 100 small frames of one read", lambda: parse([stream]), 100)
    show("parse a 16 MiB frame from 64 KiB reads", lambda: parse(pieces), 1)
    show("for comparison: join those reads", lambda: b"".join(pieces), 1)


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:3]]
    batches(*given, *(500, 100)[len(given) :])
    frames()
