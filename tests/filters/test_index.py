"""Index equals scan: whatever was added, replaced and removed, in whatever order."""

import gc
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from raftmq.filters import Filter, FilterSyntaxError, Index, masks, scalar
from raftmq.filters import compile as compile_filter
from raftmq.filters.cover import cover
from raftmq.filters.formula import Atom, Pattern
from raftmq.filters.index import (
    FEW,
    LEVELS_MAX,
    PLACES_MAX,
    REST_MAX,
    SPLITS_MAX,
    SPREAD_ATOMS_MAX,
    SPREAD_MAX,
)
from raftmq.filters.like import matcher
from raftmq.filters.parser import parse
from raftmq.filters.scalar import ValueTest, assume, plain_row, row_test, value_test
from tests.filters.batches import TAGS, batch_of, random_batch
from tests.filters.expressions import TEXTS, Writer, row

TYPES = ["type", "a", "city"]


def writer(random: Random) -> Writer:
    return Writer(random, names=["a", "b", "type", "city"], clean=True)


def random_filter(random: Random, write: Writer) -> str:
    """Tags, or the shapes that subscriptions have, or anything."""
    choice = random.random()
    if choice < 0.1:
        return " || ".join("'" + t.replace("'", "''") + "'" for t in random.sample(TAGS, 2))
    if choice < 0.5:
        kinds = [f"type = 'k{random.randrange(6)}'" for _ in range(random.randint(1, 3))]
        return f"({' OR '.join(kinds)}) AND {write.condition(1)}"
    return f"({write.text()})"


def random_message(random: Random) -> tuple[dict[str, Any], str | None]:
    props = row(random, ["a", "b", "type", "city"])
    if random.random() < 0.5:
        props["type"] = f"k{random.randrange(6)}"
    return props, random.choice([None, *TAGS])


def scan(filters: dict[int, Filter], props: dict[str, Any], tag: str | None) -> set[int]:
    return {each for each, found in filters.items() if found.matches(props, tag=tag)}


def check_messages(random: Random, index: Index[int], filters: dict[int, Filter]) -> None:
    for _ in range(15):
        props, tag = random_message(random)
        assert index.match(props, tag=tag) == scan(filters, props, tag)


def check_batch(random: Random, index: Index[int], filters: dict[int, Filter], count: int) -> None:
    messages = [random_message(random) for _ in range(count)]
    batch = batch_of([props for props, _ in messages], [tag for _, tag in messages])
    matches = index.match_batch(batch)
    expected = {
        each: [found.matches(props, tag=tag) for props, tag in messages]
        for each, found in filters.items()
    }
    assert matches.ids == {each for each, mask in expected.items() if any(mask)}
    for each, mask in expected.items():
        assert matches.mask(each).tolist() == mask


@pytest.mark.parametrize("seed", range(8))
def test_index_equals_scan(seed: int) -> None:
    random = Random(seed)
    write = writer(random)
    index: Index[int] = Index()
    filters: dict[int, Filter] = {}
    for step in range(300):
        each = random.randrange(80)
        if random.random() < 0.3:
            assert index.remove(each) == (filters.pop(each, None) is not None)
        else:
            text = random_filter(random, write)
            index.add(each, text)
            filters[each] = compile_filter(text)
        assert len(index) == len(filters)
        assert all((each in index) == (each in filters) for each in range(80))
        if step % 30 == 0:
            check_messages(random, index, filters)
    check_messages(random, index, filters)
    for count in (1, FEW, FEW + 1, 60):
        check_batch(random, index, filters, count)
    for each in list(filters):
        index.remove(each)
    assert index._root.is_empty()
    assert not index._constants
    assert not index._entries


@pytest.mark.parametrize("part", [FEW + 6, 100, 249])
def test_batch_in_parts_is_matched_as_a_whole(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "PART_MESSAGES", part)
    random = Random(part)
    write = writer(random)
    filters = {each: compile_filter(random_filter(random, write)) for each in range(60)}
    index: Index[int] = Index()
    for each, found in filters.items():
        index.add(each, found.text)
    check_batch(random, index, filters, 250)


def test_steps_of_a_batch_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "PART_MESSAGES", 200)
    index: Index[int] = Index()
    for each in range(50):
        index.add(each, f"a = {each} AND b > 1")
        index.add(100 + each, f"a <> {each}.5 AND c = 5")
    batch = batch_of([{"a": each % 50, "b": each % 3} for each in range(1_000)])
    *steps, matches = index.match_in_steps(batch)
    # A value of `a` makes a step in each part; so does a residual of the other property.
    assert len(steps) >= 5 * 50
    assert set(steps) == {None}
    assert matches is not None
    assert matches.ids == set(range(50))


def test_index_that_changes_while_it_matches_is_a_bug() -> None:
    index: Index[int] = Index()
    for each in range(20):
        index.add(each, f"b <> {each}")
    batch = batch_of([{"b": each} for each in range(100)])
    for change in (lambda: index.add(20, "c = 1"), lambda: index.remove(3)):
        steps = index.match_in_steps(batch)
        next(steps)
        change()
        with pytest.raises(AssertionError, match="changed"):
            next(steps)


def test_comparison_is_evaluated_once_for_each_distinct_value_and_for_all_who_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masks, "PART_MESSAGES", 500)
    asked: list[object] = []

    def counted(atom: Atom) -> ValueTest:
        def test(value: object) -> bool:
            asked.append(value)
            return value_test(atom)(value)

        return test

    monkeypatch.setattr(masks, "value_test", counted)
    index: Index[int] = Index()
    for each in range(30):
        index.add(each, f"city CONTAINS 'a' AND n <> {each}")
    batch = batch_of([{"city": ["Paris", "Rome", "Oslo"][n % 3], "n": n} for n in range(2_000)])
    matches = index.match_batch(batch)
    assert matches.ids == set(range(30))
    assert int(matches.mask(3).sum()) == 666
    assert sorted(map(str, asked)) == ["Oslo", "Paris", "Rome"]


def test_order_of_changes_does_not_change_an_answer() -> None:
    random = Random(3)
    write = writer(random)
    texts = {each: random_filter(random, write) for each in range(120)}
    orders = [list(texts), list(reversed(texts)), random.sample(list(texts), len(texts))]
    built: list[Index[int]] = []
    for order in orders:
        index: Index[int] = Index()
        for each in order:
            index.add(each, "type = 'k1' AND a = 1")
        for each in reversed(order):
            index.add(each, texts[each])
        built.append(index)
    for _ in range(200):
        props, tag = random_message(random)
        first, *others = [index.match(props, tag=tag) for index in built]
        assert all(other == first for other in others)


def test_residual_of_each_pair_is_the_formula_there() -> None:
    random = Random(9)
    write = Writer(random, names=["a", "b", "type"], clean=True)
    covered = 0
    for _ in range(1_500):
        formula = parse(f"({write.text()})")
        pairs = cover(formula, lambda name: 0.5)
        if pairs is None:
            continue
        covered += 1
        for _ in range(4):
            props = row(random, ["a", "b", "type"])
            name, key = random.choice(pairs) if pairs else ("a", None)
            if key is None:
                props.pop(name, None)
            else:
                props[name] = key
            plain = plain_row(props, props, None)
            holds = row_test(formula)(plain)
            assert holds == row_test(assume(formula, name, key))(plain)
            assert not holds or any(plain.get(n) == k for n, k in pairs)
    assert covered > 400


def test_range_that_stood_in_a_node_before_it_was_split_can_leave() -> None:
    index: Index[int] = Index()
    for each in range(2 * REST_MAX):
        index.add(each, f"type = 'x' AND amount > {each % 5} AND amount <> {each + 100}")
    # The same residual again, of another formula.
    index.add(100, "(type = 'x' OR type = 'y') AND amount > 0 AND amount <> 100")
    assert index.match({"type": "x", "amount": 3}) == {
        *(each for each in range(2 * REST_MAX) if each % 5 < 3),
        100,
    }
    for each in [100, *range(2 * REST_MAX)]:
        assert index.remove(each)
    assert index._root.is_empty()


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
def test_ranges_are_found_by_their_ends(operator: str) -> None:
    index: Index[str] = Index()
    texts = [f"n {operator} {constant}" for constant in (-1, 0, 0.5, 1, 2, "'a'", "'b'")]
    for text in texts:
        index.add(text, text)
    for value in (-2, -1, 0, 0.25, 0.5, 1, 2, 3, "", "a", "b", "c", True, b"a", float("nan"), None):
        expected = {text for text in texts if compile_filter(text).matches({"n": value})}
        assert index.match({"n": value}) == expected


def test_refused_text_changes_nothing() -> None:
    index: Index[str] = Index()
    index.add("g", "a = 1")
    with pytest.raises(FilterSyntaxError):
        index.add("g", "a = ")
    assert index.match({"a": 1}) == {"g"}
    assert len(index) == 1


def test_equal_filters_are_one_entry_and_leave_one_by_one() -> None:
    index: Index[int] = Index()
    for each in range(100):
        index.add(each, "a=1" if each % 2 else "a = 1.0 AND a = 1")
    assert len(index._entries) == 1
    assert index.match({"a": 1}) == set(range(100))
    for each in range(99):
        index.remove(each)
    assert index.match({"a": 1}) == {99}


def test_boolean_and_number_do_not_meet_in_a_table() -> None:
    index: Index[str] = Index()
    index.add("one", "a = 1")
    index.add("yes", "a = TRUE")
    index.add("text", "a = '1'")
    index.add("none", "a IS NULL")
    for value, expected in [(1, "one"), (1.0, "one"), (True, "yes"), ("1", "text"), (None, "none")]:
        assert index.match({"a": value}) == {expected}
        for count in (2, 40):
            assert index.match_batch(batch_of([{"a": value}] * count)).ids == {expected}
    assert index.match({"a": b"1"}) == index.match({"a": float("nan")}) == set()


def test_many_of_one_value_become_a_table_of_the_next_property() -> None:
    index: Index[int] = Index()
    count = 10 * REST_MAX
    for each in range(2 * count):
        index.add(-1 - each, f"type = 'k{each}'")
    for each in range(count):
        index.add(each, f"type = 'k0' AND buyer IN ({each}, -1)")
    child = index._root.tables["type"]["k0"]
    assert len(child.tables["buyer"]) == count + 1
    assert not child.rest
    assert index.match({"type": "k0", "buyer": 7}) == {-1, 7}
    assert len(index.match({"type": "k0", "buyer": -1})) == count + 1
    for each in range(count):
        index.remove(each)
    assert not child.tables
    assert index.match({"type": "k0", "buyer": 7}) == {-1}


def test_property_with_most_constants_is_indexed() -> None:
    index: Index[int] = Index()
    for each in range(100):
        index.add(each, f"country = 'c{each % 2}' AND buyer = {each}")
    # The first ones were placed when nothing was known.
    assert len(index._root.tables["buyer"]) > 90


def test_lists_within_lists_do_not_multiply() -> None:
    index: Index[int] = Index()
    lists = [f"{name} IN ({', '.join(map(str, range(100)))})" for name in ("a", "b", "c")]
    for each in range(2 * REST_MAX):
        index.add(each, f"{' AND '.join(lists)} AND d = {each % 3}.5")
    places = sum(len(entry.places) for entry in index._entries.values())
    assert places <= 100 * 2 * REST_MAX
    assert index.match({"a": 1, "b": 2, "c": 3, "d": 1.5}) == set(range(1, 2 * REST_MAX, 3))


def test_short_lists_within_short_lists_do_not_multiply() -> None:
    lists = [f"p{each} IN ({', '.join(map(str, range(SPREAD_MAX)))})" for each in range(8)]
    index: Index[int] = Index()
    for each in range(2 * REST_MAX):
        index.add(each, f"{' AND '.join(lists)} AND z <> {each}")
    places = [len(entry.places) for entry in index._entries.values()]
    assert max(places) < 2 * PLACES_MAX
    props = {f"p{each}": each for each in range(8)}
    assert index.match({**props, "z": 3}) == set(range(2 * REST_MAX)) - {3}
    for each in range(2 * REST_MAX):
        index.remove(each)
    assert index._root.is_empty()


def test_long_list_that_many_share_makes_no_long_path() -> None:
    shared = " AND ".join(f"p{each} = 1" for each in range(SPREAD_ATOMS_MAX - 2))
    index: Index[int] = Index()
    for each in range(2 * REST_MAX):
        index.add(each, f"{shared} AND z <> {each}")
    node = index._root
    while node.tables:
        node = next(iter(next(iter(node.tables.values())).values()))
    assert node.level == LEVELS_MAX
    props = {f"p{each}": 1 for each in range(SPREAD_ATOMS_MAX)}
    assert index.match({**props, "z": 3}) == set(range(2 * REST_MAX)) - {3}


LONG = {
    "list": f"a IN ({', '.join(map(str, range(2_500)))})",
    "list that is indexed": f"a IN ({', '.join(map(str, range(900)))})",
    "all of": " AND ".join(f"p{each} = 1" for each in range(1_000)),
    "any of all": " OR ".join(f"(a = {n} AND b = {n} AND c <> {n})" for n in range(420)),
    "any of lists": " OR ".join(f"(a IN ({n}, {n + 1}) AND c <> {n})" for n in range(450)),
    "patterns": " OR ".join(f"t LIKE '%x{n}%y'" for n in range(700)),
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected: beside all that other tests hold, that takes half a second once."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("kind", LONG)
def test_long_filters_enter_and_leave_in_little_time(kind: str) -> None:
    index: Index[int] = Index()
    times, parsing = [], []
    for each in range(3 * REST_MAX):
        text = f"({LONG[kind]}) AND z <> {each}"
        begun = time.process_time()
        compile_filter(text)
        start = time.process_time()
        index.add(each, text)
        times.append(time.process_time() - start)
        parsing.append(start - begun)
    # Against the parser's time, 1 to 5 ms, for on busy cores all takes several times as long. The
    # worst one splits nodes.
    once = sorted(parsing)[len(parsing) // 2]
    assert max(times) < 120 * once
    assert sorted(times)[len(times) // 2] < 20 * once
    props = {"a": 7, "b": 7, "c": 8, "t": "-x7-y", **{f"p{each}": 1 for each in range(1_000)}}
    assert index.match({**props, "z": 3}) == set(range(3 * REST_MAX)) - {3}
    for each in range(3 * REST_MAX):
        assert index.remove(each)
    assert index._root.is_empty()


def test_nodes_that_were_not_split_at_once_are_split_with_later_filters() -> None:
    index: Index[int] = Index()
    shared = f"a IN ({', '.join(map(str, range(3 * SPLITS_MAX)))})"
    split = []
    for each in range(2 * REST_MAX):
        index.add(each, f"{shared} AND z <> {each}")
        table = index._root.tables["a"]
        split.append(sum(node.is_split for node in table.values()))
    assert split[REST_MAX - 1 : REST_MAX + 4] == [0, *(SPLITS_MAX * n for n in (1, 2, 3, 3))]
    assert index.match({"a": 5, "z": 3}) == set(range(2 * REST_MAX)) - {3}


def test_matches_keep_what_was_true_when_the_batch_was_matched() -> None:
    random = Random(2)
    index: Index[str] = Index()
    index.add("g", "a IS NOT NULL")
    batch, messages = random_batch(random, 50)
    matches = index.match_batch(batch)
    index.add("g", "a IS NULL")
    assert matches.mask("g").tolist() == ["a" in props for props, _ in messages]
    assert not matches.mask("nobody").any()


def test_explain_says_how_subscriptions_are_spread() -> None:
    index: Index[int] = Index()
    for each in range(20):
        index.add(each, f"type = 'k{each % 10}' AND b > {each}")
    index.add(20, "type = 'k1' AND b > 1")
    index.add(21, "amount > 5 OR b = 1")
    assert index.explain().splitlines() == [
        "22 subscriptions, 21 distinct",
        "indexed by type: 10 values, 20 residuals",
        "not indexed: 1, evaluated for each batch, for a message if in its range",
    ]


def test_texts_with_quotes_are_found() -> None:
    index: Index[str] = Index()
    for text in TEXTS:
        quoted = text.replace("'", "''")
        index.add(text, f"city = '{quoted}'")
    for text in TEXTS:
        assert index.match({"city": text}) == {text}


@pytest.mark.parametrize("count", [1, 3, FEW + 30])
@pytest.mark.parametrize("seed", range(3))
def test_long_texts_are_matched_as_short_ones(
    count: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "LONG_TEXT", 0)
    monkeypatch.setattr(masks, "STEP_BYTES", 0)
    monkeypatch.setattr(masks, "PART_MESSAGES", FEW)
    random = Random(seed)
    write = writer(random)
    filters = {each: compile_filter(random_filter(random, write)) for each in range(60)}
    index: Index[int] = Index()
    for each, found in filters.items():
        index.add(each, found.text)
    check_batch(random, index, filters, count)


@pytest.mark.parametrize("key", ["", "type = 'x' AND "])
def test_step_makes_one_comparison_of_a_long_text(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "PART_MESSAGES", 20)
    searched: list[int] = [0]

    def counted(constant: Pattern) -> Callable[[str], bool]:
        def fits(text: str) -> bool:
            searched[-1] += len(text)
            return matcher(constant)(text)

        return fits

    monkeypatch.setattr(scalar, "matcher", counted)
    index: Index[int] = Index()
    for each in range(30):
        patterns = " OR ".join(f"a LIKE '%_x{each}y{n}%'" for n in range(20))
        index.add(each, f"{key}({patterns} OR b = 1)")
    rows: list[dict[str, Any]] = [{"a": "x", "type": "x", "b": each % 30} for each in range(40)]
    rows[7]["a"] = rows[33]["a"] = "x" * 100_000
    matches = None
    for step in index.match_in_steps(batch_of(rows)):
        searched.append(0)
        matches = step
    assert max(searched) < 2 * 100_000
    searched[:] = [0]
    assert matches is not None
    assert matches.ids == set(range(30))
    for each in range(30):
        assert matches.mask(each).tolist() == [row["b"] == 1 for row in rows]
    # A fetch finds the masks made.
    assert searched == [0]
