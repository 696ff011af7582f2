"""`raftmq chaos list`: the faults, promises, checkers and planted bugs that exist."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from raftmq.cli.output import Result, Table, with_output

from .run import WORLDS

MEANINGS = {
    "faults": "what can be broken",
    "invariants": "what servers promise",
    "anomalies": "what clients may see that breaks a promise",
    "checkers": "who judges a history",
    "mutants": "bugs that can be planted, to see them found",
}
LISTS = tuple(MEANINGS)


@click.command("list")
@click.argument("what", type=click.Choice(LISTS), required=False)
@click.option("--world", type=click.Choice(WORLDS), help="Only faults that it can make.")
@with_output
def list_(what: str | None, world: str | None) -> Result:
    """Print faults, invariants, anomalies, checkers or mutants, each with its explanation.

    Without a name: how many there are of each. Families, such as `partition`, stand for all their
    faults in `raftmq chaos run --faults`.
    """
    lists: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "faults": lambda: _faults(world),
        "invariants": _invariants,
        "anomalies": _anomalies,
        "checkers": _checkers,
        "mutants": _mutants,
    }
    if what is None:
        rows = [
            {"list": name, "entries": len(entries()), "what": MEANINGS[name]}
            for name, entries in lists.items()
        ]
    else:
        rows = lists[what]()
    columns = [name.upper() for name in rows[0]] if rows else []
    cells = [[_cell(value) for value in row.values()] for row in rows]
    return Result(rows, [Table(columns, cells)])


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _faults(world: str | None) -> list[dict[str, Any]]:
    from raftmq.chaos.faults import FAMILIES, FAULTS

    return [
        {
            "name": fault.name,
            "code": fault.code,
            "families": [name for name, kinds in FAMILIES.items() if fault.name in kinds],
            "worlds": [name for name in WORLDS if name in {one.value for one in fault.worlds}],
            "aim": fault.aim.value,
            "what": fault.what,
        }
        for fault in FAULTS.values()
        if world is None or world in {one.value for one in fault.worlds}
    ]


def _invariants() -> list[dict[str, Any]]:
    from raftmq.checkers import INVARIANTS

    return [
        {
            "number": number,
            "name": invariant.name,
            "decided by": invariant.decided_by,
            "meaning": invariant.meaning,
        }
        for number, invariant in INVARIANTS.items()
    ]


def _anomalies() -> list[dict[str, Any]]:
    from raftmq.checkers import ANOMALIES

    return [{"name": name, "meaning": meaning} for name, meaning in ANOMALIES.items()]


def _checkers() -> list[dict[str, Any]]:
    from inspect import getdoc

    from raftmq import checkers

    found: Mapping[str, Any] = vars(checkers)
    return [
        {"name": name, "what": (getdoc(found[name]) or "").split("\n\n")[0].replace("\n", " ")}
        for name in checkers.__all__
        if name.startswith("check_") or name == "judge"
    ]


def _mutants() -> list[dict[str, Any]]:
    from raftmq.chaos.mutant import known_mutants

    return [
        {
            "number": mutant.number,
            "name": mutant.name,
            "killers": list(mutant.killers),
            "what": mutant.what,
            "cannot be planted": mutant.reason,
        }
        for mutant in known_mutants()
    ]
