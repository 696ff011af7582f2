"""The syntax of a filter's text: accepted forms, refused forms, and the errors shown."""

import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import RaftmqError
from raftmq.filters import DEPTH_MAX, EXPRESSION_CHARACTERS_MAX, FilterSyntaxError
from raftmq.filters import compile as compile_filter
from tests.filters.differential import compare
from tests.filters.expressions import Writer


def refusal(text: str) -> FilterSyntaxError:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter(text)
    return caught.value


def sql(text: str) -> str:
    return str(compile_filter(text))


def test_random_filters_mean_what_the_oracle_says() -> None:
    refused, true = compare(2_500, seed=11)
    assert refused < 1_500
    assert true > 500


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a = 1 OR b = 2 AND c = 3", "a = 1 OR (b = 2 AND c = 3)"),
        ("NOT a = 1 AND b = 2", "a <> 1 AND b = 2"),
        ("NOT (a = 1 AND b > 2)", "a <> 1 OR b <= 2"),
        ("NOT NOT NOT a IS NULL", "a IS NOT NULL"),
        ("a NOT BETWEEN 1 AND 5", "a < 1 OR a > 5"),
        ("5 < a", "a > 5"),
        ("-a < 5", "a > -5"),
        ("-a < -b", "-a < -b"),
        ("-a <= b", "a >= -b"),
        ("NOT (- -a > -(-b))", "a <= b"),
        ("a = TRUE AND (b) AND NOT (c)", "a = TRUE AND b = TRUE AND c = FALSE"),
        ("a <> FALSE", "a = TRUE"),
        ("a IN ('x', 'y', 'x')", "a IN ('x', 'y')"),
        ("a IN (1, 1.0)", "a = 1"),
        ("1 = 1 AND a = 1", "a = 1"),
        ("a = 1 OR NULL", "a = 1"),
        ("NOT (NULL)", "FALSE"),
        ("a = 1 AND (a = 1 AND a = 1)", "a = 1"),
        ("a LIKE 'x%'", "a STARTSWITH 'x'"),
        ("a NOT LIKE '%x%'", "a NOT CONTAINS 'x'"),
        ("a LIKE '!%!_' ESCAPE '!'", "a = '%_'"),
        ("a LIKE 'x_y%'", "a LIKE 'x_y%'"),
        ("a -- remark\n= /* more * / */ 1", "a = 1"),
        ("`odd name` = 1 AND `a``b` = 2", "`odd name` = 1 AND `a``b` = 2"),
        ("`AND` = 3 AND `plain` = 4", "`AND` = 3 AND plain = 4"),
        ("a = 'it''s'", "a = 'it''s'"),
        ("a = 5L AND b = 5. AND c = .5E1", "a = 5 AND b = 5.0 AND c = 5.0"),
        ("a = -9223372036854775808", "a = -9223372036854775808"),
        ("((a)) = ((1))", "a = 1"),
    ],
)  # fmt: skip
def test_text_means(text: str, meaning: str) -> None:
    assert sql(text) == meaning


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a BETWEEN 10 AND 0", "from the lower bound"),
        ("a BETWEEN 'x' AND 'b'", "from the lower bound"),
        ("a BETWEEN 1 AND 'b'", "do not compare"),
        ("a BETWEEN NULL AND 1", "NULL"),
        ("a > TRUE", "no order"),
        ("a = NULL", "IS NULL"),
        ("a = 9223372036854775808", "too large"),
        ("a = -9223372036854775809", "too large"),
        ("a = " + "9" * 5000, "too large"),
        ("a = 1E999", "too large"),
        ("a = 1E-999", "too small"),
        ("a = 007", "does not begin with 0"),
        ("a = 5.0L", "integers only"),
        ("a IN (1, 'x')", "not both"),
        ("a IN ()", "a property or a value"),
        ("a IN (b)", "numbers or texts"),
        ("5 IN (5)", "asked of a property"),
        ("'x' LIKE 'x'", "asked of a property"),
        ("-a IS NULL", "asked of a property"),
        ("(a = 1) IS NULL", "condition cannot be compared"),
        ("(a = 1) = TRUE", "condition cannot be compared"),
        ("a LIKE 'x!y' ESCAPE '!'", "after the escape"),
        ("a LIKE 'x!' ESCAPE '!'", "after the escape"),
        ("a LIKE 'x' ESCAPE '!!'", "one character"),
        ("a CONTAINS b", "a text after CONTAINS"),
        ("a CONTAINS 5", "a text after CONTAINS"),
        ("a = 'x", "the text is not closed"),
        ("it's", "the text is not closed"),
        ("a = `x", "the name is not closed"),
        ("a = 1 /* x", "the comment is not closed"),
        ("(a = 1", "the filter ends where a )"),
        ("a = 1)", "where AND, OR or the end is needed"),
        ("a =", "the filter ends"),
        ("a = b = c", "AND, OR or the end"),
        ("5 AND a = 1", "no condition"),
        ("a = 1 AND 'x'", "no condition"),
        ("-'x' = a", "a minus stands before"),
        ("-a = 'x'", "a minus stands before"),
        ("1 = 'x'", "do not compare"),
        ("`` = 1", "at least one character"),
    ],
)
def test_text_is_refused_with_a_reason(text: str, problem: str) -> None:
    assert problem in refusal(text).problem


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a CONTAIN 'x'", "did you mean CONTAINS?"),
        ("a STARTWITH 'x'", "did you mean STARTSWITH?"),
        ("a BETWEN 1 AND 2", "did you mean BETWEEN?"),
        ("a IS NUL", "did you mean NULL?"),
        ("a = 1 ADN b = 2", "did you mean AND?"),
        ("支付 = 1", "in quotes"),
        ("city = Malmö", "in quotes"),
        ("a + 1 = 2", "arithmetic"),
    ],
)
def test_error_says_what_was_perhaps_meant(text: str, hint: str) -> None:
    assert hint in refusal(text).problem


def test_error_has_a_caret_below_the_place() -> None:
    error = refusal("city = 'Paris' AND\tamount BETWEN 1 AND 2")
    assert isinstance(error, RaftmqError)
    assert error.position == 26
    assert str(error).splitlines() == [
        "BETWEN is no operator; did you mean BETWEEN? (at character 27)",
        "  city = 'Paris' AND amount BETWEN 1 AND 2",
        "                            ^^^^^^",
    ]


def test_caret_of_a_long_filter_stands_below_a_part_of_it() -> None:
    first, line, carets = str(
        refusal("a = 1 AND " * 50 + "b ! 1 " + "AND a = 1 " * 50)
    ).splitlines()
    assert "is no operator" in first
    assert len(line) < 140
    assert line[carets.index("^")] == "!"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("paid", ["paid"]),
        ("paid || shipped", ["paid", "shipped"]),
        (" paid||shipped\n||  lost ", ["paid", "shipped", "lost"]),
        ("a.b:c/d@e-f#1", ["a.b:c/d@e-f#1"]),
        ("'with blank' || b", ["with blank", "b"]),
        ("支付 || é", ["支付", "é"]),
        ("5", ["5"]),
    ],
)
def test_words_are_tags(text: str, tags: list[str]) -> None:
    found = compile_filter(text)
    assert found.names == ("TAGS",)
    assert all(found.matches({}, tag=tag) for tag in tags)
    assert not found.matches({"TAGS": tags[0]}, tag="other")
    assert not found.matches({})


@pytest.mark.parametrize("text", ["", " \n", "*", " * "])
def test_star_and_nothing_match_everything(text: str) -> None:
    assert compile_filter(text).matches({})
    assert compile_filter(text).matches({}, tag="x")


def test_words_that_sql_reserves_are_no_tags() -> None:
    assert compile_filter("TRUE").matches({})
    assert not compile_filter("false").matches({}, tag="false")
    assert "NOT" in refusal("NOT || a").text


def test_sql_sees_the_tag_as_tags() -> None:
    found = compile_filter("TAGS IN ('paid', 'lost') AND amount > 5")
    assert found.matches({"amount": 6}, tag="paid")
    assert not found.matches({"amount": 6, "TAGS": "paid"}, tag=None)


@pytest.mark.parametrize("operator", ["=", "<>", "<", "<=", ">", ">="])
@pytest.mark.parametrize("signs", ["-a {} b", "a {} -b", "-a {} -b"])
def test_a_minus_makes_nothing_but_numbers_compare(signs: str, operator: str) -> None:
    found = compile_filter(signs.format(operator))
    negated = compile_filter(f"NOT ({signs.format(operator)})")
    for left, right in [("a", "it's"), ("a", "a"), (True, True), (True, False), ("5", 5), (b"", 5)]:
        for props in ({"a": left, "b": right}, {"a": right, "b": left}):
            assert not found.matches(props)
            assert not negated.matches(props)
    assert found.matches({"a": 1, "b": 2}) is not negated.matches({"a": 1, "b": 2})


def test_printed_filter_is_read_as_the_same_filter() -> None:
    writer = Writer(Random(5), clean=True)
    for _ in range(2_000):
        text = f"({writer.text()})"
        found = compile_filter(text)
        again = compile_filter(f"({found})")
        assert again == found, text
        assert str(again) == str(found)


def test_equal_constants_of_different_types_stay_apart() -> None:
    assert compile_filter("a = 1") == compile_filter("a = 1.0")
    assert compile_filter("a = 1") != compile_filter("a = TRUE")
    assert compile_filter("a = 1") != compile_filter("a = '1'")
    assert compile_filter("a = 1 AND b = 2") != compile_filter("a = 1 OR b = 2")


def test_depth_and_length_have_limits() -> None:
    deep = "(" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX
    assert compile_filter(deep).matches({"a": 1})
    assert "parentheses" in refusal(f"({deep})").problem
    signs = "-" + " -" * 5000
    assert compile_filter(f"a = {signs} 1").matches({"a": -1})
    long = "a = 1 OR " * 1800 + "b = 2"
    assert len(long) < EXPRESSION_CHARACTERS_MAX
    assert compile_filter(long).matches({"b": 2})
    assert "limit" in refusal("a" * (EXPRESSION_CHARACTERS_MAX + 1)).problem


HOSTILE = [
    "(", ")", "-", "- ", "NOT ", "'", "''", "`", "/*", "/**/", "--", "--\n", "a", "a ", "1", "1.",
    "a=", "a=1 AND ", "a LIKE '%'", "||", "a||", "*", "a IN (", "a IN (1,", "a BETWEEN ", "'a'||",
    "=", ".", "\0",
]  # fmt: skip


def error_of(text: str) -> FilterSyntaxError | None:
    """None: the text is a filter, and one that can be asked."""
    try:
        compile_filter(text).matches({})
    except FilterSyntaxError as error:
        return error
    return None


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("end", ["", "'", "a = 1", ")"])
def test_repeated_pieces_take_no_long_time(piece: str, end: str) -> None:
    length = EXPRESSION_CHARACTERS_MAX - len(end)
    text = (piece * length)[:length] + end
    start = time.process_time()
    error_of(text)
    assert time.process_time() - start < 1.0


def check_any(text: str) -> None:
    error = error_of(text)
    if error is not None:
        assert 0 <= error.position <= len(text)
        assert error.text == text


@given(st.text() | st.text(alphabet="aN01 =<>()'`%-+.,*/|\nORDTLIKE!&\""))
def test_any_text_is_read_or_refused(text: str) -> None:
    check_any(text)


PIECES = st.sampled_from([
    "a", "b", "`n`", "AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "LIKE", "ESCAPE", "TRUE",
    "CONTAINS", "=", "<>", "<", ">=", "(", ")", ",", "-", "+", "1", "1.5", "9223372036854775808",
    "'x'", "'%'", "'", "--", "/*", "*/", "!", "\n",
])  # fmt: skip


@given(st.lists(PIECES, max_size=25))
def test_any_tokens_are_read_or_refused(pieces: list[str]) -> None:
    check_any(" ".join(pieces))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%a" * 2_000 + "b", "a" * 200_000),
        ("%" * 4_000 + "b", "a" * 200_000),
        ("%a_" * 1_000 + "b%", "a" * 20_000),
        ("_" * 4_000 + "%", "a" * 200_000),
    ],
)
def test_pattern_full_of_wildcards_takes_no_long_time(pattern: str, text: str) -> None:
    found = compile_filter(f"a LIKE '{pattern}'")
    start = time.process_time()
    assert found.matches({"a": text}) == pattern.endswith("_%")
    assert time.process_time() - start < 1.0
