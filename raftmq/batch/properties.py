"""Property columns: typed values by name, present for some messages of a batch."""

from typing import TYPE_CHECKING, NamedTuple

from .layout import PropertyKind

if TYPE_CHECKING:
    import numpy as np

Value = int | float | bool | str | bytes
"""What a property may hold. None means that the message does not have it."""


class Column(NamedTuple):
    """One property column of a batch."""

    name: str
    """The property's name; several columns have it if its values are of several kinds."""
    kind: PropertyKind
    """The type of its values."""
    present: "np.ndarray | None"
    """One bool a message: has it a value? None: all have."""
    values: "np.ndarray | list[str] | list[bytes]"
    """The present values in message order: int64, float64 or bool arrays, or a list; for
    `TEXT_CODED` the codes into `dictionary`."""
    dictionary: list[str] | None
    """The distinct strings of a `TEXT_CODED` column, else None."""
