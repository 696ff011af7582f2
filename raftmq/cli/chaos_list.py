"""`raftmq chaos list`: what can be broken, what is promised, who judges it, what is planted."""

from collections.abc import Mapping
from typing import Any

import click

from .chaos_run import WORLDS
from .output import output_option, print_json, print_table

LISTS = ("faults", "invariants", "anomalies", "checkers", "mutants")


@click.command("list")
@click.argument("what", type=click.Choice(LISTS))
@click.option("--world", type=click.Choice(WORLDS), help="Only faults that it can make.")
@output_option()
def list_(what: str, world: str | None, output: str) -> None:
    """Print faults, invariants, anomalies, checkers or mutants, each with its explanation."""
    rows = {
        "faults": lambda: _faults(world),
        "invariants": _invariants,
        "anomalies": _anomalies,
        "checkers": _checkers,
        "mutants": _mutants,
    }[what]()
    if output == "json":
        print_json(rows)
    else:
        columns = [name.upper() for name in rows[0]] if rows else []
        print_table(columns, [[_cell(value) for value in row.values()] for row in rows])


def _cell(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _faults(world: str | None) -> list[dict[str, Any]]:
    from raftmq.chaos.faults import FAULTS

    return [
        {
            "name": fault.name,
            "code": fault.code,
            "worlds": [name for name in WORLDS if name in {one.value for one in fault.worlds}],
            "aim": fault.aim.value,
            "what": fault.what,
        }
        for fault in FAULTS.values()
        if world is None or world in {one.value for one in fault.worlds}
    ]


def _invariants() -> list[dict[str, Any]]:
    from raftmq.chaos import INVARIANTS

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
    from raftmq.chaos import ANOMALIES

    return [{"name": name, "meaning": meaning} for name, meaning in ANOMALIES.items()]


def _checkers() -> list[dict[str, Any]]:
    from inspect import getdoc

    from raftmq.chaos import checkers

    found: Mapping[str, Any] = vars(checkers)
    return [
        {"name": name, "what": (getdoc(found[name]) or "").split("\n\n")[0].replace("\n", " ")}
        for name in checkers.__all__
        if name.startswith("check_") or name == "judge"
    ]


def _mutants() -> list[dict[str, Any]]:
    from raftmq.chaos.campaign import mutants

    return [
        {
            "number": mutant.number,
            "name": mutant.name,
            "killers": list(mutant.killers),
            "what": mutant.what,
            "cannot be planted": mutant.reason,
        }
        for mutant in mutants()
    ]
