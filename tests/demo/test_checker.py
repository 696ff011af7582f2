"""The proof can fail: each kind of violation is planted, found, and named in what is printed."""

from collections.abc import Iterator
from io import StringIO
from typing import NamedTuple

import pytest
from rich.console import Console

from demo.checker import EXAMPLES_MAX, Kind, Ledger, Witness
from demo.report import Figures, Report, checks_of
from demo.screen import tables

ROWS = 100
KEYS = 7


class Read(NamedTuple):
    """One message as a consumer is handed it."""

    body: bytes
    key: str | None
    tag: str | None
    props: dict[str, int | float | str]
    queue: int
    offset: int


def message(row: int) -> Read:
    """The message of this number: every seventh has no key, each key has a queue."""
    key = None if row % KEYS == 0 else f"N{row % KEYS}"
    props: dict[str, int | float | str] = {"row": row, "dest": "SFO", "speed": row / 3}
    return Read(b"body %d" % row, key, "UA", props, row % KEYS, row // KEYS)


@pytest.fixture
def ledger() -> Ledger:
    """All messages were sent and acked."""
    ledger = Ledger(ROWS)
    for row in range(ROWS):
        sent = message(row)
        ledger.send(row, sent.body, sent.key, sent.tag, sent.props)
        ledger.ack(row, sent.queue, sent.offset)
    return ledger


def seen(ledger: Ledger, reads: list[Read]) -> Witness:
    """A witness that has read these."""
    witness = Witness(ledger, "board")
    for read in reads:
        witness.see(read.body, read.key, read.tag, read.props, queue=read.queue, offset=read.offset)
    witness.finish()
    return witness


def found(witness: Witness) -> dict[Kind, int]:
    """How often each kind of violation was found."""
    return {kind: f.count for kind, f in witness.findings.items() if f.count}


def printed(ledger: Ledger, witness: Witness) -> str:
    """The report as a person sees it."""
    figures = Figures(ROWS, 0, 1.0, {"board": 1.0}, 0, 0, 1.0, 1, 2, 1.0, 1.0, 1)
    output = StringIO()
    console = Console(width=120, file=output)
    console.print(tables(Report(figures, checks_of(ledger, [], [witness]))))
    return output.getvalue()


def by_queue() -> list[Read]:
    """All messages as a consumer may get them: queue after queue."""
    return sorted(map(message, range(ROWS)), key=lambda read: read.queue)


def test_everything_as_sent_holds(ledger: Ledger) -> None:
    witness = seen(ledger, by_queue())
    assert witness.is_satisfied
    assert witness.read == ROWS
    assert "HOLDS" in printed(ledger, witness)


def test_message_that_is_not_read_is_lost(ledger: Ledger) -> None:
    witness = seen(ledger, [read for read in by_queue() if read.props["row"] not in (13, 14)])
    assert found(witness) == {Kind.LOST: 2}
    text = printed(ledger, witness)
    assert "lost: row 13, acked at queue 6, offset 1" in text
    assert "BROKEN" in text


def test_message_that_is_read_again_is_a_duplicate(ledger: Ledger) -> None:
    reads = by_queue()
    again = reads[20]._replace(offset=99)
    witness = seen(ledger, [*reads, again])
    assert found(witness) == {Kind.DUPLICATED: 1}
    text = f"duplicated: row {again.props['row']} at queue {again.queue}, offset 99, and before at"
    assert text in printed(ledger, witness)


def altered() -> Iterator[tuple[str, Read]]:
    read = message(50)
    yield "body", read._replace(body=b"body 51")
    yield "key", read._replace(key="N2")
    yield "key", read._replace(key=None)
    yield "tag", read._replace(tag="AA")
    yield "properties", read._replace(props={**read.props, "dest": "LAX"})
    yield "properties", read._replace(props={**read.props, "speed": 16})
    yield "properties", read._replace(props={"row": 50, "dest": "SFO"})
    yield "properties", read._replace(props={**read.props, "more": 1})


@pytest.mark.parametrize(("what", "read"), list(altered()))
def test_message_with_anything_changed_is_altered(ledger: Ledger, what: str, read: Read) -> None:
    reads = [read if other == message(50) else other for other in by_queue()]
    witness = seen(ledger, reads)
    assert found(witness) == {Kind.ALTERED: 1}
    text = f"altered: row 50 at queue 1, offset 7: another {what}"
    assert text in printed(ledger, witness)


def test_number_that_changed_its_type_only_is_altered(ledger: Ledger) -> None:
    read = message(3)
    assert read.props["speed"] == 1
    reads = [
        read._replace(props={**read.props, "speed": 1}) if other == read else other
        for other in by_queue()
    ]
    assert found(seen(ledger, reads)) == {Kind.ALTERED: 1}


@pytest.mark.parametrize("row", [ROWS, -1, "13", 13.0, True, None])
def test_message_that_nobody_sent_is_invented(
    ledger: Ledger, row: int | float | str | None
) -> None:
    props = {**message(13).props, "row": row} if row is not None else {}
    invented = message(13)._replace(props=props, offset=50)
    witness = seen(ledger, [*by_queue(), invented])
    assert found(witness) == {Kind.INVENTED: 1}
    assert f"invented: row {row!r} was never sent, read at queue 6, offset 50" in printed(
        ledger, witness
    )


def test_messages_of_one_key_out_of_order_are_reordered(ledger: Ledger) -> None:
    reads = by_queue()
    first, second = reads.index(message(9)), reads.index(message(16))
    reads[first], reads[second] = reads[second], reads[first]
    witness = seen(ledger, reads)
    assert found(witness) == {Kind.REORDERED: 1}
    assert "reordered: row 9 at queue 2, offset 1 after row 16, both of key N2" in printed(
        ledger, witness
    )


def test_no_order_is_asked_of_messages_without_a_key(ledger: Ledger) -> None:
    keyless = [read for read in by_queue() if read.key is None]
    keyed = [read for read in by_queue() if read.key is not None]
    assert keyless
    assert seen(ledger, keyed + keyless[::-1]).is_satisfied


def test_message_elsewhere_than_its_receipt_says_is_misplaced(ledger: Ledger) -> None:
    reads = [r._replace(offset=77) if r == message(20) else r for r in by_queue()]
    witness = seen(ledger, reads)
    assert found(witness) == {Kind.MISPLACED: 1}
    text = "misplaced: row 20 at queue 6, offset 77, its receipt says queue 6, offset 2"
    assert text in printed(ledger, witness)


def test_message_of_unknown_outcome_may_be_read_once_or_not_at_all() -> None:
    ledger = Ledger(2)
    for row in range(2):
        ledger.send(row, *message(row)[:4])
    assert seen(ledger, []).is_satisfied
    assert seen(ledger, [message(1)]).is_satisfied
    assert found(seen(ledger, [message(1), message(1)])) == {Kind.DUPLICATED: 1}
    assert "not" not in checks_of(ledger, [], [])[0].promise
    assert checks_of(ledger, ["why"], [])[0].violations == 2


def test_message_that_was_refused_must_not_be_read() -> None:
    ledger = Ledger(1)
    ledger.send(0, *message(0)[:4])
    ledger.refuse(0)
    assert seen(ledger, []).is_satisfied
    witness = seen(ledger, [message(0)])
    assert found(witness) == {Kind.INVENTED: 1}
    assert "row 0 was refused, and read at queue 0, offset 0" in printed(ledger, witness)


def test_receipt_without_an_offset_asks_for_no_place() -> None:
    ledger = Ledger(1)
    ledger.send(0, *message(0)[:4])
    ledger.ack(0, 0, None)
    assert seen(ledger, [message(0)]).is_satisfied
    assert found(seen(ledger, [])) == {Kind.LOST: 1}


def test_all_violations_are_counted_and_the_first_few_are_told(ledger: Ledger) -> None:
    witness = seen(ledger, [])
    assert found(witness) == {Kind.LOST: ROWS}
    assert len(witness.findings[Kind.LOST].examples) == EXAMPLES_MAX
    assert "no: 100" in printed(ledger, witness)


def test_row_is_sent_and_acked_once(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="sent already"):
        ledger.send(0, *message(0)[:4])
    with pytest.raises(AssertionError, match="acked already"):
        ledger.ack(0, 0, 0)
