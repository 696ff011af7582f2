"""Building a batch message by message, for producers that gather what is sent."""

from collections.abc import Mapping

from .compression import Compression
from .encode import Sealed
from .layout import Limits
from .properties import Value


class BatchBuilder:
    """Gathers the messages of one batch. Not thread-safe; a builder makes one batch.

    >>> builder = BatchBuilder()
    >>> builder.append(b"hello", key="k", tag="greeting", props={"n": 1})
    0
    >>> from .decode import Batch
    >>> batch = Batch.decode(builder.build(queue=7, base_ms=1_000), base_offset=40)
    >>> [(m.offset, m.body, m.key, m.tag, m.props) for m in batch]
    [(40, b'hello', 'k', 'greeting', {'n': 1})]
    """

    def __init__(self, limits: Limits | None = None) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        """Messages so far."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """An upper bound of the batch's bytes before compression, kept up by `append`."""
        raise NotImplementedError

    def has_room(self, body_bytes: int) -> bool:
        """Would a message of this size, keys and properties included, still fit the limits?"""
        raise NotImplementedError

    def append(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Mapping[str, Value | None] | None = None,
        deliver_at_ms: int = 0,
        created_ms: int | None = None,
    ) -> int:
        """Add one message and return its position in the batch, from 0.

        The arguments are those of `encode`, of one message, and are checked here: what `append`
        took, `seal` encodes. Without `created_ms` the message counts as created at `base_ms`.

        Raises:
            Rejected: as `encode`; the builder is as before.
        """
        raise NotImplementedError

    def seal(self, *, base_ms: int, compression: Compression = Compression.NONE) -> Sealed:
        """Encode what was gathered; at least one message. The stamp is put on it when sent."""
        raise NotImplementedError

    def build(
        self,
        *,
        queue: int,
        base_ms: int,
        producer: int = 0,
        epoch: int = 0,
        first_sequence: int = 0,
        compression: Compression = Compression.NONE,
    ) -> bytes:
        """`seal` and stamp in one step."""
        raise NotImplementedError
