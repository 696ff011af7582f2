"""The log of changes in a SQLite file: `prepare` makes its table, and the triggers that write it.

A trigger logs the row as the table has it, and not as `NEW` says: another trigger, or the action of
a foreign key, may have written the row again and logged that first. So the last entry of a key is
the table's row, in whichever order triggers run. SQLite runs the newest triggers first. Our
triggers have to be the newest, so that entries are in the order of changes and each `before` fits.

| trigger | entries |
|---|---|
| insert | `c` with the row after it, if it is still there |
| update | `d` with the row before it, if no row has its key now; `u` as for an insert, with both |
| delete | `d`, as for an update |
"""

from .change import Op, Table


def statements_of(table: Table, log: str) -> dict[str, str]:
    """The tables and triggers that a capture needs: name → the statement that makes it.

    Args:
        table: the captured table.
        log: the name of its table of changes.
    """
    befores, afters = _numbered("b", table), _numbered("a", table)
    names = ", ".join(quoted(column.name) for column in table.columns)
    olds = ", ".join(f"OLD.{quoted(column.name)}" for column in table.columns)
    into, rows = f"INSERT INTO {quoted(log)} (op,", f"FROM {quoted(table.name)} WHERE"
    gone = (
        f"{into} {befores}) SELECT '{Op.DELETE}', {olds} "
        f"WHERE NOT EXISTS (SELECT 1 {rows} {_has_key(table, 'OLD')});"
    )
    there = f"{rows} {_has_key(table, 'NEW')};"
    new = f"{into} {afters}) SELECT '{Op.CREATE}', {names} {there}"
    changed = f"{into} {befores}, {afters}) SELECT '{Op.UPDATE}', {olds}, {names} {there}"
    made = {
        "raftmq_captures": "CREATE TABLE raftmq_captures "
        "(name TEXT PRIMARY KEY, topic TEXT, confirmed INTEGER)",
        log: f"CREATE TABLE {quoted(log)} (id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, "
        f"{befores}, {afters})",
    }
    for name, body in zip(triggers_of(log), (new, f"{gone} {changed}", gone), strict=True):
        event = name.rpartition("_")[2].upper()
        made[name] = (
            f"CREATE TRIGGER {quoted(name)} AFTER {event} ON {quoted(table.name)} BEGIN {body} END"
        )
    return made


def triggers_of(log: str) -> list[str]:
    """The names of the triggers that write a table of changes: of insert, update and delete."""
    return [f"{log}_{event}" for event in ("insert", "update", "delete")]


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _has_key(table: Table, which: str) -> str:
    """An SQL condition: a row of the table has the key of `OLD` or `NEW`."""
    kinds = {column.name: column.kind for column in table.columns}
    tests = []
    for name in table.key:
        # The column may have another collation than its key, whose collation is BINARY.
        collation = " COLLATE BINARY" if kinds[name] == "text" else ""
        tests.append(f"{quoted(name)} IS {which}.{quoted(name)}{collation}")
    return " AND ".join(tests)


def _numbered(letter: str, table: Table) -> str:
    return ", ".join(f"{letter}{number}" for number in range(len(table.columns)))
