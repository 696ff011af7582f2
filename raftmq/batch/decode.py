"""Decoding a batch: checked once, then read column by column or message by message."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from .layout import BatchHead, Limits
from .properties import Column, Value

if TYPE_CHECKING:
    import numpy as np


class BatchMessage(NamedTuple):
    """One message, as the batch holds it."""

    body: bytes
    """What was sent."""
    key: str | None
    """Its key; None: none."""
    tag: str | None
    """Its tag; None: none."""
    props: dict[str, Value]
    """Its properties, a dict of its own."""
    offset: int
    """Its offset in the queue."""
    timestamp: int
    """The leader's stamp of the batch, milliseconds since 1970."""
    created_ms: int
    """When it was created by the producer's clock, milliseconds since 1970."""
    deliver_at_ms: int
    """When it is to be delivered, milliseconds since 1970; 0: at once."""


class TagColumn(NamedTuple):
    """The tags of a batch."""

    dictionary: list[str]
    """The distinct tags; empty if no message has one."""
    codes: "np.ndarray"
    """One unsigned code a message: 0 for none, else 1 + position in `dictionary`."""


class Batch:
    """A checked batch. Columns are made into Python objects when they are first asked for.

    Structure, lengths and the checksum are checked by `decode`. That text is UTF-8 is found out
    when it is read: every accessor of keys, tags and properties may raise `CorruptRecord` as well.
    """

    head: BatchHead
    """The fixed head."""
    base_offset: int
    """Offset of the first message in its queue."""
    timestamp: int
    """The leader's stamp, milliseconds since 1970."""

    @classmethod
    def decode(
        cls,
        payload: bytes | memoryview,
        *,
        base_offset: int = 0,
        timestamp: int = 0,
        limits: Limits | None = None,
        check: bool = True,
    ) -> "Batch":
        """Check `payload` and make it readable. It is kept, not copied.

        Args:
            payload: one whole batch.
            base_offset: the offset of its first message.
            timestamp: the leader's stamp.
            limits: what is refused.
            check: False skips the checksum, for who has verified it already.

        Raises:
            CorruptRecord: anything is wrong with the bytes, and nothing else.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        """Messages in the batch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[BatchMessage]:
        """All messages in order."""
        raise NotImplementedError

    def messages(self, start: int = 0) -> list[BatchMessage]:
        """The messages from position `start` on; `offset - base_offset` is a position."""
        raise NotImplementedError

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in order."""
        raise NotImplementedError

    def body(self, position: int) -> bytes:
        """The body of one message, without making the others."""
        raise NotImplementedError

    @property
    def keys(self) -> list[str | None]:
        """The keys in order."""
        raise NotImplementedError

    def key(self, position: int) -> str | None:
        """The key of one message."""
        raise NotImplementedError

    @property
    def key_hashes(self) -> "np.ndarray | None":
        """One u32 a message, 0 without a key; None if no message has one."""
        raise NotImplementedError

    @property
    def tags(self) -> TagColumn:
        """The tags as a dictionary and codes, for filters."""
        raise NotImplementedError

    def tag(self, position: int) -> str | None:
        """The tag of one message."""
        raise NotImplementedError

    @property
    def columns(self) -> list[Column]:
        """All property columns, in the order of the header."""
        raise NotImplementedError

    def column(self, name: str) -> list[Column]:
        """The property columns of this name: none, one, or one for each kind of value."""
        raise NotImplementedError

    def props(self, position: int) -> dict[str, Value]:
        """The properties of one message."""
        raise NotImplementedError

    @property
    def deliver_at_ms(self) -> "np.ndarray | None":
        """One int64 a message, milliseconds since 1970, 0: at once; None: all at once."""
        raise NotImplementedError

    @property
    def created_ms(self) -> "np.ndarray | None":
        """One int64 a message, milliseconds since 1970; None: all at `head.base_ms`."""
        raise NotImplementedError
