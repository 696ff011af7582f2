"""Encoding a batch: sequences of bodies, keys, tags and properties become columns, once."""

from collections.abc import Mapping, Sequence

from .compression import Compression
from .layout import Limits
from .properties import Value


class Sealed:
    """An encoded batch that lacks its stamp: where it goes and the producer's numbers.

    The same one can be stamped again (another queue, a new epoch) at the cost of 36 bytes.
    """

    __slots__ = ("body_bytes", "count", "size")

    count: int
    """Messages in the batch."""
    size: int
    """Bytes of the batch, exactly."""
    body_bytes: int
    """Bytes of the bodies before compression."""

    def stamp(
        self, *, queue: int, producer: int = 0, epoch: int = 0, first_sequence: int = 0
    ) -> list[bytes]:
        """The batch as parts to write one after the other; a large body is not copied.

        Args:
            queue: the queue's number.
            producer: the producer's id; 0 means none: repeats of the batch are not recognised.
            epoch: the producer's epoch.
            first_sequence: the producer's number of the first message on this queue.
        """
        raise NotImplementedError

    def to_bytes(
        self, *, queue: int, producer: int = 0, epoch: int = 0, first_sequence: int = 0
    ) -> bytes:
        """As `stamp`, joined."""
        raise NotImplementedError


def encode(
    bodies: Sequence[bytes],
    *,
    keys: Sequence[str | bytes | None] | None = None,
    tags: Sequence[str | None] | None = None,
    props: Sequence[Mapping[str, Value | None] | None] | None = None,
    deliver_at_ms: Sequence[int] | None = None,
    created_ms: Sequence[int] | None = None,
    base_ms: int = 0,
    compression: Compression = Compression.NONE,
    limits: Limits | None = None,
) -> Sealed:
    """Encode messages given as parallel sequences, each as long as `bodies`.

    Args:
        bodies: at least one; each may be empty.
        keys: text, or bytes that are its UTF-8; None: no key, which differs from an empty one.
        tags: one tag a message; None: no tag.
        props: values by name; None as a value is the same as leaving the name out.
        deliver_at_ms: milliseconds since 1970; 0: at once.
        created_ms: milliseconds since 1970; left out: all were created at `base_ms`.
        base_ms: milliseconds since 1970 by the producer's clock.
        compression: of the bodies; ignored where it does not make them smaller.
        limits: what is refused; the default is what every decoder accepts.

    Raises:
        Rejected: `TOO_LARGE` if a limit is exceeded, `BAD_ARGUMENT` for a value of a type that
            has no column, an integer beyond 64 bits, or text that is not Unicode. Nothing else.
    """
    raise NotImplementedError
