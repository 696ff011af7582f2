"""The cost of users and rules of access: `python -m bench.cores.access`.

    python -m bench.cores.access [--users 10000] [--rules 100000] [--verdicts 20000] [--rounds 5]
                                 [--json FILE]

| row | what |
|---|---|
| memory | Python's memory of users with keys, and of rules, as commands of a log make them |
| verdict | nanoseconds of `Rules.judge`, the mean of acts that a rule decides and of others |
| snapshot | milliseconds in which the loop is held to write and to read users and rules |

A user has as many rules as another one; a third of the rules are about prefixes, of 4 to 7
characters. "All of one user" is the worst case: a user whose rules are all rules. CPU time of this
process counts, and the best of several rounds. A table goes to stdout, and JSON to the file.
"""

import argparse
import gc
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
from rich.console import Console

from bench.cores.filters import best_us
from bench.figures import Figure, table, write
from bench.machine import run_facts
from raftmq.access.rules import Act, Operation, Resource, Rule
from raftmq.machine.catalog.access import AccessCommand, AccessState, PutRule, PutUser
from raftmq.machine.commands import decode_commands, encode_commands
from raftmq.results import Changed, Refused

RECORD_COMMANDS = 1000
"""Commands that are encoded and decoded together."""
MIB = 1 << 20
TOPICS = 1_000_000
OPERATIONS = (Operation.READ, Operation.WRITE, Operation.POP, Operation.DESCRIBE)


def user_name(n: int) -> str:
    """The name of a user."""
    return f"service-{n}"


def user_commands(count: int, random: Random) -> Iterator[AccessCommand]:
    """Commands that create users with keys."""
    for n in range(count):
        yield PutUser(
            user_name(n), random.randbytes(16), 100_000, random.randbytes(32), random.randbytes(32)
        )


def rule_commands(count: int, users: int, random: Random) -> Iterator[AccessCommand]:
    """Commands that add different rules, dealt out to users in turn."""
    seen: set[Rule] = set()
    while len(seen) < count:
        is_prefix = random.random() < 1 / 3
        name = f"{random.randrange(TOPICS):07}"
        rule = Rule(
            user_name(len(seen) % users),
            random.random() < 0.9,
            random.choice(OPERATIONS),
            Resource.TOPIC,
            name[: random.randint(4, 7)] if is_prefix else name,
            is_prefix,
        )
        if rule not in seen:
            seen.add(rule)
            yield PutRule(rule)


def fill(state: AccessState, commands: Iterator[AccessCommand]) -> None:
    """Carry commands out as a node does that has read them from its log."""
    while chunk := list(islice(commands, RECORD_COMMANDS)):
        decoded = decode_commands(encode_commands(chunk), list[AccessCommand])
        assert not isinstance(decoded, Refused)
        for command in decoded:
            result = state.apply(command, index=state.version + 1, now=1)
            assert result == Changed(True), (command, result)


def filled(users: int, rules: int, rule_users: int, seed: int = 1) -> AccessState:
    """A state with users, and with rules of the first `rule_users` of them."""
    state, random = AccessState(), Random(seed)
    fill(state, user_commands(users, random))
    fill(state, rule_commands(rules, rule_users, random))
    return state


def memory_mib(users: int, rules: int, rule_users: int) -> float:
    """Python's memory that a state holds."""
    gc.collect()
    tracemalloc.start()
    try:
        state = filled(users, rules, rule_users)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        assert len(state.rules) == rules
    finally:
        tracemalloc.stop()
    return held / MIB


def acts(state: AccessState, count: int, seed: int = 2) -> list[tuple[str, Act]]:
    """Acts of users: half on names of rules of theirs, half on names that no rule is about."""
    random = Random(seed)
    rules = list(state.rules)
    found: list[tuple[str, Act]] = []
    for n in range(count):
        rule = random.choice(rules)
        name = f"{rule.name}-of" if rule.is_prefix else rule.name
        found.append(
            (
                rule.user,
                Act(random.choice(OPERATIONS), Resource.TOPIC, name if n % 2 else f"x{name}"),
            )
        )
    return found


def verdict_ns(state: AccessState, verdicts: int, rounds: int) -> float:
    """CPU nanoseconds of one verdict."""
    asked, judge = acts(state, verdicts), state.rules.judge
    allowed = sum(judge(user, act).is_allowed for user, act in asked)
    assert 0 < allowed < verdicts, f"{allowed} of {verdicts} are allowed: nothing is compared"

    def work() -> None:
        for user, act in asked:
            judge(user, act)

    return best_us(work, rounds, 1) / verdicts * 1000


def snapshot_ms(state: AccessState, rounds: int) -> tuple[float, float]:
    """CPU milliseconds to write a state as plain values, and to read it."""
    plain = msgspec.to_builtins(state.dump(), builtin_types=(bytes,))

    def dump() -> object:
        return msgspec.to_builtins(state.dump(), builtin_types=(bytes,))

    return best_us(dump, rounds, 1) / 1000, best_us(
        lambda: AccessState().load(plain), rounds, 1
    ) / 1000


def measure(users: int, rules: int, verdicts: int, rounds: int) -> list[Figure]:
    """All rows."""
    with_keys = memory_mib(users, 0, 1)
    both = memory_mib(users, rules, users)
    figures = [
        Figure(f"memory: {users:,} users with keys", with_keys, "MiB"),
        Figure(f"memory: {rules:,} rules of them", both - with_keys, "MiB"),
    ]
    few = verdict_ns(filled(1, 10, 1), verdicts, rounds)
    state = filled(users, rules, users)
    many = verdict_ns(state, verdicts, rounds)
    one = verdict_ns(filled(1, rules, 1), verdicts, rounds)
    figures += [
        Figure("verdict: 10 rules", few, "ns"),
        Figure(f"verdict: {rules:,} rules of {users:,} users", many, "ns"),
        Figure(f"verdict: {rules:,} rules, all of one user", one, "ns"),
        Figure("verdict: many / 10 rules", many / few, wanted=3.0, is_limit=True),
    ]
    dump_ms, load_ms = snapshot_ms(state, rounds)
    figures += [
        Figure("snapshot: write", dump_ms, "ms"),
        Figure("snapshot: read", load_ms, "ms"),
    ]
    return figures


def main(arguments: Sequence[str]) -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.cores.access")
    parser.add_argument("--users", type=int, default=10_000, help="with keys and rules")
    parser.add_argument("--rules", type=int, default=100_000, help="of all users together")
    parser.add_argument("--verdicts", type=int, default=20_000, help="in a round")
    parser.add_argument("--rounds", type=int, default=5, help="the best one counts")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args(arguments)
    facts = run_facts()
    figures = measure(options.users, options.rules, options.verdicts, options.rounds)
    Console(width=140).print(table(figures))
    if options.json:
        write(options.json, facts, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
