"""Columns give what messages one by one give; nothing in a batch makes a filter raise."""

from random import Random
from typing import Any

import numpy as np
import pytest

from raftmq.batch import Batch, PropertyKind, encode
from raftmq.errors import CorruptRecord
from raftmq.filters import Index, masks
from raftmq.filters import compile as compile_filter
from raftmq.filters.masks import CONSTANTS_FEW, ROWS_MAX, BatchView
from raftmq.filters.scalar import row_test
from tests.filters.batches import TAGS, batch_of, random_batch
from tests.filters.expressions import Writer, quoted
from tests.filters.oracle import Oracle


@pytest.mark.parametrize("seed", range(6))
def test_mask_equals_the_oracle_message_by_message(seed: int) -> None:
    random = Random(seed)
    writer = Writer(random, clean=True)
    for _ in range(40):
        count = random.choice([1, 2, ROWS_MAX, ROWS_MAX + 1, 30, 70])
        batch, messages = random_batch(random, count)
        for _ in range(8):
            text = writer.text()
            oracle = Oracle(text)
            found = compile_filter(f"({text})")
            mask = found.mask(batch)
            assert mask.dtype == np.bool_
            expected = [oracle.outcome(props) is True for props, _ in messages]
            assert mask.tolist() == expected, text
            assert [found.matches(props, tag=tag) for props, tag in messages] == expected


def test_mask_of_tags_equals_the_tags() -> None:
    random = Random(1)
    for count in (3, 40):
        batch, messages = random_batch(random, count)
        for text in ["paid", "paid || 'it''s'", "NOT TAGS = 'paid'", "TAGS IS NULL", "nobody", "*"]:
            found = compile_filter(text)
            expected = [found.matches(props, tag=tag) for props, tag in messages]
            assert found.mask(batch).tolist() == expected
        (tag,) = random.sample(TAGS, 1)
        assert compile_filter(quoted(tag)).mask(batch).tolist() == [
            each == tag for _, each in messages
        ]


def test_property_called_tags_is_hidden_by_the_tag() -> None:
    for count in (4, 40):
        batch = batch_of([{"TAGS": "x"}] * count, ["y"] * count)
        assert compile_filter("TAGS = 'y'").mask(batch).all()
        assert not compile_filter("TAGS = 'x'").mask(batch).any()


EDGES = [
    0, 1, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, 2**63 - 1024, -(2**53) - 1, -(2**63),
    0.5, -0.5, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**63 * 1.1, 1e300, -1e300, 5e-324,
    float("inf"), float("-inf"), float("nan"), 0.0, -0.0,
]  # fmt: skip


@pytest.mark.parametrize("operator", ["=", "<>", "<", "<=", ">", ">="])
def test_numbers_compare_exactly_across_types(operator: str) -> None:
    rows: list[dict[str, Any]] = [{"n": value} for value in EDGES] * 2
    batch = batch_of(rows)
    assert {column.kind for column in batch.columns} == {PropertyKind.INTEGER, PropertyKind.FLOAT}
    for constant in EDGES:
        if constant != constant or abs(constant) == float("inf"):
            continue
        found = compile_filter(f"n {operator} {constant!r}")
        listed = compile_filter(f"n IN ({constant!r}, 3)")
        expected = [found.matches(each) for each in rows]
        assert found.mask(batch).tolist() == expected, constant
        assert listed.mask(batch).tolist() == [listed.matches(each) for each in rows]
        # Python compares an integer and a float exactly: that is the law.
        python = {"=": "=="}.get(operator, operator) if operator != "<>" else "!="
        for value, holds in zip(EDGES, expected, strict=False):
            law = value == value and eval(f"value {python} constant")
            assert holds == law, (value, operator, constant)


@pytest.mark.parametrize("name", ["whole", "real", "mixed"])
def test_long_lists_of_numbers_compare_exactly(name: str) -> None:
    whole = [value for value in EDGES if type(value) is int]
    real = [value for value in EDGES if type(value) is float]
    rows: list[dict[str, Any]] = [
        {"whole": w, "real": r, "mixed": m}
        for w, r, m in zip(whole * 9, real * 9, EDGES * 9, strict=False)
    ]
    batch = batch_of(rows)
    listed = [value for value in EDGES if value == value and abs(value) != float("inf")]
    for constants in (listed, [*listed[::2], *range(-20, 0)], [2.0**70 * n for n in range(1, 20)]):
        assert len(set(constants)) > CONSTANTS_FEW
        for word in ("IN", "NOT IN"):
            found = compile_filter(f"{name} {word} ({', '.join(map(repr, constants))})")
            assert found.mask(batch).tolist() == [found.matches(each) for each in rows]


def test_negated_property_is_exact_at_the_end_of_64_bits() -> None:
    rows: list[dict[str, Any]] = [
        {"n": -(2**63)},
        {"n": 2**63 - 1},
        {"n": 2.0**63},
        {"n": 1e300},
    ] * 10
    batch = batch_of(rows)
    for text in ["-n = -9223372036854775808", "-n < -9223372036854775808", "-n > 9E18"]:
        found = compile_filter(text)
        assert found.mask(batch).tolist() == [found.matches(each) for each in rows]
    assert compile_filter("-n = -9223372036854775808").matches({"n": 2.0**63})


def damaged(payload: bytes) -> list[Batch]:
    """The batch with each single byte of its columns changed, as far as it still decodes."""
    found = []
    for at in range(72, len(payload)):
        broken = bytearray(payload)
        broken[at] ^= 0xFF
        try:
            found.append(Batch.decode(bytes(broken), check=False))
        except CorruptRecord:
            continue
    return found


@pytest.mark.parametrize(("count", "part"), [(6, 100), (40, 100), (40, 13)])
def test_damaged_columns_count_as_absent_and_never_raise(
    count: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "PART_MESSAGES", part)
    rows: list[dict[str, Any]] = [
        {"t": f"v{i % 3}", "u": f"w{i}", "b": i % 2 == 0, "n": i, "y": b"x"} for i in range(count)
    ]
    payload = encode([b""] * count, props=rows, tags=["é"] * count).to_bytes(queue=1)
    conditions = ["t = 'v1'", "u >= 'w1'", "b", "b = FALSE", "n > 1", "y IS NOT NULL", "t IS NULL"]
    conditions += ["TAGS = 'é'", "t = u", "NOT (t = 'v1' AND u = 'w0')", "TAGS IS NULL"]
    filters = {text: compile_filter(f"({text})") for text in conditions}
    index: Index[str] = Index()
    for text in conditions:
        index.add(text, f"({text})")
    batches = damaged(payload)
    assert len(batches) > 50
    unreadable = 0
    for batch in batches:
        unreadable += not is_readable(batch)
        tests = {text: row_test(found.formula) for text, found in filters.items()}
        rows_read, matches = BatchView(batch).rows, index.match_batch(batch)
        for text, found in filters.items():
            mask = found.mask(batch)
            assert mask.tolist() == [tests[text](each) for each in rows_read]
            assert (text in matches.ids) == mask.any()
            assert matches.mask(text).tolist() == mask.tolist()
    assert unreadable > 10


def is_readable(batch: Batch) -> bool:
    try:
        batch.validate()
    except CorruptRecord:
        return False
    return True


def test_kept_masks_cannot_be_written() -> None:
    batch = batch_of([{"a": i} for i in range(20)])
    index: Index[str] = Index()
    index.add("x", "a > 5")
    mask = index.match_batch(batch).mask("x")
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = True


def test_values_of_no_known_type_are_present_and_equal_nothing() -> None:
    from decimal import Decimal
    from enum import IntEnum

    class Level(IntEnum):
        HIGH = 5

    assert compile_filter("a IS NOT NULL").matches({"a": Decimal(5)})
    assert not compile_filter("a = 5 OR a <> 5").matches({"a": Decimal(5)})
    assert compile_filter("a = 5").matches({"a": Level.HIGH})
    assert compile_filter("a = 5").matches({"a": np.float64(5)})
    assert compile_filter("a IS NULL").matches({"a": None})


@pytest.mark.parametrize("value", ["number", "text"])
def test_masks_of_many_comparisons_take_bounded_memory(value: str) -> None:
    index: Index[int] = Index()
    for each in range(10):
        index.add(each, " OR ".join(f"a < -{each}.{n} OR a < '-{each}{n}'" for n in range(1, 500)))
    numbers = range(2 * masks.PART_MESSAGES)
    batch = batch_of([{"a": each if value == "number" else f"{each % 200}"} for each in numbers])
    matches = index.match_batch(batch)
    assert not matches.ids
    for view in matches._views:
        kept = [*view._masks.values(), *view._tables.values()]
        assert sum(each.nbytes for each in kept) < 3 * masks.KEPT_BYTES


def test_forgotten_masks_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "KEPT_BYTES", 0)
    monkeypatch.setattr(masks, "STEP_BYTES", 0)
    random = Random(4)
    writer = Writer(random, clean=True)
    for _ in range(40):
        batch, messages = random_batch(random, 30)
        found = compile_filter(f"({writer.text()})")
        expected = [found.matches(props, tag=tag) for props, tag in messages]
        index: Index[int] = Index()
        index.add(1, found.text)
        assert index.match_batch(batch).mask(1).tolist() == expected
        view = BatchView(batch)
        for _ in view.mask_in_steps(found.formula):
            pass
        assert view.mask(found.formula).tolist() == expected
