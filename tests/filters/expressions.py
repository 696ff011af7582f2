"""Random filters, random messages: valid for the most part, and now and then not.

Names, constants and values are few, so that they meet; they include what goes wrong easily: 0 and
1 beside booleans, integers beside floats that round to them, NaN, infinity, the ends of 64 bits,
empty texts, quotes, wildcards, characters outside ASCII.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

NAMES = ["a", "b", "city", "type", "Amount", "$x_1", "`odd name`", "`AND`", "`a``b`"]
TEXTS = [
    "",
    "a",
    "b",
    "x",
    "it's",
    "Paris",
    "Pars",
    "a%b",
    "a_b",
    "100%",
    "é",
    "\U0001f600",
    "5",
    "\n",
]
NUMBERS = ["0", "1", "2", "5", "5L", "5.", ".5", "1.0", "1E3", "2.5", "0.0", "1E-300",
           "9007199254740993", "9007199254740992.0", "9223372036854775807", "9.3E18"]  # fmt: skip
BAD_NUMBERS = ["9223372036854775808", "007", "1E999", "1E-999", "5.0L", "99999999999999999999"]
VALUES: list[Any] = [
    0, 1, 2, 5, -5, -1, 1000, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 0.5, 1.0, 2.5, -2.5,
    5.0, float(2**53), 9.3e18, float("nan"), float("inf"), float("-inf"), True, False,
    b"", b"a", *TEXTS,
]  # fmt: skip
PATTERNS = [
    "%",
    "_",
    "%a%",
    "a%",
    "%b",
    "_a_",
    "a!%b",
    "a!_b",
    "P%s",
    "P_r_s",
    "%%",
    "",
    "!",
    "a%b%",
    "%_%",
]
COMPARE = ["=", "<>", "<", "<=", ">", ">="]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def plain_names() -> list[str]:
    return [name.strip("`").replace("``", "`") for name in NAMES]


def row(random: Random, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The properties of one message."""
    names = plain_names() if names is None else names
    return {name: random.choice(VALUES) for name in names if random.random() < 0.7}


class Writer:
    """Writes random filters."""

    def __init__(
        self, random: Random, *, names: Sequence[str] = NAMES, clean: bool = False
    ) -> None:
        self.random = random
        self.names = names
        self.clean = clean

    def text(self) -> str:
        """A filter; about one in ten is broken on purpose unless `clean`."""
        written = self.condition(self.random.randint(0, 4))
        if not self.clean and self.random.random() < 0.1:
            return self.broken(written)
        return written

    def broken(self, text: str) -> str:
        parts = text.split(" ")
        at = self.random.randrange(len(parts))
        match self.random.randrange(3):
            case 0:
                del parts[at]
            case 1:
                parts.insert(at, self.random.choice(parts))
            case _:
                parts[at] = self.random.choice(["AND", "NOT", "(", ")", "=", "'", "NULL", "5", "&"])
        return " ".join(parts)

    def condition(self, depth: int) -> str:
        choice = self.random.random()
        if depth == 0 or choice < 0.2:
            return self.spaced(self.predicate())
        if choice < 0.35:
            return f"{self.word('not')} {self.nested(depth)}"
        word = self.word("and" if choice < 0.7 else "or")
        count = self.random.randint(2, 3)
        return f" {word} ".join(self.nested(depth) for _ in range(count))

    def nested(self, depth: int) -> str:
        inner = self.condition(depth - 1)
        return f"( {inner} )" if self.random.random() < 0.6 else inner

    def word(self, word: str) -> str:
        return self.random.choice([word, word.upper(), word.title()])

    def spaced(self, text: str) -> str:
        if self.random.random() < 0.05:
            return self.random.choice([f"/* ' */ {text}", f"{text} -- so\n"])
        return text

    def name(self) -> str:
        return self.random.choice(self.names)

    def number(self) -> str:
        numbers = NUMBERS if self.clean or self.random.random() < 0.98 else BAD_NUMBERS
        sign = self.random.choice(["", "", "", "-", "- ", "+"])
        return sign + self.random.choice(numbers)

    def literal(self) -> str:
        return self.number() if self.random.random() < 0.5 else quoted(self.random.choice(TEXTS))

    def operand(self) -> str:
        choice = self.random.random()
        if choice < 0.55:
            return self.literal()
        if choice < 0.8 or self.clean:
            return self.name()
        if choice < 0.9:
            return self.random.choice(["-", "+", "- -"]) + self.name()
        if choice < 0.95:
            return self.random.choice(["TRUE", "false", "NULL"])
        return f"( {self.operand()} )"

    def predicate(self) -> str:
        name = self.name() if self.clean or self.random.random() < 0.9 else self.operand()
        negated = self.random.choice(["", "", "NOT "])
        match self.random.randrange(9):
            case 0 | 1 | 2:
                return f"{name} = {self.literal()}"
            case 3:
                if not self.clean and self.random.random() < 0.2:
                    return f"-{self.name()} {self.random.choice(COMPARE)} -{self.name()}"
                return f"{name} {self.random.choice(COMPARE)} {self.operand()}"
            case 4:
                low, high = self.bounds()
                return f"{name} {negated}BETWEEN {low} AND {high}"
            case 5:
                return f"{name} {negated}IN ( {' , '.join(self.elements())} )"
            case 6:
                word = self.random.choice(["CONTAINS", "STARTSWITH", "ENDSWITH"])
                return f"{name} {negated}{self.word(word)} {quoted(self.random.choice(TEXTS))}"
            case 7:
                escape = self.random.choice(["", " ESCAPE '!'"])
                patterns = [p for p in PATTERNS if p != "!"] if self.clean else PATTERNS
                return f"{name} {negated}LIKE {quoted(self.random.choice(patterns))}{escape}"
            case _:
                return self.random.choice([name, f"{name} = TRUE", f"{name} IS {negated}NULL"])

    def bounds(self) -> tuple[str, str]:
        if self.clean or self.random.random() < 0.85:
            return self.random.choice([("1", "5"), ("'a'", "'x'"), ("-1", "a"), ("2.5", "9.3E18")])
        return self.operand(), self.operand()

    def elements(self) -> list[str]:
        count = self.random.randint(1, 4)
        if self.random.random() < 0.5:
            return [quoted(self.random.choice(TEXTS)) for _ in range(count)]
        if not self.clean and self.random.random() < 0.05:
            return [self.operand() for _ in range(count)]
        return [self.number() for _ in range(count)]


SIGNS = {" = ": " == ", " <> ": " != ", " IS NULL": " == nil", " IS NOT NULL": " != nil"}


class SignWriter(Writer):
    """Writes random filters with the signs of expression languages, for the most part."""

    def word(self, word: str) -> str:
        sign = {"and": "&&", "or": "||", "not": "!"}.get(word)
        return sign if sign and self.random.random() < 0.7 else super().word(word)

    def literal(self) -> str:
        text = super().literal()
        if text[0] != "'" or self.random.random() < 0.5:
            return text
        inner = text[1:-1].replace("''", "'").replace('"', '""')
        return f'"{inner}"'

    def operand(self) -> str:
        return "nil" if self.random.random() < 0.05 else super().operand()

    def predicate(self) -> str:
        text = super().predicate()
        for word, sign in SIGNS.items():
            if self.random.random() < 0.7:
                text = text.replace(word, sign)
        return text
