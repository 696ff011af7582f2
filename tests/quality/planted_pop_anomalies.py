"""Small histories of consumer groups that pop, each with one anomaly of the dictionary in it."""

from collections.abc import Callable

from raftmq.checkers import History, PopRules, Report, check_pop
from raftmq.checkers.pop.calls import Got
from tests.checkers.pop_writing import PopScript

Plant = Callable[[PopScript], None]


def one_done(script: PopScript) -> None:
    """A message at offset 9 that nothing is wrong with."""
    script.sent("fine", 9)
    script.popped(5, "fine", 9, 5)
    script.acked(5, 9, 5)


def lost(script: PopScript) -> None:
    script.sent("a", 0)
    script.sent("b", 1)
    script.popped(1, "b", 1, 10)
    script.acked(1, 1, 10)
    script.listed()
    script.booked(2, 2, 0, 0, 0, 0, 2, 0, 0)


def lost_after_hand_out(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "nack", 0, 10)
    script.listed()
    script.booked(1, 1, 0, 0, 0, 0, 1, 0, 0)


def unexpected(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.acked(1, 0, 10)
    script.popped(1, "x", 1, 11)


def aborted(script: PopScript) -> None:
    script.send_failed("b")
    script.popped(1, "b", 0, 10)


def two_messages_at_an_offset(script: PopScript) -> None:
    script.sent("a", 0)
    script.sent("b", 1)
    script.popped(1, "b", 0, 10)


def one_message_at_two_offsets(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.popped(2, "a", 1, 11)


def after_ack(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.acked(1, 0, 10)
    script.popped(2, "a", 0, 11, 2)


def older_token_after_ack(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, 2)
    script.acked(1, 0, 10)
    script.popped(2, "a", 0, 9, 1)


def acked_and_failed(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.acked(1, 0, 10)
    script.settled(1, "nack", 0, 10)


def acked_and_dead(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, 3)
    script.acked(1, 0, 10)
    script.listed((0, (1, 3, "expired")))


def stale(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=5)
    script.time.now += 100
    script.popped(2, "a", 0, 11, 2)
    script.acked(1, 0, 10)


def foreign(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.acked(2, 0, 10)


def unfenced(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=5)
    script.time.now += 10
    script.settled(1, "ack", 0, 10, result=-1)
    script.acked(1, 0, 10)


def miscounted(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "nack", 0, 10, 0)
    script.popped(1, "a", 0, 11, 1)


def given_back_and_counted(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "give_back", 0, 10)
    script.popped(1, "a", 0, 11, 2)


def too_often(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, 4)


def early_burial(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, 1)
    script.settled(1, "nack", 0, 10)
    script.listed((0, (1, 1, "failed")))


def burial_without_reject(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, 1)
    script.settled(1, "reject", 0, 10, "poison")
    script.listed((0, (1, 1, "venom")))


def buried_twice(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "reject", 0, 10, "poison")
    script.listed((0, (1, 1, "poison")), (0, (2, 1, "poison")))


def not_buried(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, 3)
    script.settled(1, "nack", 0, 10)
    script.listed()


def delivered_after_burial(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "reject", 0, 10, "poison")
    script.popped(1, "a", 0, 11, 2)


def unbalanced(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.acked(1, 0, 10)
    script.booked(1, 1, 0, 0, 0, 0, 0, 0, 0)


def counted_otherwise(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.acked(1, 0, 10)
    script.booked(1, 1, 0, 0, 1, 0, 0, 0, 0)


def token_reused(script: PopScript) -> None:
    script.sent("a", 0)
    script.sent("b", 1)
    script.popped(1, "a", 0, 10)
    script.popped(2, "b", 1, 10)


def same_message_twice(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.popped(1, "a", 0, 10)


def tokens_shrink(script: PopScript) -> None:
    script.sent("a", 0)
    script.sent("b", 1)
    script.popped(1, "a", 0, 10)
    script.popped(2, "b", 1, 9)


def expired(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=-4)


def two_leases(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=1000)
    script.popped(2, "a", 0, 11, 2)


def extended_in_vain(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=50)
    script.settled(1, "extend", 0, 10, 5000, result=5000)
    script.time.now += 200
    script.popped(2, "a", 0, 11, 2)


def fenced(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=1000)
    script.settled(1, "ack", 0, 10, result=-1)


def early(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "nack", 0, 10, 500)
    script.time.now += 100
    script.popped(1, "a", 0, 11, 2)


def late(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10, remaining=50)
    script.time.now += 50 + 30 + 900
    script.popped(1, "a", 0, 11, 2)


def never_again(script: PopScript) -> None:
    script.sent("a", 0)
    script.popped(1, "a", 0, 10)
    script.settled(1, "give_back", 0, 10)
    script.time.now += 900
    script.popped_many(1)


def inversion(script: PopScript) -> None:
    script.sent((1, "k"), 0)
    script.sent((2, "k"), 1)
    script.popped(1, (1, "k"), 0, 10, remaining=5)
    script.popped(1, (2, "k"), 1, 11)
    script.time.now += 100
    script.popped(1, (1, "k"), 0, 12, 2)


def overtake(script: PopScript) -> None:
    script.sent((1, "k"), 0)
    script.sent((2, "k"), 1)
    script.popped(1, (1, "k"), 0, 10)
    script.popped(2, (2, "k"), 1, 11)
    script.acked(1, 0, 10)


def never_settled(script: PopScript) -> None:
    script.sent((1, "k"), 0)
    script.sent((2, "k"), 1)
    script.popped(2, (2, "k"), 1, 11)
    script.listed()


def one_key_in_one_lease(script: PopScript) -> None:
    script.sent((1, "k"), 0)
    script.sent((2, "k"), 1)
    one, two = ((1, "k"), 10, 1, 1000), ((2, "k"), 10, 1, 1000)
    script.popped_many(1, Got("t/0", 0, *one), Got("t/0", 1, *two))


def not_wanted(script: PopScript) -> None:
    script.sent("blue", 0)
    script.popped(1, "blue", 0, 10)


RULES = PopRules(
    attempts_max=3, schedule_ms=(30, 80), clock_ms_max=0, late_ms_max=500, is_ahead=False
)


def check_calm(history: History) -> Report:
    """All was seen."""
    rules = PopRules(attempts_max=3, clock_ms_max=0, is_ahead=False, is_complete=True)
    return check_pop(history, rules)


def check_group(history: History) -> Report:
    """A group whose consumers take no messages ahead."""
    return check_pop(history, RULES)


def check_by_key(history: History) -> Report:
    """A group that is ordered by key."""
    return check_pop(history, PopRules(order="key", attempts_max=3))


def check_filtered(history: History) -> Report:
    """A group with a filter."""
    return check_pop(history, PopRules(is_wanted=lambda value: value != "blue"))


PLANTS: list[tuple[str, Plant, Callable[[History], Report]]] = [
    ("pop-lost", lost, check_group),
    ("pop-lost", lost_after_hand_out, check_group),
    ("unexpected", unexpected, check_group),
    ("aborted-read", aborted, check_group),
    ("inconsistent-offset", two_messages_at_an_offset, check_group),
    ("duplicate", one_message_at_two_offsets, check_group),
    ("redelivered-after-ack", after_ack, check_group),
    ("redelivered-after-ack", older_token_after_ack, check_group),
    ("settled-twice", acked_and_failed, check_group),
    ("settled-twice", acked_and_dead, check_group),
    ("stale-settled", stale, check_group),
    ("foreign-settled", foreign, check_group),
    ("unfenced", unfenced, check_group),
    ("attempt-miscounted", miscounted, check_group),
    ("attempt-miscounted", given_back_and_counted, check_calm),
    ("attempts-exceeded", too_often, check_group),
    ("buried-early", early_burial, check_group),
    ("buried-early", burial_without_reject, check_group),
    ("buried-twice", buried_twice, check_group),
    ("not-buried", not_buried, check_group),
    ("delivered-after-burial", delivered_after_burial, check_group),
    ("books-unbalanced", unbalanced, check_group),
    ("books-unbalanced", counted_otherwise, check_group),
    ("token-reused", token_reused, check_group),
    ("token-reused", same_message_twice, check_group),
    ("token-order", tokens_shrink, check_group),
    ("expired-delivery", expired, check_group),
    ("unwanted", not_wanted, check_filtered),
    ("two-leases", two_leases, check_group),
    ("two-leases", extended_in_vain, check_group),
    ("fenced-wrongly", fenced, check_group),
    ("redelivered-early", early, check_group),
    ("redelivered-late", late, check_group),
    ("redelivered-late", never_again, check_group),
    ("key-inversion", inversion, check_by_key),
    ("key-overtake", overtake, check_by_key),
    ("key-overtake", never_settled, check_by_key),
    ("key-overtake", one_key_in_one_lease, check_by_key),
]
