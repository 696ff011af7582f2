"""The ledger of consumer groups that pop: right histories are valid, wrong brokers are found."""

import random

import pytest

from raftmq.chaos.workloads.popping import is_red
from raftmq.checkers import Verdict, explain
from raftmq.checkers.pop.ledger import check_pop
from raftmq.checkers.pop.messages import Ordering, PopRules

from .pop_writing import GROUP, PopScript, random_pop_run

SEEDS = 40


def rules(order: Ordering, *, is_ahead: bool, is_complete: bool = False) -> PopRules:
    return PopRules(
        attempts_max=3,
        schedule_ms=(30, 80),
        clock_ms_max=0,
        is_ahead=is_ahead,
        is_complete=is_complete,
        order=order,
    )


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("order", ["", "key", "runs", "queue"])
def test_history_of_a_right_broker_is_valid(order: Ordering, is_ahead: bool) -> None:
    again = 0
    for seed in range(SEEDS):
        rng = random.Random(f"right {seed} {order} {is_ahead}")
        history = random_pop_run(rng, order=order, is_ahead=is_ahead)
        report = check_pop(history, rules(order, is_ahead=is_ahead))
        assert report.verdict is Verdict.VALID, f"seed {seed}\n{explain(report, history)}"
        assert report.counts["acked"] > 10
        again += report.counts["again"]
    assert again > SEEDS


def test_calm_history_of_a_right_broker_is_valid_if_all_was_seen() -> None:
    for seed in range(SEEDS):
        history = random_pop_run(random.Random(f"calm {seed}"), is_ahead=False, is_calm=True)
        report = check_pop(history, rules("", is_ahead=False, is_complete=True))
        assert report.verdict is Verdict.VALID, f"seed {seed}\n{explain(report, history)}"


BUGS = {
    "loses a send": {"duplicate", "inconsistent-offset", "pop-lost"},
    "stores twice": {"duplicate"},
    "one token for all": {"token-reused"},
    "tokens by chance": {"token-order", "stale-settled"},
    "forgets attempts": {"attempt-miscounted"},
    "overtakes": {"key-overtake", "key-inversion"},
    "two leases": {"two-leases", "stale-settled"},
    "acked comes again": {"redelivered-after-ack"},
    "settles by offset": {"stale-settled", "foreign-settled", "unfenced"},
    "believes all acks": {"settled-twice", "stale-settled", "unfenced"},
    "refuses by chance": {"fenced-wrongly"},
    "forgets acks": {"redelivered-after-ack"},
    "counts what is given back": {"attempt-miscounted"},
    "buries early": {"buried-early"},
    "never buries": {"attempts-exceeded"},
    "does not wait": {"redelivered-early"},
    "loses retries": {"books-unbalanced", "pop-lost"},
    "revives the dead": {"delivered-after-burial", "not-buried"},
    "miscounts": {"books-unbalanced"},
}


@pytest.mark.parametrize("bug", BUGS)
def test_wrong_broker_is_found_out(bug: str) -> None:
    order: Ordering = "key" if bug == "overtakes" else ""
    is_ahead = bug != "tokens by chance"
    is_calm = bug == "counts what is given back"
    is_ahead = is_ahead and not is_calm
    names: set[str] = set()
    for seed in range(SEEDS):
        rng = random.Random(f"{bug} {seed}")
        history = random_pop_run(rng, order=order, is_ahead=is_ahead, is_calm=is_calm, bug=bug)
        report = check_pop(history, rules(order, is_ahead=is_ahead, is_complete=is_calm))
        names |= report.names()
        if names & BUGS[bug]:
            return
    pytest.fail(f"only {names} in {SEEDS} runs")


def test_dead_letter_of_which_nothing_else_is_known_is_judged_in_a_filtered_group() -> None:
    script = PopScript()
    script.sent(1, 0)
    script.popped(1, 1, 0, token=7)
    script.acked(1, 0, 7)
    script.listed((1, (1, 3, "expired")))
    script.ended(acked=1, dead=1)
    report = check_pop(script.history(), PopRules(is_wanted=is_red), group=GROUP)
    assert report.verdict is Verdict.VALID, explain(report, script.history())


def test_message_whose_last_attempts_were_sent_ahead_and_not_taken_is_not_late() -> None:
    script = PopScript()
    script.sent(1, 0)
    script.sent(2, 1)
    script.popped(1, 2, 1, token=6)
    script.acked(1, 1, 6)
    script.popped(1, 1, 0, token=7, remaining=10)
    script.time.now += 5_000
    script.listed((0, (1, 3, "expired")))
    script.ended(acked=1, dead=1)
    late = PopRules(
        attempts_max=3, schedule_ms=(30, 80), clock_ms_max=0, late_ms_max=500, is_ahead=True
    )
    report = check_pop(script.history(), late, group=GROUP)
    assert report.verdict is Verdict.VALID, explain(report, script.history())
