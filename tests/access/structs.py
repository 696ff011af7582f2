"""Random values of message and command types, for property tests.

`values` follows the type's fields as msgspec sees them, so it also draws values that no client
would send: each one is a value that msgspec accepts from a log or from the wire.
"""

from collections.abc import Mapping
from typing import Any

import msgspec.inspect as mi
from hypothesis import strategies as st

_FIRST, _LAST = -(1 << 64), (1 << 64) - 1
"""The range of CBOR's integers without a tag, which the wire refuses."""
TEXTS = st.text(max_size=20)
"""Any text that UTF-8 can carry."""

STRANGE_TEXTS = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=40)
"""Any text, often with lone surrogates, which UTF-8 cannot carry."""

_Strategy = st.SearchStrategy[Any]


def values(kind: Any, **given: _Strategy) -> _Strategy:
    """Values of a type.

    Args:
        kind: the type, for instance a union of commands.
        given: strategies for fields of these names, in structs at any depth.
    """
    return _values(mi.type_info(kind), given)


def _values(kind: mi.Type, given: Mapping[str, _Strategy]) -> _Strategy:
    match kind:
        case mi.BoolType():
            return st.booleans()
        case mi.IntType(ge=low, le=high):
            low, high = _FIRST if low is None else low, _LAST if high is None else high
            return st.integers(low, min(high, low + 9)) | st.integers(low, high)
        case mi.LiteralType(values=values):
            return st.sampled_from(values)
        case mi.FloatType():
            return st.floats(allow_nan=False)
        case mi.StrType(min_length=low, max_length=high) if high is not None:
            return st.text(min_size=low or 0, max_size=high)
        case mi.StrType():
            return TEXTS
        case mi.BytesType():
            return st.binary(max_size=40)
        case mi.NoneType():
            return st.none()
        case mi.AnyType():
            return st.none() | st.integers(0, 9) | TEXTS
        case mi.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case mi.ListType(item_type=item):
            return st.lists(_values(item, given), max_size=3)
        case mi.VarTupleType(item_type=item):
            return st.lists(_values(item, given), max_size=3).map(tuple)
        case mi.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key, given), _values(value, given), max_size=3)
        case mi.UnionType(types=types):
            return st.one_of([_values(each, given) for each in types])
        case mi.StructType(cls=cls, fields=fields):
            drawn = {
                field.name: given[field.name] if field.name in given else _values(field.type, given)
                for field in fields
            }
            return st.builds(cls, **drawn)
        case _:
            raise AssertionError(f"no strategy for {kind}")
