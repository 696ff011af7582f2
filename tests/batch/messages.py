"""Messages as hypothesis draws them, and the rows that a batch of them must give back."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from raftmq.batch import Batch, Sealed, encode

TIMES = st.integers(0, 2**62 - 1)
TEXT = st.text(max_size=12)
FEW_WORDS = st.sampled_from(["", "a", "b", "größe", "淘宝", "x" * 40])
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    TEXT,
    FEW_WORDS,
    st.binary(max_size=12),
)
NAMES = st.one_of(st.sampled_from(["n", "price", "城市"]), st.text(min_size=1, max_size=8))
ROWS = st.dictionaries(NAMES, st.none() | VALUES, max_size=5)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The arguments of `encode`, a list an argument; None: left out."""

    bodies: list[bytes]
    keys: list[str | None] | None
    tags: list[str | None] | None
    props: list[dict[str, Any] | None] | None
    deliver_at_ms: list[int] | None
    created_ms: list[int] | None
    base_ms: int

    def seal(self, **options: Any) -> Sealed:
        """Encode all messages at once."""
        return encode(
            self.bodies,
            keys=self.keys,
            tags=self.tags,
            props=self.props,
            deliver_at_ms=self.deliver_at_ms,
            created_ms=self.created_ms,
            base_ms=self.base_ms,
            **options,
        )

    def row(self, i: int) -> dict[str, Any]:
        """The properties of message i as they come back."""
        row = self.props[i] if self.props else None
        return {name: value for name, value in (row or {}).items() if value is not None}

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows that reading the batch must give, one tuple per message."""
        return [
            (
                body,
                self.keys[i] if self.keys else None,
                self.tags[i] if self.tags else None,
                typed(self.row(i)),
                self.created_ms[i] if self.created_ms else self.base_ms,
                self.deliver_at_ms[i] if self.deliver_at_ms else 0,
            )
            for i, body in enumerate(self.bodies)
        ]


def typed(row: dict[str, Any]) -> dict[str, tuple[type, Any]]:
    """Values beside their types: 1, 1.0 and True are equal, and must not be mixed up."""
    return {name: (type(value), value) for name, value in row.items()}


def rows_of(batch: Batch) -> list[tuple[Any, ...]]:
    """A decoded batch in the form of `Drawn.rows`."""
    return [(m.body, m.key, m.tag, typed(m.props), m.created_ms, m.deliver_at_ms) for m in batch]


@st.composite
def drawn_messages(draw: st.DrawFn, max_count: int = 20) -> Drawn:
    """Batches of 1 to `max_count` messages with any combination of columns."""
    count = draw(st.integers(1, max_count))

    def lists(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(of, min_size=count, max_size=count)

    base_ms = draw(st.sampled_from([0, 1_700_000_000_000]) | TIMES)
    near = st.integers(max(0, base_ms - 9), min(2**62 - 1, base_ms + 9))
    return Drawn(
        bodies=draw(lists(st.binary(max_size=30))),
        keys=draw(st.none() | lists(st.none() | TEXT) | lists(TEXT)),
        tags=draw(st.none() | lists(st.none() | FEW_WORDS)),
        props=draw(st.none() | lists(st.none() | ROWS)),
        deliver_at_ms=draw(st.none() | lists(st.just(0) | TIMES)),
        created_ms=draw(st.none() | lists(near) | lists(TIMES)),
        base_ms=base_ms,
    )
