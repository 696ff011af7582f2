"""The subscription index: which of many thousand filters match a message, or any of a batch.

The index is a tree of nodes. A node tells three kinds of formulas apart:

| | content | work for a message |
|---|---|---|
| always | formulas of which `TRUE` remains | none |
| tables | those with a *cover*: property -> value -> child with the residuals | a look-up each |
| ranges | those without one that need a value above or below a constant | a bisection each |
| rest | all others, and those too few to be worth a table | each is evaluated |

A message starts at the root and enters, for each table of a node, the one child that has its value.
So of 10,000 groups that each ask for one type of message and something more, a message meets only
the groups of its own type. A child starts with its residuals as `rest` and becomes a table of its
own when there are more than `REST_MAX`: then ten thousand groups of one type, each with another
buyer, cost one look-up more.

The index places a formula by the property with the most distinct constants in the whole index,
because that property tells messages apart best. The choice is made once, when the formula is added;
it changes the speed, and no answer.

Subscriptions with equal formulas are one entry with several ids.

A batch walks the same tree with all of its messages at once, or some thousands of them: at each
table they are split by distinct value, in numpy; where few are left they go on one by one. The walk
may stop at each of its steps and go on later, so that an event loop need not wait for its end.

Invariants:
- `match` gives exactly those ids whose filters match: *index equals scan*, after filters were
  added, replaced and removed in any order.
- A formula is reachable over each pair of its cover, with the residual of that pair.
- Nodes without formulas do not exist, except the root.

Left out: bisection for a batch: each comparison is one numpy operation there, however many filters
share it. Counting and interval trees (OpIndex, VLDB 2014; BE-Tree, SIGMOD 2011) pay off with many
thousand ranges that overlap.

Sources: the matching tree of Aguilera et al., PODC 1999; access predicates of Fabret et al., SIGMOD
2001; sharing equal sub-expressions as in A-Tree, SIGMOD 2021; the table from message type to
residual expressions of ONS.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from .cover import Key, Pair, cover, keys
from .formula import FALSE, TRUE, Formula, size
from .parser import parse
from .ranges import Guard, Thresholds, guard
from .scalar import Row, RowTest, assuming, plain_row, row_test

if TYPE_CHECKING:
    import numpy as np

    from raftmq.batch import Batch

    from .masks import BatchView

Id = TypeVar("Id", bound=Hashable)

REST_MAX: Final = 8
"""Residuals that a child evaluates one by one; more become tables."""
SPREAD_MAX: Final = 8
"""Pairs of a cover below the root: a residual with more stays where it is."""
SPREAD_ATOMS_MAX: Final = 64
"""Comparisons of a residual below the root: a longer one stays where it is, as each level would
build all of it again."""
SPLITS_MAX: Final = 64
"""Nodes that are split while one formula is added. The others are split with later ones."""
PLACES_MAX: Final = 128
"""Most places over which a formula spreads: lists within lists would multiply them."""
LEVELS_MAX: Final = 8
"""Nodes below one another: subscribers who share a long list of equalities and differ in nothing
that can be looked up must not make a path as long as the list."""
FEW: Final = 64
"""Messages of a batch up to which they go on one by one: a numpy operation costs as much as 30 to
100 evaluations, and ranges are found by bisection only one by one."""

_KEYS: Final = frozenset({str, int, float, type(None)})
"""Types of values that can be keys of tables."""


class _Entry(Generic[Id]):
    """One formula, and the ids that subscribed to it."""

    __slots__ = ("formula", "ids", "places")

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.ids: dict[Id, None] = {}
        # The nodes in which the entry stands, each with the residual there.
        self.places: dict[tuple[_Node[Id], Formula], None] = {}


class _Residual(Generic[Id]):
    """A formula that a node evaluates, and the entries that it belongs to."""

    __slots__ = ("entries", "formula", "test")

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self.test: RowTest = row_test(formula)
        self.entries: dict[_Entry[Id], None] = {}


class _Node(Generic[Id]):
    """See the table of this module."""

    __slots__ = ("always", "is_split", "level", "parent", "ranges", "rest", "tables")

    def __init__(self, parent: "tuple[_Node[Id], Pair] | None") -> None:
        self.parent = parent
        self.level: int = 0 if parent is None else parent[0].level + 1
        self.is_split = parent is None
        self.always: dict[_Entry[Id], None] = {}
        self.rest: dict[Formula, _Residual[Id]] = {}
        self.ranges: dict[Guard, Thresholds[_Residual[Id]]] = {}
        self.tables: dict[str, dict[Key, _Node[Id]]] = {}

    def is_empty(self) -> bool:
        return not (self.always or self.rest or self.ranges or self.tables)

    def residuals(self) -> Iterator[_Residual[Id]]:
        """All residuals that this node evaluates."""
        yield from self.rest.values()
        for thresholds in self.ranges.values():
            yield from thresholds.values()


class Matches(Generic[Id]):
    """The filters that match a message of one batch, as the index was at the matching."""

    def __init__(self, views: "list[BatchView]", formulas: dict[Id, Formula]) -> None:
        self._views = views
        self._formulas = formulas

    @property
    def ids(self) -> frozenset[Id]:
        """The ids whose filter matches at least one message."""
        return frozenset(self._formulas)

    def cost(self, subscriber: Id) -> int:
        """The cost of `mask`: see `BatchView.cost`."""
        formula = self._formulas.get(subscriber, FALSE)
        return max(view.cost(formula) for view in self._views)

    def mask(self, subscriber: Id) -> "np.ndarray":
        """One bool a message: does the filter of this id match it? All false for an unknown one.

        Evaluated at the call; equal filters and shared comparisons once a batch. Read-only.
        """
        formula = self._formulas.get(subscriber, FALSE)
        masks = [view.mask(formula) for view in self._views]
        return masks[0] if len(masks) == 1 else _joined(masks)


class Index(Generic[Id]):
    """Many subscriptions, each a filter under an id. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[Formula, _Entry[Id]] = {}
        self._by_id: dict[Id, _Entry[Id]] = {}
        self._root: _Node[Id] = _Node(None)
        # Property -> its constants and how many formulas have each.
        self._constants: dict[str, Counter[Key]] = {}
        self._changes = 0
        self._splits_left = 0

    def __len__(self) -> int:
        """Subscriptions."""
        return len(self._by_id)

    def __contains__(self, subscriber: object) -> bool:
        return subscriber in self._by_id

    def add(self, subscriber: Id, text: str) -> None:
        """Subscribe with this filter, in place of the one that this id had.

        Raises:
            FilterSyntaxError: the text is wrong; nothing has changed.
        """
        formula = parse(text)
        before = self._by_id.get(subscriber)
        if before is not None:
            if before.formula == formula:
                return
            self.remove(subscriber)
        self._changes += 1
        entry = self._entries.get(formula)
        if entry is None:
            entry = self._entries[formula] = _Entry(formula)
            self._count(formula, 1)
            self._splits_left = SPLITS_MAX
            self._place(self._root, entry, formula)
        entry.ids[subscriber] = None
        self._by_id[subscriber] = entry

    def remove(self, subscriber: Id) -> bool:
        """End a subscription; whether there was one."""
        entry = self._by_id.pop(subscriber, None)
        if entry is None:
            return False
        self._changes += 1
        del entry.ids[subscriber]
        if not entry.ids:
            del self._entries[entry.formula]
            self._count(entry.formula, -1)
            for node, residual in entry.places:
                _take_out(node, entry, residual)
        return True

    def match(self, props: Mapping[str, object], *, tag: str | None = None) -> set[Id]:
        """The ids whose filter matches a message of these properties and tag. Never raises."""
        found: set[_Entry[Id]] = set()
        _match_row(self._root, plain_row(props, (*props, "TAGS"), tag), found)
        return {each for entry in found for each in entry.ids}

    def match_batch(self, batch: "Batch") -> Matches[Id]:
        """The ids whose filter matches at least one message of the batch. Never raises."""
        matches = None
        for step in self.match_in_steps(batch):
            matches = step
        assert matches is not None
        return matches

    def match_in_steps(self, batch: "Batch") -> Iterator[Matches[Id] | None]:
        """`match_batch` for an event loop: None after each bit of the work, and then the result.

        A bit takes some microseconds for most filters, and is bounded by `PART_MESSAGES` times the
        longest filter. Where texts are long, each comparison is a bit, and the masks of all filters
        that match are made, too. The index must not change before the end.
        """
        from .masks import BatchView

        changes = self._changes
        views = BatchView.parts(batch)
        found: set[_Entry[Id]] = set()
        for _ in _match_views(self._root, views, found):
            yield None
            assert self._changes == changes, "the index changed while it matched a batch"
        yield Matches(views, {each: entry.formula for entry in found for each in entry.ids})

    def explain(self) -> str:
        """How the subscriptions are spread: a few lines for people."""
        from .explain import index_lines

        return "\n".join(index_lines(len(self._by_id), len(self._entries), self._spread()))

    def _spread(self) -> "dict[str | None, tuple[int, int]]":
        """Property -> (values, entries) at the root; None -> (formulas, entries) of all others."""
        spread: dict[str | None, tuple[int, int]] = {}
        for name, table in self._root.tables.items():
            spread[name] = (len(table), sum(map(_entries_below, table.values())))
        counts = [len(residual.entries) for residual in self._root.residuals()]
        spread[None] = (len(counts), sum(counts))
        return spread

    # Placing.

    def _weight(self, name: str) -> float:
        return 1 / (1 + len(self._constants.get(name, ())))

    def _count(self, formula: Formula, step: int) -> None:
        for name, key in keys(formula):
            constants = self._constants.setdefault(name, Counter())
            constants[key] += step
            if not constants[key]:
                del constants[key]
                if not constants:
                    del self._constants[name]

    def _place(self, node: _Node[Id], entry: _Entry[Id], formula: Formula) -> None:
        """Put the residual of an entry into a node or below it."""
        if formula == TRUE:
            node.always[entry] = None
            entry.places[node, formula] = None
            return
        pairs = self._pairs(node, entry, formula)
        if pairs is None:
            residuals = _residuals_of(node, formula)
            residual = residuals.get(formula)
            if residual is None:
                residual = residuals[formula] = _Residual(formula)
            residual.entries[entry] = None
            entry.places[node, formula] = None
            if self._must_split(node):
                self._split(node)
            return
        residual_of = {name: assuming(formula, name) for name in dict(pairs)}
        for name, key in pairs:
            residual_at = residual_of[name]
            assert residual_at is not None, name
            table = node.tables.setdefault(name, {})
            child = table.get(key)
            if child is None:
                child = table[key] = _Node((node, (name, key)))
            self._place(child, entry, residual_at(key))

    def _pairs(self, node: _Node[Id], entry: _Entry[Id], formula: Formula) -> list[Pair] | None:
        """The cover over which the formula is placed; None: it stays in this node."""
        if not node.is_split:
            return None
        if node.parent is None:
            return cover(formula, self._weight)
        if len(entry.places) >= PLACES_MAX or size(formula) > SPREAD_ATOMS_MAX:
            return None
        return cover(formula, self._weight, pairs_max=SPREAD_MAX)

    def _must_split(self, node: _Node[Id]) -> bool:
        is_full = not node.is_split and len(node.rest) > REST_MAX
        return is_full and node.level < LEVELS_MAX and self._splits_left > 0

    def _split(self, node: _Node[Id]) -> None:
        """Make tables and ranges of the residuals that the node evaluated one by one."""
        self._splits_left -= 1
        node.is_split = True
        residuals = list(node.rest.values())
        node.rest.clear()
        for residual in residuals:
            for entry in residual.entries:
                del entry.places[node, residual.formula]
                self._place(node, entry, residual.formula)


def _residuals_of(node: _Node[Id], formula: Formula) -> dict[Formula, _Residual[Id]]:
    """Where a formula without a cover stands in a node."""
    guarded = guard(formula) if node.is_split else None
    if guarded is None:
        return node.rest
    key, constant = guarded
    thresholds = node.ranges.get(key)
    if thresholds is None:
        thresholds = node.ranges[key] = Thresholds(key[1])
    return thresholds.put(constant)


def _tidy_ranges(node: _Node[Id], formula: Formula) -> None:
    """Remove thresholds that are empty after the formula has gone."""
    guarded = guard(formula) if node.is_split else None
    if guarded is not None:
        key, constant = guarded
        node.ranges[key].tidy(constant)
        if not node.ranges[key]:
            del node.ranges[key]


def _take_out(node: _Node[Id], entry: _Entry[Id], formula: Formula) -> None:
    """Remove an entry from a node, and the node and those above it if they are empty by then."""
    if formula == TRUE:
        del node.always[entry]
    else:
        residuals = _residuals_of(node, formula)
        residual = residuals[formula]
        del residual.entries[entry]
        if not residual.entries:
            del residuals[formula]
            _tidy_ranges(node, formula)
    while node.parent is not None and node.is_empty():
        parent, (name, key) = node.parent
        del parent.tables[name][key]
        if not parent.tables[name]:
            del parent.tables[name]
        node = parent


def _match_row(node: _Node[Id], row: Row, found: set[_Entry[Id]]) -> None:
    """Find the entries that match one message, from this node down."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if node.always:
            found.update(node.always)
        for residual in node.rest.values():
            if residual.test(row):
                found.update(residual.entries)
        for (name, _, family), thresholds in node.ranges.items():
            value = row.get(name)
            if type(value) is family or (type(value) is int and family is float):
                for residual in thresholds.passing(value):  # type: ignore[arg-type]
                    if residual.test(row):
                        found.update(residual.entries)
        for name, table in node.tables.items():
            value = row.get(name)
            if type(value) in _KEYS:
                child = table.get(value)  # type: ignore[arg-type]  # bytes and bool are out
                if child is not None:
                    nodes.append(child)


def _match_views(
    root: _Node[Id], views: "list[BatchView]", found: set[_Entry[Id]]
) -> Iterator[None]:
    """Find the entries that match any message, and have their masks made where that takes long."""
    from .masks import STEP_BYTES

    for view in views:
        match = _match_rows if view.count <= FEW and not view.is_long else _match_view
        yield from match(root, view, found)
    for view in views:
        # A reader makes the others in one step.
        for entry in found:
            if view.cost(entry.formula) > STEP_BYTES:
                yield from view.mask_in_steps(entry.formula)


def _match_rows(node: _Node[Id], view: "BatchView", found: set[_Entry[Id]]) -> Iterator[None]:
    """Find the entries that match any message, from this node down; a step is one message."""
    for row in view.rows:
        _match_row(node, row, found)
        yield


def _match_view(
    node: _Node[Id],
    view: "BatchView",
    found: set[_Entry[Id]],
    positions: "np.ndarray | None" = None,
) -> Iterator[None]:
    """Find the entries that match any of these messages (None: all), from this node down.

    A step is one formula, one comparison on long texts, or a few messages at a node below.
    """
    from .masks import OTHER

    found.update(node.always)
    for residual in node.residuals():
        if not found.issuperset(residual.entries):
            yield from view.mask_in_steps(residual.formula)
            mask = view.mask(residual.formula)
            if mask.any() if positions is None else mask[positions].any():
                found.update(residual.entries)
    for name, table in node.tables.items():
        coded = view.coded(name)
        for code, places in coded.split(positions):
            child = table.get(coded.keys[code]) if code != OTHER else None
            if child is None:
                continue
            if not (child.rest or child.ranges or child.tables):
                found.update(child.always)
            elif len(places) > FEW or view.is_long:
                yield from _match_view(child, view, found, places)
            else:
                for place in places.tolist():
                    _match_row(child, view.rows[place], found)
                yield


def _joined(masks: "list[np.ndarray]") -> "np.ndarray":
    import numpy as np

    joined = np.concatenate(masks)
    joined.flags.writeable = False
    return joined


def _entries_below(node: _Node[Id]) -> int:
    return sum(1 for _ in _all_entries(node))


def _all_entries(node: _Node[Id]) -> Iterator[_Entry[Id]]:
    yield from node.always
    for residual in node.residuals():
        yield from residual.entries
    for table in node.tables.values():
        for child in table.values():
            yield from _all_entries(child)
