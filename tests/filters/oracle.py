"""An independent reading of filters: a lark grammar, and a naive three-valued interpreter.

It shares nothing with `raftmq.filters` but the rules of docs/filters.md. Conditions come out as
True, False or None for unknown; NOT, AND and OR are Kleene's tables as written in a textbook.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

GRAMMAR = r"""
start: disjunction
?disjunction: conjunction ((_OR | _BARS) conjunction)*
?conjunction: negation ((_AND | _AMPERSANDS) negation)*
?negation: _NOT negation -> negation | predicate | not_one
not_one: _BANG (not_one | operand) -> negation
?predicate: operand
    | operand COMPARE operand -> compare
    | operand EQUALITY operand -> equality
    | operand _BETWEEN operand _AND operand -> between
    | operand _NOT _BETWEEN operand _AND operand -> not_between
    | operand _IN "(" operand ("," operand)* ")" -> in_list
    | operand _NOT _IN "(" operand ("," operand)* ")" -> not_in_list
    | operand TEXT_TEST TEXT -> text_test
    | operand _NOT TEXT_TEST TEXT -> not_text_test
    | operand _LIKE TEXT [_ESCAPE TEXT] -> like
    | operand _NOT _LIKE TEXT [_ESCAPE TEXT] -> not_like
    | operand _IS _NULL -> is_null
    | operand _IS _NOT _NULL -> is_not_null
?operand: "-" operand -> minus
    | "+" operand -> plus
    | NUMBER -> number
    | TEXT -> text
    | _TRUE -> true
    | _FALSE -> false
    | _NULL -> null
    | WORD -> property
    | NAME -> property
    | "(" disjunction ")" -> parentheses

COMPARE: "<>" | "<=" | ">=" | "=" | "<" | ">"
EQUALITY.2: "==" | "!="
_BARS: "||"
_AMPERSANDS: "&&"
_BANG: "!"
TEXT: /'(?:[^']|'')*'(?!')/ | /"(?:[^"\\]|"")*"(?!")/
NAME: /`(?:[^`]|``)+`(?!`)/
NUMBER: /(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lL]?/
WORD: /[A-Za-z_$][A-Za-z0-9_$]*/
_OR.2: /or(?![A-Za-z0-9_$])/i
_AND.2: /and(?![A-Za-z0-9_$])/i
_NOT.2: /not(?![A-Za-z0-9_$])/i
_BETWEEN.2: /between(?![A-Za-z0-9_$])/i
_IN.2: /in(?![A-Za-z0-9_$])/i
_IS.2: /is(?![A-Za-z0-9_$])/i
_NULL.2: /null(?![A-Za-z0-9_$])/i
_TRUE.2: /true(?![A-Za-z0-9_$])/i
_FALSE.2: /false(?![A-Za-z0-9_$])/i
_LIKE.2: /like(?![A-Za-z0-9_$])/i
_ESCAPE.2: /escape(?![A-Za-z0-9_$])/i
TEXT_TEST.2: /(contains|startswith|endswith)(?![A-Za-z0-9_$])/i
%ignore /[ \t\r\n\f]+/
%ignore /--[^\r\n]*/
%ignore /\/\*(.|\n)*?\*\//
"""

PARSER = Lark(GRAMMAR, parser="lalr", lexer="basic")
NULL = "/null(?![A-Za-z0-9_$])/i"
WITH_SIGNS = Lark(
    GRAMMAR.replace(NULL, f"{NULL} | /nil(?![A-Za-z0-9_$])/"), parser="lalr", lexer="basic"
)
"""`nil` is NULL here, and a property's name in texts without signs."""
BESIDE_SIGNS = re.compile(
    r"""'(?:[^']|'')*'|`(?:[^`]|``)*`|"(?:[^"]|"")*"|--[^\r\n]*|/\*(?:.|\n)*?\*/"""
)
OPERANDS = {"minus", "plus", "number", "text", "true", "false", "null", "property"}


class Refused(Exception):
    """The text is no filter."""


class Oracle:
    """One filter, read and checked by the naive reading."""

    def __init__(self, text: str) -> None:
        try:
            tree = (WITH_SIGNS if has_signs(text) else PARSER).parse(text)
        except UnexpectedInput as error:
            raise Refused(str(error)) from None
        self._root: Tree[Token] = _bare(tree.children[0])
        check_condition(self._root)

    def outcome(self, row: Mapping[str, Any]) -> bool | None:
        """The condition's value for a message with these properties; None: unknown."""
        return condition(self._root, row)


def has_signs(text: str) -> bool:
    """Is there a sign outside of texts, names and remarks, or a text in double quotes?"""
    rest = BESIDE_SIGNS.sub(lambda found: found[0][0] if found[0][0] == '"' else " ", text)
    return re.search(r"==|!|&&|\|\||\"", rest) is not None


def _bare(node: Any) -> Any:
    """Without the parentheses, and with SQL's operators in place of `==` and `!=`."""
    if isinstance(node, Tree):
        if node.data == "parentheses":
            return _bare(node.children[0])
        if node.data == "equality":
            left, sign, right = (_bare(child) for child in node.children)
            if "null" in (left.data, right.data):
                kind = "is_null" if sign == "==" else "is_not_null"
                return Tree(kind, [right if left.data == "null" else left])
            operator = Token("COMPARE", {"==": "=", "!=": "<>"}[sign])
            return Tree("compare", [left, operator, right])
        return Tree(node.data, [_bare(child) for child in node.children])
    return node


# Texts that are refused although the grammar has them.


def check_condition(node: Tree[Any]) -> None:
    match node.data:
        case "disjunction" | "conjunction" | "negation":
            for child in node.children:
                check_condition(child)
        case "number" | "text":
            raise Refused("no condition")
        case "minus" | "plus":
            check_operand(node)
            if minuses(node) % 2:
                raise Refused("no condition")
            check_condition(without_signs(node))
        case "property" | "true" | "false" | "null":
            pass
        case _:
            check_predicate(node)


def check_predicate(node: Tree[Any]) -> None:
    kind = str(node.data).removeprefix("not_").removeprefix("is_not_").removeprefix("is_")
    if kind == "compare":
        left, operator, right = node.children
        check_comparison(left, str(operator), right)
        return
    if kind == "between":
        value, low, high = node.children
        if is_literal(low) and is_literal(high):
            check_comparison(low, "<=", high, is_range=True)
        check_comparison(value, ">=", low)
        check_comparison(value, "<=", high)
        if is_literal(low) and is_literal(high) and literal(low) > literal(high):
            raise Refused("empty range")
        return
    name, *rest = node.children
    check_operand(name)
    if is_literal(name) or minuses(name) % 2:
        raise Refused("asked of a property")
    if kind == "in_list":
        for each in rest:
            check_operand(each)
            if not is_literal(each) or isinstance(literal(each), bool | None):
                raise Refused("numbers or texts")
        if len({family(literal(each)) for each in rest}) > 1:
            raise Refused("mixed list")
    if kind == "like" and rest[1] is not None and len(unquoted(rest[1])) != 1:
        raise Refused("one character")
    if kind == "like":
        like_regex(*rest)


def check_comparison(
    left: Tree[Any], operator: str, right: Tree[Any], *, is_range: bool = False
) -> None:
    for side in (left, right):
        check_operand(side)
        if is_literal(side):
            value = literal(side)
            if value is None:
                raise Refused("NULL")
            if isinstance(value, bool) and operator not in ("=", "<>"):
                raise Refused("order of booleans")
    if is_literal(left) and is_literal(right):
        if family(literal(left)) != family(literal(right)):
            raise Refused("families")
        if not is_range and '"' in (quotes(left), quotes(right)):
            raise Refused("no property")
        return
    for side, other in ((left, right), (right, left)):
        is_minus = not is_literal(side) and minuses(side) % 2 == 1
        if is_minus and is_literal(other) and family(literal(other)) != "number":
            raise Refused("a minus of no number")


def without_signs(node: Tree[Any]) -> Tree[Any]:
    while node.data in ("minus", "plus"):
        node = node.children[0]
    return node


def minuses(node: Tree[Any]) -> int:
    count = 0
    while node.data in ("minus", "plus"):
        count += node.data == "minus"
        node = node.children[0]
    return count


def check_operand(node: Tree[Any]) -> None:
    if node.data not in OPERANDS:
        raise Refused("no operand")
    if node.data in ("minus", "plus"):
        inner = node.children[0]
        if inner.data in ("minus", "plus"):
            check_operand(inner)
        elif inner.data not in OPERANDS:
            raise Refused("no operand")
    if is_literal(node):
        literal(node)


def is_literal(node: Tree[Any]) -> bool:
    return without_signs(node).data != "property"


def literal(node: Tree[Any]) -> Any:
    """The value of a literal with its signs."""
    signs = minuses(node)
    node = without_signs(node)
    value: Any
    match node.data:
        case "true":
            value = True
        case "false":
            value = False
        case "null":
            value = None
        case "text":
            value = unquoted(node.children[0])
        case _:
            value = number(str(node.children[0]))
    if signs % 2:
        if family(value) != "number":
            raise Refused("a minus of no number")
        value = -value
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        raise Refused("64 bits")
    return value


def number(text: str) -> int | float:
    if re.fullmatch("[0-9]+[lL]?", text):
        digits = text.rstrip("lL")
        if re.fullmatch("0[0-9]+", digits) or len(digits) > 30:
            raise Refused("integer")
        return int(digits)
    if text[-1] in "lL":
        raise Refused("no integer")
    value = float(text)
    if math.isinf(value) or (value == 0 and Decimal(re.split("[eE]", text)[0]) != 0):
        raise Refused("float")
    return value


def quotes(node: Tree[Any]) -> str:
    """The quotes of a text; empty: it is none."""
    return str(node.children[0])[0] if node.data == "text" else ""


def unquoted(token: Any) -> str:
    text = str(token)
    return text[1:-1].replace(text[0] * 2, text[0])


def family(value: Any) -> str | None:
    """The family of values that a value compares with; None: it compares with none."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float) and not math.isnan(value):
        return "number"
    return None


# The meaning of a condition.


def condition(node: Tree[Any], row: Mapping[str, Any]) -> bool | None:
    children = node.children
    match str(node.data):
        case "disjunction":
            outcomes = [condition(child, row) for child in children]
            return True if True in outcomes else None if None in outcomes else False
        case "conjunction":
            outcomes = [condition(child, row) for child in children]
            return False if False in outcomes else None if None in outcomes else True
        case "negation":
            return opposite(condition(children[0], row))
        case "compare":
            return compare(operand(children[0], row), str(children[1]), operand(children[2], row))
        case "between":
            return between(node, row)
        case "is_null":
            return operand(children[0], row) is None
        case "is_not_null":
            return operand(children[0], row) is not None
        case "minus" | "plus" | "property" | "true" | "false" | "null":
            value = operand(node, row)
            return value if isinstance(value, bool) else None
        case data if data.startswith("not_"):
            return opposite(condition(Tree(data.removeprefix("not_"), children), row))
        case "in_list":
            return in_list(node, row)
        case "text_test":
            text = operand(children[0], row)
            if not isinstance(text, str):
                return None
            return text_test(text, str(children[1]).upper(), unquoted(children[2]))
        case "like":
            text = operand(children[0], row)
            if not isinstance(text, str):
                return None
            return bool(re.fullmatch(like_regex(children[1], children[2]), text, re.DOTALL))
        case other:
            raise AssertionError(other)


def opposite(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome


def between(node: Tree[Any], row: Mapping[str, Any]) -> bool | None:
    value, low, high = (operand(child, row) for child in node.children)
    outcomes = [compare(value, ">=", low), compare(value, "<=", high)]
    return False if False in outcomes else None if None in outcomes else True


def in_list(node: Tree[Any], row: Mapping[str, Any]) -> bool | None:
    value = operand(node.children[0], row)
    outcomes = [compare(value, "=", literal(child)) for child in node.children[1:]]
    return True if True in outcomes else None if None in outcomes else False


def compare(left: Any, operator: str, right: Any) -> bool | None:
    if family(left) is None or family(left) != family(right):
        return None
    if family(left) == "boolean" and operator not in ("=", "<>"):
        return None
    return bool(
        {
            "=": left == right,
            "<>": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[operator]
    )


def text_test(text: str, operator: str, constant: str) -> bool:
    if operator == "CONTAINS":
        return constant in text
    return text.startswith(constant) if operator == "STARTSWITH" else text.endswith(constant)


def like_regex(pattern: Any, escape: Any) -> str:
    text = unquoted(pattern)
    mark = None if escape is None else unquoted(escape)
    parts, at = [], 0
    while at < len(text):
        if text[at] == mark:
            at += 1
            if at == len(text) or text[at] not in ("%", "_", mark):
                raise Refused("escape")
            parts.append(re.escape(text[at]))
        elif text[at] in "%_":
            parts.append(".*" if text[at] == "%" else ".")
        else:
            parts.append(re.escape(text[at]))
        at += 1
    return "".join(parts)


def operand(node: Tree[Any], row: Mapping[str, Any]) -> Any:
    if is_literal(node):
        return literal(node)
    signs = minuses(node)
    token = str(without_signs(node).children[0])
    value = row.get(unquoted(token) if token[0] == "`" else token)
    if signs % 2 == 0:
        return value
    # Bytes have no family: present, and comparable with nothing.
    if value is None:
        return None
    return -value if family(value) == "number" else b""
