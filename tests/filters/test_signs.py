"""Filters with the signs of expression languages: `price == 3 && !vip || coupon == nil`."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.filters import (
    DEPTH_MAX,
    EXPRESSION_CHARACTERS_MAX,
    Filter,
    FilterSyntaxError,
    Index,
    is_sql,
    is_tags,
)
from raftmq.filters import compile as compile_filter
from tests.filters.differential import compare
from tests.filters.test_syntax import check_any, refusal


def test_random_filters_with_signs_mean_what_the_oracle_says() -> None:
    refused, true = compare(2_500, seed=12, signs=True)
    assert refused < 1_500
    assert true > 400


@pytest.mark.parametrize(
    ("text", "as_sql"),
    [
        ("price == 3", "price = 3"),
        ("price==3&&region!='cn'", "price = 3 AND region <> 'cn'"),
        (
            "price == 3 && region != 'cn' || !vip && coupon == nil",
            "price = 3 AND region <> 'cn' OR NOT vip AND coupon IS NULL",
        ),
        ("a == 1 || b == 2 && c == 3", "a = 1 OR (b = 2 AND c = 3)"),
        ("a == 1 AND b == 2 || c = 3", "(a = 1 AND b = 2) OR c = 3"),
        ("!(a == 1 && b > 2)", "NOT (a = 1 AND b > 2)"),
        ("!!vip && !(!(b))", "vip AND b"),
        ("!true || !false", "NOT TRUE OR NOT FALSE"),
        ("NOT !a", "NOT NOT a"),
        ("NOT a == b", "NOT a = b"),
        ("x == nil", "x IS NULL"),
        ("x != nil", "x IS NOT NULL"),
        ("nil == x", "x IS NULL"),
        ("nil != x", "x IS NOT NULL"),
        ("(nil) == ((x))", "x IS NULL"),
        ("x == NULL", "x IS NULL"),
        ("!(x == nil)", "x IS NOT NULL"),
        ("!(x != nil || y == nil)", "x IS NULL AND y IS NOT NULL"),
        ("`nil` == 5 && nil != y", "nil = 5 AND y IS NOT NULL"),
        ('region == "cn"', "region = 'cn'"),
        ('region = "it\'s ""so"""', "region = 'it''s \"so\"'"),
        ('a IN ("x", \'y\') && b LIKE "x_y" ESCAPE "!"', "a IN ('x', 'y') AND b LIKE 'x_y'"),
        ('a BETWEEN "a" AND "b"', "a BETWEEN 'a' AND 'b'"),
        ('"cn" == region', "region = 'cn'"),
        ("3 == price", "price = 3"),
        ("-a == -b && c", "-a = -b AND c"),
        ("vip == true && b != FALSE", "vip = TRUE AND b = TRUE"),
        ("a = 1 || b", "a = 1 OR b"),
        ("a || b && c", "a OR b AND c"),
        ("(a || b)", "a OR b"),
        ("a -- ==\n== /* && */ 1", "a = 1"),
        ("TAGS == 'paid' && amount > 5", "TAGS = 'paid' AND amount > 5"),
    ],
)  # fmt: skip
def test_signs_mean_the_same_as_sql(text: str, as_sql: str) -> None:
    found, plain = compile_filter(text), compile_filter(as_sql)
    assert found == plain
    assert str(found) == str(plain)
    assert found.sql == str(plain)
    assert not is_sql(text)


def test_index_evaluates_both_spellings_once() -> None:
    index: Index[str] = Index()
    index.add("new", "type = 'paid' AND NOT vip")
    index.add("old", 'type == "paid" && !vip')
    assert index.match({"type": "paid", "vip": False}) == {"new", "old"}
    assert "2 subscriptions, 1 distinct" in index.explain()


@pytest.mark.parametrize(
    "text",
    [
        *("paid || shipped", "a||b", "'x == y' || b", "nil", "nil || a", "*", ""),
        *("nil = 5", "a = nil", "a IS NULL", "a > nil", "(nil)", "a = '\"'", "`a!b` = '&&'"),
        *("a = 1 -- b == nil", "a = 1 /* || */ AND b = 2"),
    ],
)
def test_text_without_signs_is_kept_as_it_is(text: str) -> None:
    assert is_sql(text)
    assert compile_filter(text).sql == text


def test_nil_is_a_property_where_no_sign_stands() -> None:
    assert compile_filter("nil = 5").matches({"nil": 5})
    assert compile_filter("a = nil").matches({"a": 5, "nil": 5})
    assert not compile_filter("a = nil").matches({})
    assert compile_filter("`nil` == 5").matches({"nil": 5})
    assert compile_filter("Nil == 5").matches({"Nil": 5})
    # Printed so that it means the same beside signs.
    assert str(compile_filter("nil = 5")) == "`nil` = 5"


def test_words_with_bars_between_stay_tags() -> None:
    assert compile_filter("a || b").names == ("TAGS",)
    assert compile_filter("(a || b)").names == ("a", "b")
    assert compile_filter("a || b && c").names == ("a", "b", "c")


def test_comparisons_with_what_is_absent_are_unknown() -> None:
    different = compile_filter("region != 'cn'")
    assert not different.matches({})
    assert not compile_filter("!(region == 'cn')").matches({})
    assert compile_filter("region != 'cn' || region == nil").matches({})
    assert not compile_filter("a == b").matches({})
    assert not compile_filter("price < 3").matches({})


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("!a == b", 0, "write !(a == b)"),
        ("x == 1 && !a != 5", 10, "write !(a == b)"),
        ("!(a) == b", 0, "write !(a == b)"),
        ("!a IS NULL", 0, "write !(a == b)"),
        ("!a IN (1)", 0, "write !(a == b)"),
        ("!!a < 5", 0, "write !(a == b)"),
        ("!(a == 1) == b", 0, "write !(a == b)"),
        ("!NOT a", 1, "a property or a value"),
        ("!5", 1, "no condition"),
        ("a == !b", 5, "condition cannot be compared"),
        ("(a == 1) == b", 9, "condition cannot be compared"),
        ("a == b == c", 7, "AND, OR or the end"),
        ("nil == nil", 0, "== nil is asked of a property"),
        ("5 != nil", 0, "!= nil is asked of a property"),
        ("-a == nil", 0, "== nil is asked of a property"),
        ("a > nil && b == 1", 0, "== nil or != nil"),
        ("a = nil && b == 1", 0, "== nil or != nil"),
        ("b == 1 && a IN (nil)", 16, "numbers or texts"),
        ("a BETWEEN 1 && 5", 12, "the AND of BETWEEN"),
        ("name == 'a' || 'b'", 15, "|| is OR"),
        ("'a' || 'b' == name && x", 0, "|| is OR"),
        ("a === 1", 4, "equal is = or =="),
        ("a !== 1", 4, "equal is = or =="),
        ("a ! 1", 2, "different is <> or !="),
        ("a & b", 2, "write AND or &&"),
        ("x == 1 | b", 7, "write OR or ||"),
        ("\"city\" == 'Paris'", 0, "double quotes is no property"),
        ("'Paris' = \"city\"", 10, "double quotes is no property"),
        ('"city" BETWEEN 1 AND 2', 0, "double quotes is no property"),
        ('"city" BETWEEN \'a\' AND "b"', 0, "double quotes is no property"),
        ("\"city\" LIKE 'x'", 0, "asked of a property"),
        ('a == "x\\"', 5, "backslash"),
        ('a == "x', 5, "the text is not closed"),
        ("name =~ /ab.*/", 5, "no regular expressions"),
        ("a == 1 ? b : c", 7, "(c AND a) OR (NOT c AND b)"),
        ("a + 1 == 2", 2, "arithmetic"),
        ("a % 2 == 0", 2, "arithmetic"),
        ("a == 2 * 3", 7, "arithmetic"),
        ("a ^ 2 == 1", 2, "arithmetic"),
        ("string.contains(name, 'x')", 0, "write name CONTAINS 'x'"),
        ("a == 1 && string.startsWith(name, 'x')", 10, "write name STARTSWITH 'x'"),
        ("string.endsWith(name, 'x')", 0, "write name ENDSWITH 'x'"),
        ("include(names, 'x')", 0, "write name IN ('x', 'y')"),
        ("a == math.abs(b)", 5, "math.abs(...) is a function, and a filter has none"),
        ("lambda (x) -> x == 1 end", 0, "lambda(...) is a function, and a filter has none"),
        ("NOTT (a == 1)", 0, "did you mean NOT?"),
        ("order.price == 3", 5, "backticks: `order.price`"),
        ("a.b.c == 3", 1, "backticks: `a.b.c`"),
        ("a == b.c", 6, "backticks: `b.c`"),
        ("items[0] == 3", 5, "no lists"),
        ("a == 1; b == 2", 6, "one condition"),
        ("a == #b", 5, "backticks"),
        ("#b == 1", 0, "backticks"),
    ],
)
def test_rest_of_the_expression_languages_is_refused_with_the_remedy(
    text: str, place: int, problem: str
) -> None:
    error = refusal(text)
    assert problem in error.problem
    assert error.position == place


def test_caret_stands_below_the_sign() -> None:
    problem, *shown = str(refusal("vip == true && name =~ /x/")).splitlines()
    assert problem.startswith("=~ is no operator; a filter has no regular expressions: write LIKE")
    assert problem.endswith("(at character 21)")
    assert shown == [
        "  vip == true && name =~ /x/",
        "                      ^^",
    ]


def test_as_sql_a_filter_has_the_same_limits() -> None:
    # As SQL each AND within an OR stands in parentheses, so there are twice as many.
    deep = "a == 1"
    for _ in range(DEPTH_MAX - 1):
        deep = f"b == 1 || c && ({deep})"
    found = compile_filter(deep)
    assert found.matches({"b": 1})
    with pytest.raises(FilterSyntaxError, match="parentheses"):
        _ = found.sql
    long = " && ".join(["a NOT BETWEEN 1 AND 5"] * 600 + ["b == 1"])
    assert len(long) < EXPRESSION_CHARACTERS_MAX
    assert compile_filter(long).sql
    longer = "&&".join(f"a{n} NOT BETWEEN 1AND 5" for n in range(650))
    assert len(longer) < EXPRESSION_CHARACTERS_MAX
    with pytest.raises(FilterSyntaxError, match="the limit is"):
        _ = compile_filter(longer).sql


def test_nested_signs_take_no_long_time_and_no_deep_stack() -> None:
    deep = "b == 1 || b == 2 && !(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX
    assert compile_filter(deep).matches({"b": 1})
    assert compile_filter("!" * 16_000 + "a").matches({"a": True})
    check_any("a BETWEEN 1 && " * 1_000)
    check_any("a=='x'||'y'&&" * 1_000)


# The law of spellings: a condition that is written in either way is one filter.

NAMES = st.sampled_from(["a", "b", "$x_1", "nil", "TAGS", "odd name", "AND", "a`b"])
TEXTS = st.sampled_from(["", "x", "it's", 'say "x"', "nil", "&& || !", "C:\\", "é"])
NUMBERS = st.sampled_from([0, 5, -5, 2**63 - 1, 1.5, -1e300, 5e-324])
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
SIGN_OF = {"=": "==", "<>": "!=", "AND": "&&", "OR": "||"}


def comparisons() -> st.SearchStrategy[Any]:
    operators = st.sampled_from(OPERATORS)
    constants = st.one_of(NUMBERS, TEXTS)
    return st.one_of(
        st.tuples(st.just("is true"), NAMES),
        st.tuples(st.just("is null"), NAMES, st.booleans(), st.booleans()),
        st.tuples(st.just("compare"), NAMES, operators, constants, st.booleans()),
        st.tuples(st.just("properties"), NAMES, operators, NAMES),
        st.tuples(st.just("boolean"), NAMES, st.sampled_from(["=", "<>"]), st.booleans()),
        st.tuples(st.just("in"), NAMES, st.lists(TEXTS, min_size=1, max_size=3)),
        st.tuples(st.just("like"), NAMES, TEXTS),
        st.tuples(st.just("between"), NAMES, st.just(-1), st.just(5)),
    )


CONDITIONS: st.SearchStrategy[Any] = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=8,
)


def written(node: Any, *, signs: bool) -> list[str]:
    """The condition's tokens in SQL, or with signs for all that has one."""
    kind, *parts = node
    match kind:
        case "AND" | "OR":
            (terms,) = parts
            tokens: list[str] = []
            for term in terms:
                tokens += [SIGN_OF[kind] if signs else kind] if tokens else []
                is_looser = kind == "AND" and term[0] == "OR"
                tokens += wrapped(term, is_looser, signs=signs)
            return tokens
        case "not":
            (inner,) = parts
            is_wrapped = inner[0] not in ("not", "is true") if signs else inner[0] in SIGN_OF
            return ["!" if signs else "NOT", *wrapped(inner, is_wrapped, signs=signs)]
    name, *rest = parts
    return question(kind, name_text(name), rest, signs=signs)


def question(kind: str, name: str, rest: list[Any], *, signs: bool) -> list[str]:
    match kind, rest:
        case "is true", []:
            return [name]
        case "is null", [is_null, is_first]:
            if not signs:
                return [name, *("IS NULL" if is_null else "IS NOT NULL").split()]
            sides = ["nil", name] if is_first else [name, "nil"]
            return [sides[0], "==" if is_null else "!=", sides[1]]
        case "compare", [operator, constant, is_first]:
            sides = [name, value_text(constant, signs=signs)]
            if is_first and operator in ("=", "<>"):
                sides.reverse()
            return [sides[0], sign(operator, signs), sides[1]]
        case "properties", [operator, other]:
            return [name, sign(operator, signs), name_text(other)]
        case "boolean", [operator, value]:
            return [name, sign(operator, signs), "true" if value else "FALSE"]
        case "in", [values]:
            listed = [token for each in values for token in (",", value_text(each, signs=signs))]
            return [name, "IN", "(", *listed[1:], ")"]
        case "like", [pattern]:
            return [name, "LIKE", value_text(pattern, signs=signs)]
        case "between", [low, high]:
            return [name, "BETWEEN", repr(low), "AND", repr(high)]
    raise AssertionError(kind)


def wrapped(node: Any, is_wrapped: bool, *, signs: bool) -> list[str]:
    tokens = written(node, signs=signs)
    return ["(", *tokens, ")"] if is_wrapped else tokens


def sign(operator: str, signs: bool) -> str:
    return SIGN_OF.get(operator, operator) if signs else operator


def name_text(name: str) -> str:
    plain = name.replace("$", "").isidentifier() and name not in ("AND", "nil")
    return name if plain else "`" + name.replace("`", "``") + "`"


def value_text(value: Any, *, signs: bool) -> str:
    if not isinstance(value, str):
        return repr(value)
    # A backslash stands in single quotes only.
    quote = '"' if signs and "\\" not in value else "'"
    return quote + value.replace(quote, quote * 2) + quote


def tight(tokens: list[str]) -> str:
    """The tokens with blanks between words alone."""
    text = ""
    for token in tokens:
        text += " " if text[-1:] not in ("", *"()=&|!,") and token[0] not in "()=&|!," else ""
        text += token
    return text


@given(CONDITIONS, st.sampled_from([" ".join, tight]))
def test_either_spelling_is_the_same_filter(node: Any, joined: Any) -> None:
    plain = compile_filter(f"({' '.join(written(node, signs=False))})")
    text = f"({joined(written(node, signs=True))})"
    found = compile_filter(text)
    assert found == plain, text
    assert str(found) == str(plain)
    assert plain.sql == plain.text
    assert_printed_is_read_again(found)
    assert found.sql == (text if is_sql(text) else str(plain))


def assert_printed_is_read_again(found: Filter) -> None:
    printed = str(found)
    assert is_sql(printed)
    assert not is_tags(printed)
    again = compile_filter(printed)
    assert again == found, printed
    assert str(again) == printed


PIECES = st.sampled_from([
    "a", "b", "nil", "`nil`", "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "TRUE", "BETWEEN",
    "==", "!=", "&&", "||", "!", "=", "<>", "<", ">=", "(", ")", ",", "-", "1", "1.5", "'x'",
    '"y"', '"', "=~", "?", ":", ".", "%", "string.contains(", "#", "\\", "\n",
])  # fmt: skip


@given(st.lists(PIECES, max_size=25), st.sampled_from(["", " "]))
def test_any_signs_are_read_as_printed_or_refused(pieces: list[str], blank: str) -> None:
    text = blank.join(pieces)
    check_any(text)
    try:
        found = compile_filter(f"({text}\n)")
    except FilterSyntaxError:
        return
    assert_printed_is_read_again(found)
    assert compile_filter(found.sql) == found
