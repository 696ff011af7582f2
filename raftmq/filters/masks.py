"""Evaluating formulas on a batch, column by column.

A comparison becomes one numpy operation on a column of numbers, one look-up on a dictionary column
(it is evaluated once for each distinct text, then spread by the codes), and a loop over a column of
texts that are mostly distinct. A property whose values are of several kinds has several columns
that no message shares; a comparison holds where it holds in one of them.

A view belongs to one batch, or to some messages of it in a row, and keeps the masks that it made
last, so formulas that filters share are mostly evaluated once.

Numbers compare exactly, as Python compares them: int64 and float64 are never brought to a common
type, which would round; the constant is moved to a neighbour that compares the same instead.

| column | comparison | becomes |
|---|---|---|
| int64 | `x < 2.5`, `x >= 2.5` | `x < 3`, `x >= 3` |
| float64 | `x < 2**53 + 1` | `x <= 2**53`, the float next below |

Invariants:
- `mask(formula)[i]` is `row_test(formula)(rows[i])`, for every batch.
- Nothing raises: a column that cannot be read counts as absent in all messages, on every replica.
- The masks are read-only to callers, as they are kept.

Left out: numpy loops over texts; neither numpy's fixed-width nor its variable-width strings are
made from UTF-8 as fast as a comparison of Python strings runs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final, cast

import numpy as np

from raftmq.batch import Batch, PropertyColumn, PropertyKind
from raftmq.errors import CorruptRecord

from .formula import TAG, Atom, Formula, Group, Operator, Other, Values
from .scalar import Plain, RowTest, row_test, value_test

ROWS_MAX: Final = 12
"""Messages up to which a view is evaluated row by row: that is faster there."""
PART_MESSAGES: Final = 4096
"""Messages that the index goes through at once: a longer batch would hold up the event loop."""
LONG_TEXT: Final = 1024
"""Bytes beyond which one text makes a message too long to be evaluated row by row."""
STEP_BYTES: Final = 256 * 1024
"""Bytes of texts and messages, for all comparisons together, up to which a formula is evaluated in
one step: the slowest searches go through them in 20 ms, comparisons of two properties in 40 ms."""
KEPT_BYTES: Final = 512 * 1024
"""Bytes of the masks that a view keeps: matched batches are kept for a while, with their views."""
_KEPT_ENTRY_BYTES: Final = 128
"""Bytes of a kept mask beside its messages, about."""
CONSTANTS_FEW: Final = 16
"""Constants of an IN up to which they are compared one by one; more are compared at once."""
ABSENT: Final = 0
"""The code of messages without the property."""
OTHER: Final = 1
"""The code of messages whose value is a boolean, bytes or NaN, which no key equals."""
_FIRST: Final = 2
"""The code of the first key."""

_INT64: Final = np.iinfo(np.int64)
_COMPARE: Final[dict[Operator, Callable[..., np.ndarray]]] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_NUMERIC: Final[tuple[PropertyKind, ...]] = (PropertyKind.INTEGER, PropertyKind.FLOAT)
_TEXTS: Final[tuple[PropertyKind, ...]] = (PropertyKind.TEXT, PropertyKind.TEXT_CODED)


class Coded:
    """The values of one property as codes: for each message the number of its key."""

    __slots__ = ("codes", "keys")

    def __init__(self, codes: np.ndarray, keys: list[str | int | float | None]) -> None:
        self.codes = codes
        """One code a message: `ABSENT`, `OTHER`, or a position in `keys`."""
        self.keys = keys
        """The distinct values; the first two stand for no value and for `OTHER`."""

    def split(self, positions: np.ndarray | None) -> list[tuple[int, np.ndarray]]:
        """The positions (None: all messages) by their code, in rising order of both."""
        codes = self.codes if positions is None else self.codes[positions]
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
        if positions is not None:
            order = positions[order]
        firsts = ordered[edges[:-1]].tolist()
        return [
            (code, order[start:end])
            for code, start, end in zip(firsts, edges[:-1], edges[1:], strict=True)
        ]


class BatchView:
    """One batch, or some messages of it in a row, as filters see it."""

    def __init__(self, batch: Batch, start: int = 0, stop: int | None = None) -> None:
        """See the messages from position `start` to before `stop`; None: to the end."""
        stop = len(batch) if stop is None else stop
        self.count = stop - start
        """Messages in view."""
        self._batch = batch
        self._range = slice(start, stop)
        # Comparison -> its outcome for each entry of a dictionary.
        self._tables: dict[Atom, np.ndarray] = {}
        self._masks: dict[Formula, np.ndarray] = {}
        self._coded: dict[str, Coded] = {}

    @classmethod
    def parts(cls, batch: Batch) -> "list[BatchView]":
        """The whole batch in views of at most `PART_MESSAGES`, in order.

        The views share the outcomes that are evaluated once for each distinct value.
        """
        starts = range(0, len(batch), PART_MESSAGES)
        views = [cls(batch, start, min(start + PART_MESSAGES, len(batch))) for start in starts]
        for view in views[1:]:
            view._tables = views[0]._tables
            view._texts = views[0]._texts
        return views

    @property
    def is_long(self) -> bool:
        """Whether some text of the batch is so long that comparisons go one by one."""
        return self._texts[1] > LONG_TEXT

    def cost(self, formula: Formula) -> int:
        """Bytes of texts and messages that making the mask of a formula goes through, about; 0: the
        mask is there. More than `STEP_BYTES` has to be made in steps."""
        if formula in self._masks:
            return 0
        if isinstance(formula, Group):
            return sum(map(self.cost, formula.terms))
        texts = self._texts[0]
        other = formula.constant.other if isinstance(formula.constant, Other) else ""
        return self.count + texts.get(formula.name, 0) + texts.get(other, 0)

    @cached_property
    def _texts(self) -> tuple[dict[str, int], int]:
        """Bytes of the texts of each property, and of the longest text."""
        try:
            columns = [column for column in self._batch.columns if column.kind in _TEXTS]
        except CorruptRecord:
            return {}, 0
        longest = max((int(c.parts[0].array().max(initial=0)) for c in columns), default=0)
        sizes: dict[str, int] = {}
        for column in columns:
            sizes[column.name] = sizes.get(column.name, 0) + len(column.parts[1].content)
        return sizes, longest

    def mask_in_steps(self, formula: Formula) -> Iterator[None]:
        """Have `mask(formula)` made, one comparison a step where they take long."""
        if isinstance(formula, Group) and self.cost(formula) > STEP_BYTES:
            # Made here and not by `mask`: some terms may be forgotten by the end.
            combined = np.full(self.count, formula.is_all)
            for term in formula.terms:
                yield from self.mask_in_steps(term)
                if formula.is_all:
                    combined &= self.mask(term)
                    if not combined.any():
                        break
                else:
                    combined |= self.mask(term)
            self._keep(formula, combined)
        self.mask(formula)
        yield

    def mask(self, formula: Formula) -> np.ndarray:
        """One bool a message: does the formula hold?"""
        known = self._masks.get(formula)
        return self._keep(formula, self._evaluate(formula)) if known is None else known

    def _keep(self, formula: Formula, mask: np.ndarray) -> np.ndarray:
        """Keep a mask; the oldest one makes room."""
        mask.flags.writeable = False
        if len(self._masks) * (self.count + _KEPT_ENTRY_BYTES) > KEPT_BYTES:
            del self._masks[next(iter(self._masks))]
        self._masks[formula] = mask
        return mask

    def _evaluate(self, formula: Formula) -> np.ndarray:
        if self.count <= ROWS_MAX and not self.is_long:
            return self._by_rows(row_test(formula))
        if isinstance(formula, Atom):
            return self._atom(formula)
        if not formula.terms:
            return np.full(self.count, formula.is_all)
        combined = self.mask(formula.terms[0]).copy()
        for term in formula.terms[1:]:
            if formula.is_all:
                if not combined.any():
                    break
                combined &= self.mask(term)
            else:
                combined |= self.mask(term)
        return combined

    def _by_rows(self, test: RowTest) -> np.ndarray:
        return np.fromiter(map(test, self.rows), np.bool_, self.count)

    @cached_property
    def rows(self) -> list[dict[str, Plain]]:
        """The properties of each message as plain values, its tag among them."""
        rows: list[dict[str, Plain]] = [{} for _ in range(self.count)]
        for columns in self._columns.values():
            for column in columns:
                try:
                    column.fill(rows)
                except CorruptRecord:
                    continue
        dictionary, codes = self._tags
        for row, code in zip(rows, codes.tolist(), strict=True):
            if code:
                row[TAG] = dictionary[code - 1]
        return rows

    @cached_property
    def _columns(self) -> dict[str, list[PropertyColumn]]:
        """Property -> its columns, in view. Filters of tags never ask for them."""
        try:
            columns = self._batch.columns
        except CorruptRecord:
            return {}
        found: dict[str, list[PropertyColumn]] = {}
        start, stop = self._range.start, self._range.stop
        for column in columns:
            if column.name != TAG:
                part = column if self.count == len(self._batch) else column.between(start, stop)
                found.setdefault(column.name, []).append(part)
        return found

    # Atoms.

    def _atom(self, atom: Atom) -> np.ndarray:
        if isinstance(atom.constant, Other):
            return self._by_rows(row_test(atom))
        match atom.operator:
            case "IS NULL":
                return ~self._present(atom.name)
            case "IS NOT NULL":
                return self._present(atom.name)
            case _:
                return self._comparison(atom)

    def _comparison(self, atom: Atom) -> np.ndarray:
        if atom.name == TAG:
            dictionary, codes = self._tags
            return self._by_code([None, *dictionary], codes, atom)
        result: np.ndarray | None = None
        for column in self._columns.get(atom.name, ()):
            holds = self._column_mask(column, atom)
            if holds is None:
                continue
            if column.present is None:
                return holds
            if result is None:
                result = np.zeros(self.count, np.bool_)
            result[column.present] = holds
        return np.zeros(self.count, np.bool_) if result is None else result

    def _column_mask(self, column: PropertyColumn, atom: Atom) -> np.ndarray | None:
        """For each value of the column whether the atom holds; None if it does for none."""
        kind, constant, operator = column.kind, atom.constant, atom.operator
        sample = constant.values[0] if isinstance(constant, Values) else constant
        is_numeric = isinstance(sample, int | float)
        if operator in ("IS TRUE", "IS FALSE"):
            if kind is not PropertyKind.BOOLEAN or (values := _values(column)) is None:
                return None
            flags = cast("np.ndarray", values)
            return flags if operator == "IS TRUE" else ~flags
        wanted = _NUMERIC if is_numeric else _TEXTS
        if kind not in wanted:
            return None
        values = _values(column)
        if values is None:
            return None
        if is_numeric:
            return _numbers(cast("np.ndarray", values), atom)
        if kind is PropertyKind.TEXT_CODED:
            return self._by_code(column.dictionary or (), cast("np.ndarray", values), atom)
        return np.fromiter(map(value_test(atom), values), np.bool_, len(values))

    def _by_code(self, distinct: Sequence[str | None], codes: np.ndarray, atom: Atom) -> np.ndarray:
        """The atom evaluated once for each distinct value, and spread by the codes."""
        # A name has one dictionary at most, so the atom is enough as the key.
        table = self._tables.get(atom)
        if table is None:
            table = np.fromiter(map(value_test(atom), distinct), np.bool_, len(distinct))
            if len(self._tables) * (len(distinct) + _KEPT_ENTRY_BYTES) > KEPT_BYTES:
                self._tables.clear()
            self._tables[atom] = table
        return cast("np.ndarray", table[codes])

    def _present(self, name: str) -> np.ndarray:
        if name == TAG:
            tagged: np.ndarray = self._tags[1] != 0
            return tagged
        result = np.zeros(self.count, np.bool_)
        for column in self._columns.get(name, ()):
            if _values(column) is None:
                continue
            if column.present is None:
                return np.ones(self.count, np.bool_)
            result |= column.present
        return result

    @cached_property
    def _tags(self) -> tuple[list[str], np.ndarray]:
        try:
            dictionary, codes = self._batch.tags
        except CorruptRecord:
            return [], np.zeros(self.count, np.uint8)
        return dictionary, codes[self._range]

    # Codes, for the index.

    def coded(self, name: str) -> Coded:
        """The values of a property by code."""
        known = self._coded.get(name)
        if known is None:
            known = self._coded[name] = self._encode(name)
        return known

    def _encode(self, name: str) -> Coded:
        keys: list[str | int | float | None] = [None, None]
        if name == TAG:
            dictionary, codes = self._tags
            # 0 stays, the others make room for OTHER.
            return Coded(codes.astype(np.int64) + (codes != 0), [*keys, *dictionary])
        result = np.zeros(self.count, np.int64)
        for column in self._columns.get(name, ()):
            values = _values(column)
            if values is None:
                continue
            codes = _codes(column, values, keys)
            if column.present is None:
                return Coded(codes, keys)
            result[column.present] = codes
        return Coded(result, keys)


def _codes(
    column: PropertyColumn,
    values: np.ndarray | list[str] | list[bytes],
    keys: list[str | int | float | None],
) -> np.ndarray:
    """A code for each value; keys that were not there before are added to `keys`."""
    base = len(keys)
    match column.kind:
        case PropertyKind.TEXT_CODED:
            keys.extend(column.dictionary or ())
            coded: np.ndarray = cast("np.ndarray", values).astype(np.int64)
            return coded + base
        case PropertyKind.TEXT:
            found: dict[str, int] = {}
            texts = cast("list[str]", values)
            codes = [found.setdefault(text, base + len(found)) for text in texts]
            keys.extend(found)
            return np.array(codes, np.int64)
        case PropertyKind.INTEGER | PropertyKind.FLOAT:
            distinct, inverse = np.unique(cast("np.ndarray", values), return_inverse=True)
            keys.extend(distinct.tolist())
            codes_of_numbers = inverse.astype(np.int64) + base
            codes_of_numbers[values != values] = OTHER
            return codes_of_numbers
        case _:
            return np.full(len(values), OTHER, np.int64)


def _values(column: PropertyColumn) -> np.ndarray | list[str] | list[bytes] | None:
    """The values of a column as they are stored; None if it cannot be read."""
    try:
        return column.values
    except CorruptRecord:
        return None


def _numbers(values: np.ndarray, atom: Atom) -> np.ndarray:
    if not isinstance(atom.constant, Values):
        return _compare(values, atom.operator, cast("int | float", atom.constant))
    is_in = _is_in(values, cast("tuple[int | float, ...]", atom.constant.values))
    if atom.operator == "IN":
        return is_in
    not_in: np.ndarray = ~is_in & (values == values)
    return not_in


def _is_in(values: np.ndarray, constants: tuple[int | float, ...]) -> np.ndarray:
    if len(constants) > CONSTANTS_FEW:
        move = _for_integers if values.dtype.kind == "i" else _for_floats
        moved = [move("=", constant) for constant in constants]
        return np.isin(values, np.array([each[1] for each in moved if each], values.dtype))
    is_in = np.zeros(len(values), np.bool_)
    for constant in constants:
        is_in |= _compare(values, "=", constant)
    return is_in


def _compare(values: np.ndarray, operator: Operator, constant: int | float) -> np.ndarray:
    """Compare exactly, as Python does; NaN is neither equal nor different."""
    is_integer = values.dtype.kind == "i"
    moved: tuple[Operator, int | float] | None
    moved = _for_integers(operator, constant) if is_integer else _for_floats(operator, constant)
    if moved is None:
        return np.zeros(len(values), np.bool_)
    operator, constant = moved
    holds = _COMPARE[operator](values, constant)
    if operator == "<>":
        holds &= values == values
    return holds


def _for_integers(operator: Operator, constant: int | float) -> tuple[Operator, int] | None:
    """The same comparison of int64 with an integer of 64 bits; None: never true."""
    lower, upper = math.floor(constant), math.ceil(constant)
    if lower != upper and operator in ("=", "<>"):
        return None if operator == "=" else (">=", _INT64.min)
    moved = upper if operator in ("<", ">=") else lower
    if _INT64.min <= moved <= _INT64.max:
        return operator, moved
    is_below = moved < _INT64.min
    is_always = operator == "<>" or operator in ((">", ">=") if is_below else ("<", "<="))
    return (">=", _INT64.min) if is_always else None


def _for_floats(operator: Operator, constant: int | float) -> tuple[Operator, float] | None:
    """The same comparison of float64 with a float; None: never true."""
    moved = float(constant)
    if moved == constant:
        return operator, moved
    if operator in ("=", "<>"):
        return None if operator == "=" else ("<>", math.nan)
    # No float lies between the constant and its rounded value.
    if moved > constant:
        return ("<" if operator in ("<", "<=") else ">="), moved
    return ("<=" if operator in ("<", "<=") else ">"), moved
