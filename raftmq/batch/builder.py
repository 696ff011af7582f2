"""Building a batch message by message, for producers that gather messages.

Invariants:
- `size` is never below the size of the batch that `seal` would make.
- A message that was refused leaves no trace.
"""

from .compression import Compression
from .draft import CODE_BYTES, FIXED_BYTES, KEY_BYTES, LENGTH_BYTES, TIME_BYTES, Draft
from .encode import Sealed, as_bytes, check_time, seal
from .layout import Limits
from .properties import PropertyTable, Row
from .refusals import bad_argument, too_large, utf8, utf8_key

_DEFAULT_LIMITS = Limits()
_MARGIN_BYTES = 64
"""Bytes that `has_room` adds to a message's own: lengths, codes and times. A message that brings
new property names may need more; `append` counts exactly."""


class BatchBuilder:
    """Gathers the messages of one batch. Not thread-safe.

    >>> builder = BatchBuilder()
    >>> builder.append(b"hello", key="k", tag="greeting", props={"n": 1})
    0
    >>> from .decode import Batch
    >>> batch = Batch.decode(builder.build(queue=7, base_ms=1_000), base_offset=40)
    >>> [(m.offset, m.body, m.key, m.tag, m.props) for m in batch]
    [(40, b'hello', 'k', 'greeting', {'n': 1})]
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or _DEFAULT_LIMITS
        self._bodies: list[bytes] = []
        # By the position of the messages that have one.
        self._keys: dict[int, bytes] = {}
        self._codes: dict[int, int] = {}
        self._deliver_at_ms: dict[int, int] = {}
        self._created_ms: dict[int, int] = {}
        # Tag → its code, from 1; the tags in UTF-8 in the order of the codes.
        self._tags: dict[str, int] = {}
        self._dictionary: list[bytes] = []
        self._table = PropertyTable(self._limits)
        # Bytes of bodies, keys and tags; bytes that each message takes beside them.
        self._content_bytes = 0
        self._each_bytes = LENGTH_BYTES

    def __len__(self) -> int:
        """Messages so far."""
        return len(self._bodies)

    @property
    def size(self) -> int:
        """An upper bound of the batch's bytes before compression."""
        count = len(self._bodies)
        each = count * self._each_bytes
        return FIXED_BYTES + self._content_bytes + each + self._table.size_max(count)

    def has_room(self, message_bytes: int) -> bool:
        """Would a message still fit? Its bytes are those of body, key, tag and properties."""
        size = self.size + message_bytes + self._each_bytes + _MARGIN_BYTES
        return len(self) < self._limits.messages_max and size <= self._limits.batch_bytes_max

    def append(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        props: Row | None = None,
        deliver_at_ms: int = 0,
        created_ms: int | None = None,
    ) -> int:
        """Add one message and return its position in the batch, from 0.

        The arguments are those of `encode`, for one message, and are checked here: `seal` encodes
        each message that `append` took. Without `created_ms` the message counts as created at
        `base_ms`.

        Raises:
            Rejected: as `encode`; the builder is as before. `TOO_LARGE` also says that the batch
                is full: the message may fit into the next one.
        """
        limits, position = self._limits, len(self._bodies)
        if position == limits.messages_max:
            raise bad_argument(f"a batch has {limits.messages_max} messages at most")
        if type(body) is not bytes:
            (body,) = as_bytes((body,))
        content, each = self._content_bytes + len(body), self._each_bytes
        encoded_key = encoded_tag = None
        if key is not None:
            encoded_key = utf8_key(key, limits.key_bytes_max)
            content += len(encoded_key)
            each += 0 if self._keys else KEY_BYTES
        if tag is not None:
            each += 0 if self._tags else CODE_BYTES
            if not isinstance(tag, str) or tag not in self._tags:
                encoded_tag = utf8(tag, "a tag", limits.tag_bytes_max)
                content += len(encoded_tag) + LENGTH_BYTES
        if deliver_at_ms:
            check_time(deliver_at_ms, "deliver_at_ms")
            each += 0 if self._deliver_at_ms else TIME_BYTES
        if created_ms is not None:
            check_time(created_ms, "created_ms")
            each += 0 if self._created_ms else TIME_BYTES
        room = limits.batch_bytes_max - FIXED_BYTES - content - (position + 1) * each
        if props or self._table or room < FIXED_BYTES:
            self._table.add(position, props, room=room)
        # No line below can fail: a refused message leaves no trace.
        self._content_bytes, self._each_bytes = content, each
        self._bodies.append(body)
        if encoded_key is not None:
            self._keys[position] = encoded_key
        if tag is not None:
            if encoded_tag is not None:
                self._tags[tag] = len(self._tags) + 1
                self._dictionary.append(encoded_tag)
            self._codes[position] = self._tags[tag]
        if deliver_at_ms:
            self._deliver_at_ms[position] = deliver_at_ms
        if created_ms is not None:
            self._created_ms[position] = created_ms
        return position

    def extend(self, draft: Draft) -> None:
        """Add all messages of a draft, or none.

        Raises:
            Rejected: the messages do not fit into the batch; the builder is as before.
        """
        limits, start = self._limits, len(self._bodies)
        count = start + len(draft)
        if count > limits.messages_max:
            raise bad_argument(f"a batch has {limits.messages_max} messages at most")
        keys, tags = draft.keys, draft.tags
        each = self._each_bytes
        each += KEY_BYTES if keys is not None and not self._keys else 0
        each += CODE_BYTES if tags is not None and not self._tags else 0
        new = {tag: text for tag, text in draft.dictionary.items() if tag not in self._tags}
        content = self._content_bytes + draft.content_bytes
        content += sum(LENGTH_BYTES + len(text) for text in new.values())
        size = FIXED_BYTES + content + count * each + self._table.size_max(count)
        if size > limits.batch_bytes_max:
            raise too_large("the batch", size, limits.batch_bytes_max)
        # No line below can fail: a refused draft leaves no trace.
        self._content_bytes, self._each_bytes = content, each
        self._bodies += draft.bodies
        if keys is not None:
            present = enumerate(keys, start)
            self._keys.update((place, key) for place, key in present if key is not None)
        if tags is not None:
            for tag, text in new.items():
                self._tags[tag] = len(self._tags) + 1
                self._dictionary.append(text)
            tagged = enumerate(tags, start)
            self._codes.update((place, self._tags[tag]) for place, tag in tagged if tag is not None)
        assert self.size == size, f"{size} bytes were checked, {self.size} were added"
        assert len(self._dictionary) == len(self._tags), "tags and their codes out of step"

    def seal(self, *, base_ms: int, compression: Compression = Compression.NONE) -> Sealed:
        """Encode the gathered messages, at least one. The batch gets its stamp when it is sent.

        Raises:
            Rejected: there are no messages, or `base_ms` is not a time.
        """
        places = range(len(self._bodies))
        delivery, created = self._deliver_at_ms, self._created_ms
        sealed = seal(
            self._bodies,
            keys=list(map(self._keys.get, places)) if self._keys else None,
            tags=(self._dictionary, _spread(self._codes, 0, places)) if self._tags else None,
            table=self._table,
            deliver_at_ms=_spread(delivery, 0, places) if delivery else None,
            created_ms=_spread(created, base_ms, places) if created else None,
            base_ms=base_ms,
            compression=compression,
            limits=self._limits,
        )
        # Senders close a batch by `size`: a larger one would be refused after it was closed.
        assert sealed.size <= self.size, f"{sealed.size} bytes, where {self.size} were the bound"
        return sealed

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
        sealed = self.seal(base_ms=base_ms, compression=compression)
        return sealed.to_bytes(
            queue=queue, producer=producer, epoch=epoch, first_sequence=first_sequence
        )


def _spread(numbers: dict[int, int], otherwise: int, places: range) -> list[int]:
    """One number a message."""
    return [numbers.get(place, otherwise) for place in places]
