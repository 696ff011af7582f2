"""Headers: every message survives encoding, accepts added fields, and refuses other types."""

import array
import random
import threading
import tracemalloc
from typing import Annotated, Any, Literal, get_args, get_origin

import cbor2
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import ProtocolError
from raftmq.wire import (
    assignment,
    consumer_groups,
    directory,
    messages,
    popping,
    producing,
    settings,
    traces,
)
from raftmq.wire.codec import pack, unpack
from raftmq.wire.fetches import Fetch, Fetched, FetchedQueue, FetchFrom
from raftmq.wire.messages import AdminDone, ErrorReply, Hello, Produced

HELLO = Hello(1, "cluster", 3, "incarnation", "raftmq 0.1.0")
TYPES = [
    type_
    for type_ in {
        **vars(messages),
        **vars(popping),
        **vars(consumer_groups),
        **vars(assignment),
        **vars(producing),
        **vars(settings),
        **vars(directory),
        **vars(traces),
    }.values()
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct) and type_.__name__[0] != "_"
]


def drawn(type_: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if type_ is Any:
        return st.none() | st.integers(0, 2**64 - 1) | st.binary(max_size=9) | st.text(max_size=9)
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return st.deferred(lambda: structs(type_))
    if type_ is int:
        return st.integers(-(2**63), 2**64 - 1)
    if type_ is float:
        return st.floats(allow_nan=False)
    return st.from_type(type_)


def structs(type_: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Messages of this type with any content."""
    fields = msgspec.structs.fields(type_)
    return st.builds(type_, *(of_annotation(field.type) for field in fields))


def of_annotation(type_: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation as the messages use them: X, X | None, list[X], dict[str, Any]."""
    if get_origin(type_) is Annotated:
        bare, bounds = get_args(type_)
        if get_origin(bare) is list:
            return of_annotation(bare)
        if bare is str:
            return st.text(min_size=bounds.min_length or 0, max_size=bounds.max_length)
        return st.integers(bounds.ge, 2**64 - 1 if bounds.le is None else bounds.le)
    if get_origin(type_) is Literal:
        return st.sampled_from(get_args(type_))
    arguments = getattr(type_, "__args__", None)
    if not arguments:
        return drawn(type_)
    if getattr(type_, "__origin__", None) is list:
        return st.lists(of_annotation(arguments[0]), max_size=3)
    if getattr(type_, "__origin__", None) is dict:
        return st.dictionaries(st.text(max_size=9), of_annotation(arguments[1]), max_size=3)
    return st.one_of(*(st.none() if a is type(None) else of_annotation(a) for a in arguments))


@pytest.mark.parametrize("type_", TYPES)
def test_every_message_comes_back_as_it_went(type_: type[msgspec.Struct]) -> None:
    @given(structs(type_))
    def check(message: msgspec.Struct) -> None:
        packed = pack(message)
        assert isinstance(cbor2.loads(packed), list)
        assert unpack(type_, packed) == message

    check()


def test_fields_that_we_do_not_know_are_ignored_at_the_end() -> None:
    newer = cbor2.dumps([*cbor2.loads(pack(HELLO)), "new", [1, 2]])
    assert unpack(Hello, newer) == HELLO


def test_fields_that_the_sender_did_not_know_take_their_defaults() -> None:
    assert unpack(Produced, cbor2.dumps([5, 6])) == Produced(5, 6, duplicate=False)
    assert unpack(ErrorReply, cbor2.dumps(["busy", "text"])) == ErrorReply("busy", "text")


def test_evolution_holds_inside_of_messages_too() -> None:
    fetch = unpack(Fetch, cbor2.dumps([[[7, 8, "new"]], 1, 2, "group", 3, 4, 5, [6], "new"]))
    assert fetch == Fetch([FetchFrom(7, 8)], 1, 2, "group", 3, 4, 5, [6])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "Hello is not plain CBOR"),
        (b"\x85\x01", "Hello is not plain CBOR"),
        (pack(HELLO) + b"\0", "Hello is followed by 1 bytes"),
        (pack(HELLO) * 2, "Hello is followed by"),
        (pack(HELLO)[:-1], "Hello is not plain CBOR"),
        (cbor2.dumps({"protocol": 1}), "Hello: Expected `array`"),
        (cbor2.dumps(None), "Hello: Expected `array`"),
        (cbor2.dumps([]), "Hello.protocol: .* at least length 5, got 0"),
        (cbor2.dumps([1, "c"]), "Hello.node: .* at least length 5, got 2"),
        (cbor2.dumps(["1", "c", 2, "i", "s"]), "Hello.protocol: Expected `int`, got `str`"),
        (cbor2.dumps([1.0, "c", 2, "i", "s"]), "Hello.protocol: Expected `int`, got `float`"),
        (cbor2.dumps([1, "c", True, "i", "s"]), "Hello.node: Expected `int`, got `bool`"),
        (cbor2.dumps([1, b"c", 2, "i", "s"]), "Hello.cluster: Expected `str`, got `bytes`"),
        (cbor2.dumps([1, "c", 2**64, "i", "s"]), "Hello is not plain CBOR"),
        (cbor2.dumps([1, cbor2.CBORTag(35, "(a+)+$"), 2, "i", "s"]), "Hello is not plain CBOR"),
        (b"\x9f\x01\xff", "Hello is not plain CBOR"),
        (b"\x85\x01\x61\xff\x02\x61i\x61s", "Hello is not plain CBOR"),
        (b"\x9b" + b"\xff" * 8, "Hello is not plain CBOR"),
        (b"\x81" * 100 + b"\x01", "Hello is not plain CBOR"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(header: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        unpack(Hello, header)
    assert unpack(Hello, pack(HELLO)) == HELLO, "the decoder is as good as new"


def test_field_inside_of_a_message_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"Fetch\.queues: .*`\$\[0\]\[1\]\[1\]`"):
        unpack(Fetch, cbor2.dumps([[[7, 8], [7, "8"]], 1, 2]))


def test_text_is_not_taken_for_bytes() -> None:
    # msgspec would read it as Base64.
    with pytest.raises(ProtocolError, match="Expected `bytes`, got `str`"):
        unpack(FetchedQueue, cbor2.dumps([1, 2, 3, "AAAA", b"", b""]))


@pytest.mark.parametrize(
    "value",
    [
        memoryview(b"bytes"),
        array.array("I", [1, 2]),
        range(3),
        np.arange(3),
        np.int64(3),
        [1, [memoryview(b"x")]],
        {"nested": memoryview(b"x")},
        object(),
    ],
)
def test_nothing_but_plain_values_is_written(value: object) -> None:
    with pytest.raises(TypeError):
        pack(AdminDone(value))
    assert unpack(AdminDone, pack(AdminDone([1]))) == AdminDone([1]), (
        "the encoder is as good as new"
    )


def test_memoryview_in_a_field_of_bytes_is_refused() -> None:
    queue = FetchedQueue(1, 2, 3, memoryview(b"12345678"), b"", b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="memoryview in a message"):
        pack(Fetched([queue]))


def test_bytearray_is_written_as_bytes() -> None:
    assert unpack(AdminDone, pack(AdminDone(bytearray(b"x")))).result == b"x"


def test_threads_do_not_share_an_encoder() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(300):
                message = Produced(number, i)
                assert unpack(Produced, pack(message)) == message
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@given(st.binary(max_size=100), st.sampled_from(TYPES))
def test_random_bytes_give_only_protocol_errors(data: bytes, type_: type[msgspec.Struct]) -> None:
    try:
        unpack(type_, data)
    except ProtocolError:
        return


def test_mutated_messages_give_only_protocol_errors() -> None:
    random_ = random.Random(5)
    queue = FetchedQueue(1, 2, 3, bytes(16), bytes(16), bytes(8), ErrorReply("busy", "why"))
    originals = [pack(HELLO), pack(Fetched([queue] * 3)), pack(AdminDone({"a": [1, b"x", None]}))]
    for _ in range(10_000):
        data = bytearray(random_.choice(originals))
        for _ in range(random_.randint(1, 3)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        for type_ in (Hello, Fetched, AdminDone):
            try:
                unpack(type_, bytes(data))
            except ProtocolError:
                continue


@pytest.mark.parametrize(
    "item", [b"\x80", b"\xa0", b"\x81\x80", b"\xf6", b"\x62ab", b"\x19\xff\xff"]
)
def test_memory_of_a_hostile_header_stays_below_90_times_its_length(item: bytes) -> None:
    count = 200_000 // len(item)
    header = b"\x9a" + count.to_bytes(4, "big") + item * count
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        unpack(Hello, header)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 90 * len(header)
