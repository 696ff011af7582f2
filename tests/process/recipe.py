"""The recipe of docs/transactions.md: one row of a local database decides."""

from tests.process.databases import Database


def pay(database: Database, number: str) -> None:
    """The local work: durable when this returns. Raises if the order was refused meanwhile."""
    with database.transaction():
        database.execute("INSERT INTO orders VALUES (?, 'paid')", number)


def is_paid(database: Database, number: str) -> bool:
    """Whether the transaction was paid. An unpaid order is refused for good, or a slow shop could
    pay it after this said no."""
    with database.transaction():
        database.execute("INSERT INTO orders VALUES (?, 'refused') ON CONFLICT DO NOTHING", number)
    outcome = database.execute("SELECT outcome FROM orders WHERE number = ?", number)
    return bool(outcome.fetchone() == ("paid",))


def is_new(database: Database, message_id: str) -> bool:
    """Whether the message is new; ask this in the database transaction that deals with it."""
    statement = "INSERT INTO done VALUES (?) ON CONFLICT DO NOTHING"
    return bool(database.execute(statement, message_id).rowcount == 1)


def ship(database: Database, number: str) -> None:
    """A message's effect, in the same database transaction."""
    database.execute("INSERT INTO shipped VALUES (?)", number)


def ship_if_new(database: Database, message_id: str, number: str) -> bool:
    """Deal with a message in a database transaction, whether it comes for the first time or again;
    True: it was new."""
    if not is_new(database, message_id):
        return False
    ship(database, number)
    return True


def ship_once(database: Database, message_id: str, number: str) -> bool:
    """As `ship_if_new`, in a database transaction of its own; acknowledge after it has returned."""
    with database.transaction():
        return ship_if_new(database, message_id, number)
