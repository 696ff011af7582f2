"""Reading a filter: tags, or SQL by recursive descent, straight into a formula.

Tags are one or more words with `||` between, `*` for all messages, as is the empty text. Everything
else is SQL. A word that SQL reserves (`TRUE`) is SQL; a tag with blanks stands in quotes.

| rule | reads |
|---|---|
| disjunction | conjunction, OR conjunction, ... |
| conjunction | negation, AND negation, ... |
| negation | NOT, NOT, ..., predicate |
| predicate | operand and a question to it, operand alone, disjunction in parentheses, or `!` |
| `!`, `!`, ... | operand alone, or disjunction in parentheses |
| operand | `+`, `-`, ..., property, number, text, TRUE, FALSE, NULL, or an operand in parentheses |

| question to an operand | |
|---|---|
| `= <> < <= > >=` | another operand; not NULL, and a boolean only with `=` and `<>` |
| `== !=` | as `=` and `<>`; with NULL, as IS NULL and IS NOT NULL |
| `[NOT] BETWEEN low AND high` | low is not above high |
| `[NOT] IN (...)` | of a property: numbers, or texts |
| `[NOT] CONTAINS`, `STARTSWITH`, `ENDSWITH` | of a property: a text |
| `[NOT] LIKE`, perhaps `ESCAPE` | of a property: a pattern, and one character |
| `IS [NOT] NULL` | of a property |

The signs of expression languages are other spellings in the same grammar: `&&` is AND, `||` is OR,
and `nil` beside any of the signs is NULL. `!` alone has a rule of its own, as it binds tighter than
NOT does. Double quotes hold a text.

There is no tree in between: each rule takes the wanted outcome, true or false, and gives a formula
that holds when the condition has that outcome. A NOT turns the wanted outcome round for its
operand (see `formula`).

Where RocketMQ differs, and why we do: docs/filters.md.

Invariants:
- Every text gives a formula or a `FilterSyntaxError`, in time linear in its length (and, where
  groups are nested, in their depth).
- Recursion is at most eight calls for each of `DEPTH_MAX` parentheses.
- A text without signs has the meaning that it has in records.

Sources: RocketMQ's SelectorParser.jj and ComparisonExpression; SQL92 §8; JMS 2.0 §3.8 (selectors);
aviator's operators (`OperatorType`) for the signs.
"""

from collections.abc import Callable
from types import NoneType
from typing import Final, NoReturn, cast

from .formula import (
    COMPARE,
    FALSE,
    OPPOSITES,
    TRUE,
    Atom,
    Formula,
    Group,
    Operator,
    Scalar,
    Values,
    group,
)
from .like import like_atom
from .literals import INTEGER_MAX, INTEGER_MIN, read_number, read_quoted
from .operands import (
    Literal,
    Operand,
    Property,
    compare,
    family,
    new_property,
)
from .refusal import FilterSyntaxError, foreign, hint
from .tags import parse_tags
from .text import KEYWORDS, NIL
from .tokens import has_signs, token_position, tokens

EXPRESSION_CHARACTERS_MAX: Final = 16_384
"""A longer filter is refused: it is parsed on every replica, and kept for each group."""
DEPTH_MAX: Final = 64
"""The deepest nesting of parentheses."""


Rule = Callable[[bool], Formula | Operand]

_TEXT_OPERATORS: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH", "LIKE"})
_NEGATABLE: Final = _TEXT_OPERATORS | {"BETWEEN", "IN"}
_ASKED: Final = _NEGATABLE | {"IS", "NOT", "==", "!="} | set(COMPARE)
_SPELLED: Final = {
    **{spelled: word for word in KEYWORDS for spelled in (word, word.lower())},
    **{sign: sign for sign in ("=", "<>", "<", "<=", ">", ">=", "==", "!=", "(", ")", ",")},
    "&&": "AND",
    "||": "OR",
}
"""The usual spellings of keywords and signs -> the token in capitals."""
_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$")
_DIGITS: Final = frozenset("0123456789.")
_QUOTES: Final = ("'", '"')
_EQUALITIES: Final[dict[str, Operator]] = {"==": "=", "!=": "<>"}
_SHOWN_CHARACTERS: Final = 40
"""Characters of a token that an error's first line shows."""


def parse(text: str) -> Formula:
    """The formula of a filter.

    Raises:
        FilterSyntaxError: the text is neither tags nor SQL, or over a limit.
    """
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        problem = f"a filter of {len(text)} characters; the limit is {EXPRESSION_CHARACTERS_MAX}"
        raise FilterSyntaxError(problem, text=text, position=EXPRESSION_CHARACTERS_MAX)
    tags = parse_tags(text)
    return _Parser(text).parse() if tags is None else tags


class _Parser:
    """One reading of one text."""

    __slots__ = ("_at", "_depth", "_text", "_tokens", "_written")

    def __init__(self, text: str) -> None:
        self._text = text
        self._written = tokens(text)
        # Keywords in capitals, && and || as keywords, all else as it stands.
        self._tokens = [_SPELLED.get(token) or _capital(token) for token in self._written]
        # Without a sign `nil` stays what it is in SQL: a property's name.
        if NIL in self._tokens and has_signs(self._written):
            self._tokens = ["NULL" if token == NIL else token for token in self._tokens]
        self._at = 0
        self._depth = 0

    def parse(self) -> Formula:
        """The whole text as a condition."""
        formula = self._condition(self._disjunction(True), True, 0)
        if self._tokens[self._at]:
            self._unexpected("AND, OR or the end")
        return formula

    # The rules. Each gives a formula, or an operand that stands alone: a condition if it is a
    # property or a boolean, and something to compare if it is in parentheses before an operator.

    def _disjunction(self, wanted: bool) -> Formula | Operand:
        start = self._at
        first = self._conjunction(wanted)
        if self._tokens[self._at] != "OR":
            return first
        return self._chain(first, start, "OR", self._conjunction, wanted)

    def _conjunction(self, wanted: bool) -> Formula | Operand:
        start = self._at
        first = self._negation(wanted)
        if self._tokens[self._at] != "AND":
            return first
        return self._chain(first, start, "AND", self._negation, wanted)

    def _chain(
        self, first: Formula | Operand, start: int, word: str, rule: Rule, wanted: bool
    ) -> Formula:
        """The terms that `word` joins, of which the first has been read."""
        terms = [self._condition(first, wanted, start)]
        while self._tokens[self._at] == word:
            self._at += 1
            start = self._at
            terms.append(self._condition(rule(wanted), wanted, start))
        # NOT of an AND is an OR of NOTs.
        return group(wanted is (word == "AND"), terms)

    def _negation(self, wanted: bool) -> Formula | Operand:
        if self._tokens[self._at] != "NOT":
            return self._predicate(wanted)
        while self._tokens[self._at] == "NOT":
            wanted = not wanted
            self._at += 1
        start = self._at
        return self._condition(self._predicate(wanted), wanted, start)

    def _predicate(self, wanted: bool) -> Formula | Operand:
        start = self._at
        first = self._tokens[start]
        if first == "!":
            return self._not(wanted)
        left = self._in_parentheses(wanted) if first == "(" else self._operand()
        word = self._tokens[self._at]
        if word not in _ASKED:
            return left
        if isinstance(left, (Atom, Group)):
            self._refuse("a condition cannot be compared: use it as it is, or with NOT", self._at)
        self._at += 1
        if word in COMPARE:
            return self._compare(left, cast("Operator", word), self._operand(), wanted, start)
        if word in _EQUALITIES:
            return self._equality(left, word, wanted, start)
        if word == "IS":
            return self._null(left, wanted, start)
        if word == "NOT":
            wanted = not wanted
            word = self._tokens[self._at]
            if word not in _NEGATABLE:
                self._unexpected("BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH")
            self._at += 1
        if word == "BETWEEN":
            return self._between(left, wanted, start)
        name = self._name(left, word, start)
        if word == "IN":
            return self._in_list(name, wanted)
        return self._text_test(name, cast("Operator", word), wanted)

    def _not(self, wanted: bool) -> Formula:
        start = self._at
        while self._tokens[self._at] == "!":
            wanted = not wanted
            self._at += 1
        place = self._at
        inner = self._in_parentheses(wanted) if self._tokens[place] == "(" else self._operand()
        if self._tokens[self._at] in _ASKED:
            # Aviator and C read (!a) == b, and SQL's NOT would be !(a == b).
            self._refuse("! stands before a property or parentheses: write !(a == b)", start)
        return self._condition(inner, wanted, place)

    def _in_parentheses(self, wanted: bool) -> Formula | Operand:
        self._open()
        inside = self._disjunction(wanted)
        self._close()
        return inside

    def _operand(self) -> Operand:
        token = self._tokens[self._at]
        first = token[:1]
        if first in _LETTERS and token not in KEYWORDS:
            self._at += 1
            return new_property((token, False))
        if first == "'":
            return self._quoted()
        if first in _DIGITS and token != ".":
            return self._number(INTEGER_MAX)
        return self._odd_operand(token)

    def _odd_operand(self, token: str) -> Operand:
        """An operand that begins with a sign, a parenthesis, a backtick or a keyword."""
        match token[:1]:
            case "+" | "-":
                return self._signed()
            case "(":
                self._open()
                inside = self._operand()
                self._close()
                return inside
            case "`":
                return Property(self._quoted(), False)
            case '"':
                return self._quoted()
            case "!":
                self._refuse("a condition cannot be compared: != is different", self._at)
        if token not in ("TRUE", "FALSE", "NULL"):
            self._unexpected("a property or a value")
        self._at += 1
        return None if token == "NULL" else token == "TRUE"

    def _signed(self) -> Operand:
        start = self._at
        is_negated = False
        while (token := self._tokens[self._at]) in ("-", "+"):
            is_negated ^= token == "-"
            self._at += 1
        if token[:1] in _DIGITS and token not in (".", ""):
            # 2^63 has no integer, its negative has.
            value = self._number(INTEGER_MAX + is_negated)
            return -value if is_negated else value
        operand = self._operand()
        if not is_negated:
            return operand
        if isinstance(operand, Property):
            return Property(operand.name, not operand.is_negated)
        if isinstance(operand, (bool, str, NoneType)):
            self._refuse("a minus stands before a number or a property", start)
        if type(operand) is int and operand == INTEGER_MIN:
            self._refuse(f"the number is too large: {INTEGER_MAX} is the largest integer", start)
        return -operand

    def _number(self, largest: int) -> int | float:
        try:
            value = read_number(self._tokens[self._at])
        except ValueError as error:
            self._refuse(str(error), self._at)
        if type(value) is int and value > largest:
            problem = f"the number is too large: {INTEGER_MAX} is the largest integer"
            self._refuse(problem, self._at)
        self._at += 1
        return value

    # Questions to an operand.

    def _compare(
        self, left: Operand, operator: Operator, right: Operand, wanted: bool, start: int
    ) -> Formula:
        if not isinstance(left, Property) and not isinstance(right, Property):
            self._check_constants(start)
        return self._compared(left, operator, right, wanted, start)

    def _compared(
        self, left: Operand, operator: Operator, right: Operand, wanted: bool, start: int
    ) -> Formula:
        try:
            return compare(left, operator, right, wanted)
        except ValueError as error:
            self._refuse(str(error), start)

    def _check_constants(self, start: int) -> None:
        """Refuses a text in double quotes that is compared with a constant: in SQL92 it would be
        the name of a column, and here the comparison would be true or false for every message."""
        for at in range(start, self._at):
            if self._written[at][:1] == '"':
                problem = "a text in double quotes is no property: odd names stand in backticks"
                self._refuse(problem, at)

    def _equality(self, left: Operand, word: str, wanted: bool, start: int) -> Formula:
        right = self._operand()
        if left is not None and right is not None:
            return self._compare(left, _EQUALITIES[word], right, wanted, start)
        name = self._name(right if left is None else left, f"{word} nil", start)
        is_null = (word == "==") is wanted
        return Atom("IS NULL" if is_null else "IS NOT NULL", name, None)

    def _between(self, left: Operand, wanted: bool, start: int) -> Formula:
        low = self._operand()
        # && joins conditions, and nothing else.
        if self._tokens[self._at] != "AND" or self._written[self._at] == "&&":
            self._unexpected("the AND of BETWEEN")
        self._at += 1
        high = self._operand()
        if not isinstance(low, Property) and not isinstance(high, Property):
            self._check_range(low, high, start)
        bounds = (
            self._compare(left, ">=", low, wanted, start),
            self._compare(left, "<=", high, wanted, start),
        )
        return group(wanted, bounds)

    def _check_range(self, low: Literal, high: Literal, start: int) -> None:
        # The comparison refuses bounds without a common order.
        if self._compared(low, "<=", high, True, start) is FALSE:
            self._refuse("BETWEEN goes from the lower bound to the higher one", start)

    def _in_list(self, name: str, wanted: bool) -> Formula:
        start = self._at
        if self._tokens[start] != "(":
            self._unexpected("a list in parentheses")
        values: list[Scalar] = []
        while not values or self._tokens[self._at] == ",":
            self._at += 1
            place = self._at
            value = self._operand()
            if isinstance(value, (Property, bool, NoneType)):
                self._refuse("a list holds numbers or texts", place)
            if values and family(value) is not family(values[0]):
                self._refuse("a list holds numbers or texts, not both", place)
            values.append(value)
        if self._tokens[self._at] != ")":
            self._unexpected(", or )")
        self._at += 1
        distinct = tuple(dict.fromkeys(values))
        if len(distinct) == 1:
            return Atom("=" if wanted else "<>", name, distinct[0])
        return Atom("IN" if wanted else "NOT IN", name, Values(distinct))

    def _text_test(self, name: str, operator: Operator, wanted: bool) -> Formula:
        start = self._at
        if self._tokens[start][:1] not in _QUOTES:
            self._unexpected(f"a text after {operator}")
        text = self._quoted()
        atom = Atom(operator, name, text)
        if operator == "LIKE":
            try:
                atom = like_atom(name, text, self._escape())
            except ValueError as error:
                self._refuse(str(error), start)
        return atom if wanted else Atom(OPPOSITES[atom.operator], name, atom.constant)

    def _escape(self) -> str | None:
        if self._tokens[self._at] != "ESCAPE":
            return None
        self._at += 1
        start = self._at
        if self._tokens[start][:1] not in _QUOTES:
            self._unexpected("one character in quotes")
        escape = self._quoted()
        if len(escape) != 1:
            self._refuse("ESCAPE takes one character", start)
        return escape

    def _null(self, left: Operand, wanted: bool, start: int) -> Formula:
        if self._tokens[self._at] == "NOT":
            wanted = not wanted
            self._at += 1
        if self._tokens[self._at] != "NULL":
            self._unexpected("NULL or NOT NULL")
        self._at += 1
        name = self._name(left, "IS NULL", start)
        return Atom("IS NULL" if wanted else "IS NOT NULL", name, None)

    # Pieces.

    def _condition(self, given: Formula | Operand, wanted: bool, start: int) -> Formula:
        """The formula of a condition; an operand that stands alone must be one."""
        if isinstance(given, (Atom, Group)):
            return given
        match given:
            case Property(name, False):
                return Atom("IS TRUE" if wanted else "IS FALSE", name, None)
            case None:
                return FALSE
            case bool():
                return TRUE if given is wanted else FALSE
            case _:
                problem = "a number or a text is no condition: what is asked of it?"
                # In SQL92 || joins two texts.
                if "||" in (self._written[start - 1], self._written[self._at]):
                    problem = "|| is OR, and a number or a text alone is no condition"
                return self._refuse(problem, start)

    def _name(self, operand: Operand, word: str, start: int) -> str:
        if not isinstance(operand, Property) or operand.is_negated:
            self._refuse(f"{word} is asked of a property", start)
        return operand.name

    def _quoted(self) -> str:
        try:
            text = read_quoted(self._tokens[self._at])
        except ValueError as error:
            self._refuse(str(error), self._at)
        self._at += 1
        return text

    def _open(self) -> None:
        if self._depth == DEPTH_MAX:
            self._refuse(f"more than {DEPTH_MAX} parentheses within one another", self._at)
        self._depth += 1
        self._at += 1

    def _close(self) -> None:
        if self._tokens[self._at] != ")":
            self._unexpected("a )")
        self._depth -= 1
        self._at += 1

    # Errors.

    def _unexpected(self, needed: str) -> NoReturn:
        token = self._written[self._at]
        if not token:
            self._refuse(f"the filter ends where {needed} is needed", self._at)
        if token.startswith("/*"):
            self._refuse("the comment is not closed: a */ is missing", self._at)
        if token[0] in "'`\"" and token.count(token[0]) % 2:
            self._quoted()
        if not token[0].isascii():
            self._refuse(
                f"{token} stands in quotes only: '...' in a text, `...` in a name", self._at
            )
        if found := foreign(self._written, self._at):
            self._refuse(*found)
        remedy = hint(self._written, self._at)
        token = token[:_SHOWN_CHARACTERS]
        if remedy and self._at:
            self._refuse(f"{token} is no operator{remedy}", self._at)
        self._refuse(f"{token} stands where {needed} is needed{remedy}", self._at)

    def _refuse(self, problem: str, at: int) -> NoReturn:
        position = token_position(self._text, at)
        length = len(self._written[at]) if at < len(self._written) else 1
        raise FilterSyntaxError(problem, text=self._text, position=position, length=length)


def _capital(token: str) -> str:
    """A keyword in capitals, all else as it stands."""
    if not token.isalpha():
        return token
    return upper if (upper := token.upper()) in KEYWORDS else token
