"""The filters against the oracle, on random texts and messages.

    python -m tests.filters.differential [COUNT [SEED]]

The default, 100,000 filters with four messages each, half of them with signs, takes about a minute
and a half.
"""

import sys
from random import Random

from raftmq.filters import Filter, FilterSyntaxError
from raftmq.filters import compile as compile_filter
from tests.filters.expressions import SignWriter, Writer, row
from tests.filters.oracle import Oracle, Refused

ROWS = 4


def compare(count: int, seed: int, *, signs: bool = False) -> tuple[int, int]:
    """Read this many random filters both ways; how many were refused, and how often one was true.

    `signs`: most filters have signs such as `&&`.
    NOT of a filter is true exactly where the filter is false: so all three outcomes are compared.
    """
    random = Random(seed)
    writer = (SignWriter if signs else Writer)(random)
    refused = true = 0
    for number in range(count):
        text = writer.text()
        oracle, pair = read_naively(text), read(text)
        assert (oracle is None) == (pair is None), (number, text)
        if oracle is None or pair is None:
            refused += 1
            continue
        for _ in range(ROWS):
            props = row(random)
            outcome = oracle.outcome(props)
            expected = (outcome is True, outcome is False)
            found = (pair[0].matches(props), pair[1].matches(props))
            assert found == expected, (number, text, props)
            true += outcome is True
    return refused, true


def read_naively(text: str) -> Oracle | None:
    """The oracle's reading; None: refused."""
    try:
        return Oracle(text)
    except Refused:
        return None


def read(text: str) -> tuple[Filter, Filter] | None:
    """The filter and its NOT; None: refused. In parentheses, so that a lone name is no tag."""
    try:
        return compile_filter(f"({text}\n)"), compile_filter(f"NOT ({text}\n)")
    except FilterSyntaxError:
        return None


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:3]]
    total, seed = *arguments, *(100_000, 1)[len(arguments) :]
    counts = compare(total - total // 2, seed), compare(total // 2, seed, signs=True)
    refused, true = map(sum, zip(*counts, strict=True))
    verdicts = (total - refused) * ROWS
    print(f"{total} filters agree: {refused} refused by both, {true} of {verdicts} verdicts true")
