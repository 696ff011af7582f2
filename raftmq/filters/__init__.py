"""Filters: tags, SQL92 conditions, and an index of many subscriptions.

Start reading at `formula` (the meaning of a filter, and how three-valued logic becomes two-valued),
then `parser` (text to formula), `scalar` and `masks` (one message, one batch), and `index` (which
of many thousand filters match a message of a batch). Pure: no clock, no I/O; numpy is imported when
a batch is first evaluated.

>>> import raftmq.filters
>>> index = raftmq.filters.Index()
>>> index.add("billing", "paid || shipped")
>>> index.add("audit", "amount > 1000 AND country <> 'DE'")
>>> sorted(index.match({"amount": 5000, "country": "FR"}, tag="paid"))
['audit', 'billing']

Invariants:
- The same text, the same batch: the same answer, on any machine and any version of Python. Numbers
  compare exactly, texts by code points, and NaN compares with nothing.
- Only texts raise: once compiled, no message and no batch can make a filter fail.
"""

from .filter import Filter, compile, is_sql  # noqa: A004  # as `re.compile` is used
from .index import Index, Matches
from .parser import DEPTH_MAX, EXPRESSION_CHARACTERS_MAX
from .refusal import FilterSyntaxError
from .tags import is_tags

__all__ = [
    "DEPTH_MAX",
    "EXPRESSION_CHARACTERS_MAX",
    "Filter",
    "FilterSyntaxError",
    "Index",
    "Matches",
    "compile",
    "is_sql",
    "is_tags",
]
