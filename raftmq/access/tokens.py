"""Tokens of programs: `raftmq_ID_SECRET`.

The cluster keeps ID and the digest of SECRET, which has 256 random bits: a digest without salt or
iterations is enough. The fixed beginning lets scanners of source code find a token that was
committed by mistake.

>>> token = draw_token(bytes(8), bytes(32))
>>> token
'raftmq_0000000000000000_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'
>>> parts_of(token) == ("0000000000000000", "A" * 43), parts_of("nonsense")
(True, ('', ''))
"""

import hashlib
import re
from base64 import urlsafe_b64encode

ID_BYTES, SECRET_BYTES = 8, 32
"""Random bytes of the two parts."""
ID_CHARACTERS = 2 * ID_BYTES
"""Length of the public part."""
_PREFIX = "raftmq_"
_START = re.compile(rf"{_PREFIX}[0-9a-f]{{{ID_CHARACTERS}}}_")
_TOKEN = re.compile(rf"{_PREFIX}([0-9a-f]{{{ID_CHARACTERS}}})_([A-Za-z0-9_-]{{43}})")


def draw_token(id_bytes: bytes, secret_bytes: bytes) -> str:
    """The token of random bytes, `ID_BYTES` and `SECRET_BYTES` of them."""
    assert (len(id_bytes), len(secret_bytes)) == (ID_BYTES, SECRET_BYTES)
    secret = urlsafe_b64encode(secret_bytes).rstrip(b"=").decode()
    return f"{_PREFIX}{id_bytes.hex()}_{secret}"


def parts_of(token: str) -> tuple[str, str]:
    """A token's public and secret part; both empty: the text is no token."""
    found = _TOKEN.fullmatch(token)
    return (found[1], found[2]) if found is not None else ("", "")


def may_hold_token(text: str) -> bool:
    """Whether a text may hold a token, or a piece of one: it is not to be shown."""
    return _START.search(text) is not None


def has_ended(until_ms: int, now_ms: int) -> bool:
    """Whether the end of a token or password, in milliseconds since 1970, is over; 0: it has no
    end."""
    return until_ms != 0 and now_ms >= until_ms


def digest_of(secret: str) -> bytes:
    """The digest of a token's secret part, as the cluster keeps it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
