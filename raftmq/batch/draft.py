"""Drafts: messages that were checked, and wait to be encoded, alone or joined with others.

Encoding costs more a batch than a message, so messages that are handed in by the hundred are
encoded by the thousand, once a sender has enough of them (`BatchBuilder.extend`).

Invariants:
- `BatchBuilder.extend` takes each draft, unless the batch would be too large.

Left out: properties. A batch's columns of properties are made from all its rows at once.
"""

from collections.abc import Mapping, Sequence

from .columns import HEAD_BYTES_MAX
from .encode import as_bytes, tag_dictionary, utf8_keys
from .layout import HEAD_BYTES, Limits
from .refusals import bad_argument, too_large

FIXED_BYTES = HEAD_BYTES + 8 * HEAD_BYTES_MAX
"""The head, and the heads of all columns that are not properties."""
LENGTH_BYTES, KEY_BYTES, CODE_BYTES, TIME_BYTES = 4, 8, 4, 8
"""Bytes that every message takes in the column of body lengths, in the columns of key hashes and
key lengths, in the column of tag codes, and in a column of times."""


class Draft:
    """Messages of one batch, not encoded yet. The arguments are those of `encode`.

    Raises:
        Rejected: as `encode`.

    >>> draft = Draft([b"one", b"two"], keys=["k", None], limits=Limits())
    >>> len(draft), draft.keys
    (2, [b'k', None])
    """

    __slots__ = ("bodies", "content_bytes", "dictionary", "keys", "size", "tags")

    def __init__(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        limits: Limits,
    ) -> None:
        count = len(bodies)
        if not 0 < count <= limits.messages_max:
            raise bad_argument(f"a batch has 1 to {limits.messages_max} messages, not {count}")
        self.bodies = list(as_bytes(bodies))
        """One body for each message."""
        self.keys: Sequence[bytes | None] | None = None
        """The keys in UTF-8; None: no message has one."""
        self.tags: Sequence[str | None] | None = None
        """The tags; None: no message has one."""
        self.dictionary: Mapping[str, bytes] = {}
        """The distinct tags, and their UTF-8."""
        self.content_bytes = sum(map(len, self.bodies))
        """Bytes of bodies and keys."""
        each, dictionary_bytes = LENGTH_BYTES, 0
        encoded = () if keys is None else utf8_keys(keys, limits)
        if any(key is not None for key in encoded):
            self.keys = encoded
            each += KEY_BYTES
            self.content_bytes += sum(len(key) for key in encoded if key is not None)
        dictionary = {} if tags is None else tag_dictionary(tags, limits)
        if dictionary:
            self.tags, self.dictionary = list(tags or ()), dictionary
            each += CODE_BYTES
            dictionary_bytes = sum(LENGTH_BYTES + len(text) for text in dictionary.values())
        self.size = FIXED_BYTES + self.content_bytes + dictionary_bytes + count * each
        """An upper bound of the bytes that the messages take as a batch of their own."""
        if self.size > limits.batch_bytes_max:
            raise too_large("the batch", self.size, limits.batch_bytes_max)

    def __len__(self) -> int:
        """Messages."""
        return len(self.bodies)
