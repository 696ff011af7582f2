"""Refusals of encoders: the exceptions that a producer's user sees, and the checks of text."""

from raftmq.errors import Reason, Rejected


def bad_argument(message: str) -> Rejected:
    """The refusal of a value that a batch cannot hold."""
    return Rejected(Reason.BAD_ARGUMENT, message)


def too_large(what: str, size: int, limit: int) -> Rejected:
    """The refusal of something over its limit."""
    return Rejected(Reason.TOO_LARGE, f"{what} has {size} bytes; the limit is {limit}")


def utf8(text: object, what: str, bytes_max: int) -> bytes:
    """The UTF-8 of a string.

    Raises:
        Rejected: `text` is no string, not Unicode, or too long; `what` names it.
    """
    if not isinstance(text, str):
        raise bad_argument(f"{what} must be text, not {type(text).__name__}")
    try:
        encoded = text.encode()
    except UnicodeError as error:
        raise bad_argument(f"{what} is not Unicode text: {error}") from None
    if len(encoded) > bytes_max:
        raise too_large(what, len(encoded), bytes_max)
    return encoded


def utf8_key(key: object, bytes_max: int) -> bytes:
    """The UTF-8 of a key, which may be given as bytes that are UTF-8 already.

    Raises:
        Rejected: as `utf8`.
    """
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeError as error:
            raise bad_argument(f"a key given as bytes is not UTF-8: {error}") from None
    return utf8(key, "a key", bytes_max)
