"""Tokens: both parts come back, and other texts have none."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from raftmq.access.tokens import (
    ID_BYTES,
    ID_CHARACTERS,
    SECRET_BYTES,
    digest_of,
    draw_token,
    parts_of,
)
from raftmq.machine.catalog.access import KEY_BYTES

from .structs import STRANGE_TEXTS

ids = st.binary(min_size=ID_BYTES, max_size=ID_BYTES)
secrets = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)


# The alphabet of the secret part has an underscore, too.
@example(bytes(8), b"\xff" * 32)
@given(ids, secrets)
def test_parts_of_a_token_are_those_that_it_was_drawn_from(id_: bytes, secret: bytes) -> None:
    token = draw_token(id_, secret)
    assert re.fullmatch(r"raftmq_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", token)
    public, rest = parts_of(token)
    assert f"raftmq_{public}_{rest}" == token
    assert public == id_.hex()
    # The catalog takes both.
    assert len(public) == ID_CHARACTERS
    assert public.isalnum()
    assert len(digest_of(rest)) == KEY_BYTES


@given(ids, secrets, secrets)
def test_secrets_have_digests_of_their_own(id_: bytes, one: bytes, other: bytes) -> None:
    digests = {digest_of(parts_of(draw_token(id_, secret))[1]) for secret in (one, other)}
    assert len(digests) == len({one, other})


@example("\ud800")
@example("raftmq_")
@example("raftmq__secret")
@example("raftmq_id_")
@example("Raftmq_id_secret")
@example(" raftmq_id_secret")
@given(STRANGE_TEXTS | st.text("raftmq_", max_size=12))
def test_text_that_is_no_token_has_neither_part(text: str) -> None:
    id_, secret = parts_of(text)
    if text.startswith("raftmq_") and re.fullmatch(r"[^_]+_.+", text[7:], re.DOTALL):
        assert f"raftmq_{id_}_{secret}" == text
    else:
        assert (id_, secret) == ("", "")
    assert len(digest_of(text)) == KEY_BYTES
