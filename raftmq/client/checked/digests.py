"""Messages as digests: what a check keeps of a message.

A digest covers body, key, tag and properties. A digest is stable within a process only.
"""

from collections.abc import Mapping

from raftmq.batch import Value
from raftmq.client.slices import Slice

SHOWN_BYTES = 24
"""Bytes of a body that are kept for people."""


def digest(
    body: bytes,
    key: str | bytes | None,
    tag: str | None,
    props: Mapping[str, Value | None] | None,
) -> int:
    """A message as one number.

    >>> digest(b"a", "k", None, None) == digest(bytearray(b"a"), b"k", None, {"n": None})
    True
    >>> digest(b"a", None, None, {"n": 1}) == digest(b"a", None, None, {"n": True})
    False
    """
    named = () if not props else _named(props)
    return hash((bytes(body), text_of(key), text_of(tag), named))


def text_of(text: str | bytes | None) -> str | None:
    """A key or tag as plain text: a subclass of `str`, such as an enum, may hash as it likes."""
    if text is None or type(text) is str:
        return text
    return text.decode(errors="replace") if isinstance(text, bytes) else str.__str__(text)


def digests_of(part: Slice) -> list[int]:
    """The digest of each message of a slice."""
    batch, start, stop, _ = part
    tags = [batch.tag(position) for position in range(start, stop)]
    has_props = bool(batch.columns)
    props = [batch.props(position) if has_props else None for position in range(start, stop)]
    said = zip(batch.bodies[start:stop], batch.keys[start:stop], tags, props, strict=True)
    return [digest(*each) for each in said]


def shown(body: bytes) -> bytes:
    """The body's first bytes, for people."""
    return bytes(body[:SHOWN_BYTES])


def _named(props: Mapping[str, Value | None]) -> tuple[tuple[str, str, object], ...]:
    """The properties that have a value, by name: equal before and after a batch."""
    return tuple(
        (str.__str__(name), *_plain(value))
        for name, value in sorted(props.items())
        if value is not None
    )


def _plain(value: Value) -> tuple[str, object]:
    # With the kind: 1, 1.0 and True hash alike.
    match value:
        case bool():
            return "bool", value
        case int():
            return "int", int(value)
        case float():
            # Each NaN hashes by its identity.
            return "float", float(value) if value == value else "nan"
        case str():
            return "str", str.__str__(value)
        case _:
            return "bytes", bytes(value)
