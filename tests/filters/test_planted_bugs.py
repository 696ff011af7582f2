"""The tests notice: each planted bug makes the law that it breaks fail."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
import pytest

from raftmq.filters import cover, formula, index, literals, masks, operands, parser, ranges, scalar
from tests.filters.differential import compare
from tests.filters.test_index import test_index_equals_scan as check_index
from tests.filters.test_masks import test_mask_equals_the_oracle_message_by_message as check_masks
from tests.filters.test_masks import test_numbers_compare_exactly_across_types as check_numbers

Plant = Callable[[pytest.MonkeyPatch], None]
TRUE = formula.TRUE


def check_all(check: Callable[[Any], None], given: Iterable[object]) -> None:
    for each in given:
        check(each)


def swap_opposite(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(formula.OPPOSITES, "<", ">")


def not_of_and_stays_and(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parser, "group", lambda is_all, terms: formula.group(True, terms))


def nan_is_different(patch: pytest.MonkeyPatch) -> None:
    def comparison(operator: Any, constant: Any) -> scalar.ValueTest:
        test = formula.COMPARE[operator]
        kinds = (str,) if isinstance(constant, str) else (int, float)
        return lambda value: type(value) in kinds and test(value, constant)

    patch.setattr(scalar, "_comparison", comparison)


def booleans_are_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scalar, "_NUMBERS", frozenset({int, float, bool}))


def mirrored_operator_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operands, "MIRRORED", {each: each for each in formula.MIRRORED})


def minuses_of_texts_cancel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operands, "Other", lambda name, minuses: formula.Other(name, minuses % 2))


def leading_zeros_are_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(literals, "_integer", int)


@pytest.mark.parametrize(
    "plant",
    [
        swap_opposite,
        not_of_and_stays_and,
        nan_is_different,
        booleans_are_numbers,
        mirrored_operator_is_forgotten,
        minuses_of_texts_cancel,
        leading_zeros_are_read,
    ],
)
def test_oracle_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TypeError)):
        compare(4_000, seed=21)


def different_is_equal(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(parser._EQUALITIES, "!=", "=")


def bars_are_and(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(parser._SPELLED, "||", "AND")


def nil_is_a_property_everywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parser, "has_signs", lambda tokens: False)


def texts_in_double_quotes_keep_doubled_quotes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parser, "read_quoted", lambda token: token[1:-1])


@pytest.mark.parametrize(
    "plant",
    [
        different_is_equal,
        bars_are_and,
        nil_is_a_property_everywhere,
        texts_in_double_quotes_keep_doubled_quotes,
    ],
)
def test_oracle_notices_bugs_of_signs(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        compare(4_000, seed=21, signs=True)


def only_first_pair_is_placed(patch: pytest.MonkeyPatch) -> None:
    real = cover.cover

    def first(*arguments: Any, **options: Any) -> Any:
        pairs = real(*arguments, **options)
        return pairs and pairs[:1]

    patch.setattr(index, "cover", first)


def residual_forgets_its_pair(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(index, "assuming", lambda formula, name: lambda key: TRUE)


def absent_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(index, "_KEYS", frozenset({str, int, float}))


def bisection_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ranges, "bisect_right", bisect_left)


def removal_leaves_residuals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(index, "_take_out", lambda node, entry, residual: None)


@pytest.mark.parametrize(
    "plant",
    [
        only_first_pair_is_placed,
        residual_forgets_its_pair,
        absent_is_not_asked_for,
        bisection_is_off_by_one,
        removal_leaves_residuals,
    ],
)
def test_index_law_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_all(check_index, range(8))


def integers_are_rounded_to_floats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(masks, "_for_integers", lambda operator, constant: (operator, float(constant)))


def constants_are_rounded_to_floats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(masks, "_for_floats", lambda operator, constant: (operator, float(constant)))


@pytest.mark.parametrize("plant", [integers_are_rounded_to_floats, constants_are_rounded_to_floats])
def test_law_of_exact_numbers_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_all(check_numbers, ["=", "<>", "<", "<=", ">", ">="])


def bitmap_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(masks.BatchView, "_present", lambda view, name: np.ones(view.count, bool))


def test_law_of_masks_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    bitmap_is_forgotten(monkeypatch)
    with pytest.raises(AssertionError):
        check_all(check_masks, range(6))


def test_random_messages_have_what_goes_wrong() -> None:
    from tests.filters.expressions import row

    values = [value for seed in range(50) for value in row(Random(seed)).values()]
    assert any(value != value for value in values)
    assert any(value is True for value in values)
    assert any(type(value) is bytes for value in values)
