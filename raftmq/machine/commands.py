"""Commands as the payload of a COMMANDS record: a CBOR array of tagged positional arrays.

Each machine has its own closed union of command types; this module encodes and decodes both unions.
"""

from collections.abc import Sequence
from typing import TypeVar

import cbor2
import msgspec

from raftmq.errors import Reason
from raftmq.results import Refused

C = TypeVar("C", bound=msgspec.Struct)


def encode_commands(commands: Sequence[msgspec.Struct]) -> bytes:
    """The payload of a COMMANDS record."""
    return cbor2.dumps(msgspec.to_builtins(list(commands), builtin_types=(bytes,)))


def decode_commands(payload: bytes, decoder: type[list[C]]) -> list[C] | Refused:
    """The commands of a payload, which must be of the given union, `list[A | B]`.

    Total: a payload that cannot be read gives the same refusal on every replica.
    """
    try:
        return msgspec.convert(cbor2.loads(payload), decoder)
    except (cbor2.CBORError, msgspec.ValidationError) as error:
        # The wording of a library's error may differ between its versions: not part of a result.
        return Refused(Reason.BAD_ARGUMENT, f"commands cannot be read: {type(error).__name__}")
