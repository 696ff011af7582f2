"""The witness finds each planted fault, accuses no other client's doings, and stays small."""

from collections.abc import Sequence

import pytest

from raftmq.checkers import Verdict
from raftmq.checkers.witness import queues as tables
from raftmq.checkers.witness.queues import Content, Reader, Run
from raftmq.checkers.witness.recent import Recent
from raftmq.checkers.witness.witness import Witness

Q = 7
MINE = (5, 0, 0)


def send(witness: Witness, offset: int, *digests: int, process: int = 1) -> None:
    sending = witness.queues.begin(process, Q, contents(*digests))
    witness.queues.stored(sending, offset)


def contents(*digests: int) -> list[Content]:
    return [Content(each, b"%d" % each) for each in digests]


def run(
    offset: int,
    digests: Sequence[int],
    *,
    base: int | None = None,
    batch: tuple[int, int, int] | None = None,
    released: int | None = None,
    stamp_ms: int = 0,
) -> Run:
    return Run(Q, offset, digests, offset if base is None else base, batch, released, stamp_ms)


def reader(*, is_gapless: bool = True, is_steady: bool = True) -> Reader:
    return Reader(9, is_gapless=is_gapless, is_steady=is_steady)


def found(witness: Witness) -> set[str]:
    return witness.report().names()


def test_witness_of_nothing_decides_nothing() -> None:
    report = Witness().report()
    assert report.verdict is Verdict.UNKNOWN
    assert report.reason.startswith("vacuous")


def test_messages_of_others_between_own_ones_are_no_breach() -> None:
    witness = Witness()
    send(witness, 2, 11, 12)
    send(witness, 7, 11)
    witness.queues.read(reader(), run(0, [90, 90, 11, 12, 91, 92, 93, 11, 94]))
    report = witness.report()
    assert report.verdict is Verdict.VALID
    assert report.counts["found as sent"] == 3
    assert not len(witness.queues.unread)


def test_content_that_differs_from_the_receipt_is_found() -> None:
    witness = Witness()
    send(witness, 0, 11, 12)
    witness.queues.read(reader(), run(0, [11, 99]))
    assert found(witness) == {"inconsistent-offset"}


def test_content_that_differs_from_the_receipt_is_found_by_a_reader_that_was_faster() -> None:
    witness = Witness()
    sending = witness.queues.begin(1, Q, contents(11))
    witness.queues.read(reader(), run(0, [99]))
    assert found(witness) == set()
    witness.queues.stored(sending, 0)
    assert found(witness) == {"inconsistent-offset"}


def test_offsets_that_are_shifted_by_one_are_found() -> None:
    witness = Witness()
    send(witness, 0, 11, 12, 13)
    witness.queues.read(reader(), run(1, [11, 12, 13]))
    assert "inconsistent-offset" in found(witness)


def test_two_receipts_for_one_place_are_found() -> None:
    witness = Witness()
    first, second = (witness.queues.begin(each, Q, contents(each)) for each in (1, 2))
    witness.queues.stored(first, 4)
    witness.queues.stored(second, 4)
    assert found(witness) == {"inconsistent-offset"}


def test_place_that_changes_between_two_reads_is_found_whoever_wrote_there() -> None:
    witness = Witness()
    witness.queues.read(reader(), run(0, [50]))
    witness.queues.read(reader(), run(0, [51]))
    assert found(witness) == {"inconsistent-offset"}


def test_send_below_one_that_was_acknowledged_before_it_began_is_found() -> None:
    witness = Witness()
    send(witness, 5, 11, process=1)
    send(witness, 3, 12, process=2)
    assert found(witness) == {"realtime-send"}


def test_sends_at_one_time_may_get_any_order_unless_one_producer_made_them() -> None:
    for producers, expected in (((1, 2), set()), ((1, 1), {"nonmonotonic-send"})):
        witness = Witness()
        one, two = (witness.queues.begin(process, Q, contents(11)) for process in producers)
        witness.queues.stored(one, 5)
        witness.queues.stored(two, 3)
        assert found(witness) == expected


def test_reader_that_skips_or_goes_back_is_found() -> None:
    for offset, expected in ((4, "poll-skip"), (1, "nonmonotonic-poll")):
        witness, each = Witness(), reader()
        witness.queues.read(each, run(0, [1, 2, 3]))
        witness.queues.read(each, run(offset, [2]))
        assert found(witness) == {expected}


def test_reader_with_a_filter_may_skip_and_a_member_may_go_back() -> None:
    witness = Witness()
    filtered = reader(is_gapless=False)
    member = reader(is_gapless=False, is_steady=False)
    for each, offset in ((filtered, 4), (member, 0)):
        witness.queues.read(each, run(0, [1, 2, 3]))
        witness.queues.read(each, run(offset, [1 if offset == 0 else 5]))
    moved = reader()
    witness.queues.read(moved, run(0, [1, 2, 3]))
    moved.positions.clear()
    witness.queues.read(moved, run(0, [1]))
    assert found(witness) == set()


def test_batch_of_an_own_producer_that_stands_twice_is_found() -> None:
    witness, each = Witness(), reader()
    send(witness, 2, 11)
    witness.queues.read(each, run(0, [11], batch=MINE))
    witness.queues.read(each, run(1, [90]))
    assert found(witness) == set()
    witness.queues.read(each, run(2, [11], batch=MINE))
    assert found(witness) == {"duplicate"}


def test_batch_that_is_handed_out_in_two_parts_is_no_repeat() -> None:
    witness, each = Witness(), reader()
    send(witness, 0, 11, 12)
    witness.queues.read(each, run(0, [11], base=0, batch=MINE))
    witness.queues.read(each, run(1, [12], base=0, batch=MINE))
    assert found(witness) == set()


def test_number_that_a_producer_of_others_used_twice_is_not_judged() -> None:
    witness, each = Witness(), reader()
    witness.queues.read(each, run(0, [11], batch=MINE))
    witness.queues.read(each, run(1, [12], batch=MINE))
    assert found(witness) == set()


@pytest.mark.parametrize(
    ("digest", "stamp_ms", "expected"),
    [(11, 1000, set()), (11, 999, {"delivered-early"}), (12, 1000, {"unexpected"})],
)
def test_delayed_message_that_comes_early_or_changed_is_found(
    digest: int, stamp_ms: int, expected: set[str]
) -> None:
    witness = Witness()
    sending = witness.queues.begin(1, Q, contents(10, 11))
    witness.queues.delayed(sending, [900, 1000], 300)
    witness.queues.read(reader(), run(4, [digest, 77], released=301, stamp_ms=stamp_ms))
    assert found(witness) == expected


@pytest.mark.parametrize(("end", "expected"), [(4, "unseen"), (5, "lost-write")])
def test_message_that_is_not_at_its_place_is_lost(end: int, expected: str) -> None:
    witness = Witness()
    send(witness, 4, 11)
    witness.queues.lost((Q, 4), end=end)
    assert found(witness) == {expected}


def test_message_that_comes_again_after_its_ack_is_suspected() -> None:
    leases = Witness().leases
    key = "g", Q, 3
    leases.popped(key, "q/3", token=10, now=0, until=30)
    leases.left(key, 10)
    leases.acknowledged(key, 10)
    leases.popped(key, "q/3", token=9, now=1, until=30)  # late, from before
    assert leases.suspicions == []
    leases.popped(key, "q/3", token=11, now=2, until=30)
    assert [each.anomaly for each in leases.suspicions] == ["redelivered-after-ack"]


@pytest.mark.parametrize(
    ("now", "is_settled", "expected"),
    [(5, False, ["two-leases"]), (29.5, False, []), (31, False, []), (5, True, [])],
)
def test_message_that_is_in_hand_twice_is_suspected(
    now: float, is_settled: bool, expected: list[str]
) -> None:
    leases = Witness().leases
    key = "g", Q, 3
    leases.popped(key, "q/3", token=10, now=0, until=30)
    if is_settled:
        leases.left(key, 10)
    leases.popped(key, "q/3", token=11, now=now, until=60)
    assert [each.anomaly for each in leases.suspicions] == expected


def test_other_groups_and_consumers_have_leases_of_their_own() -> None:
    leases = Witness().leases
    for token, group in enumerate("gh", 1):
        leases.popped((group, Q, 3), "q/3", token=token, now=0, until=30)
    assert leases.suspicions == []


def test_tables_forget_and_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PLACES_MAX", 100)
    monkeypatch.setattr(tables, "PRODUCERS_MAX", 10)
    monkeypatch.setattr("raftmq.checkers.witness.leases.LEASES_MAX", 100)
    witness = Witness()
    for at in range(1000):
        send(witness, at, at, process=at)
        key = "g", Q, at
        witness.leases.popped(key, "", token=1, now=0, until=30)
        witness.leases.acknowledged(key, 1)
        if at % 2:
            batch = (at, 0, 0)
            witness.queues.show(run(at, [at], batch=batch))
            sending = witness.queues.begin(1, Q, contents(at))
            witness.queues.delayed(sending, [5], at)
    held = [each for part in (witness.queues, witness.leases) for each in vars(part).values()]
    sizes = [len(each) for each in held if isinstance(each, Recent)]
    assert len(sizes) == 8
    assert max(sizes) == 100
    counts = witness.report().counts
    assert witness.report().verdict is Verdict.VALID
    assert counts["not judged: forgotten before they were read"] == 401
    assert counts["not judged again: places forgotten"] == 400
    assert counts["not judged again: leases forgotten"] == 1800


def test_suspicions_are_bounded() -> None:
    witness = Witness()
    for at in range(1000):
        key = "g", Q, at
        witness.leases.acknowledged(key, 1)
        witness.leases.popped(key, "", token=2, now=0, until=30)
    assert len(witness.leases.suspicions) == 100
    assert witness.report().counts["not judged: hand-outs without a record"] == 900
