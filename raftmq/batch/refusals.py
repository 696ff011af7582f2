"""What encoders say no to: the exceptions a producer's user sees, and text on its way to UTF-8."""

from raftmq.errors import Reason, Rejected


def bad_argument(message: str) -> Rejected:
    """The refusal of a value that a batch cannot hold."""
    return Rejected(Reason.BAD_ARGUMENT, message)


def too_large(what: str, size: int, limit: int) -> Rejected:
    """The refusal of something over its limit."""
    return Rejected(Reason.TOO_LARGE, f"{what} has {size} bytes; the limit is {limit}")


def utf8(text: object, what: str, bytes_max: int) -> bytes:
    """The UTF-8 of a string, or of bytes that hold it.

    Raises:
        Rejected: `text` is something else, not Unicode, or too long; `what` names it.
    """
    try:
        if isinstance(text, str):
            encoded = text.encode()
        elif isinstance(text, bytes):
            text.decode()
            encoded = text
        else:
            raise bad_argument(f"{what} must be text, not {type(text).__name__}")
    except UnicodeError as error:
        raise bad_argument(f"{what} is not Unicode text: {error}") from None
    if len(encoded) > bytes_max:
        raise too_large(what, len(encoded), bytes_max)
    return encoded
