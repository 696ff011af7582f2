"""Mutants of bugs that close readings of this project found.

Each puts back what the code did before its fix. They are hunted with whole brokers in the simulated
world, whose modules are loaded when a mutant is planted: hunts on cores need no event loop.

Sources: the track record of this project.
"""

from contextlib import asynccontextmanager, suppress
from importlib import import_module
from inspect import isawaitable
from typing import Any

from raftmq.chaos.mutant import Mutant, Patch
from raftmq.errors import Reason
from raftmq.filters import FilterSyntaxError


def proposes_a_tick_once(patch: Patch) -> None:
    """290"""
    popping = import_module("raftmq.broker.deliver.popping").Popping
    patch.set(popping, "_tick_refused", lambda self, group, error: None)


def commits_what_did_not_begin(patch: Patch) -> None:
    """293"""
    transaction = import_module("raftmq.client.produce.transactions").Transaction
    send = transaction._send

    async def unmarked(self: Any, *to: Any) -> None:
        try:
            await send(self, *to)
        except BaseException:
            if not self._is_begun:
                self._is_storing = self._is_short = False
            raise

    patch.set(transaction, "_send", unmarked)


def begins_when_first_asked(patch: Patch) -> None:
    """294"""

    async def not_yet(*_: Any) -> None:
        pass

    patch.set(import_module("raftmq.client.pop.consumer"), "begin", not_yet)


def claims_before_a_deletion(patch: Patch) -> None:
    """305"""
    patch.set(import_module("raftmq.broker.serve.requests"), "forget_first", lambda *_: None)


def checks_back_one_group_after_the_other(patch: Patch) -> None:
    """330"""
    module = import_module("raftmq.client.produce.transactions")

    async def in_turn(router: Any, group: str, check: Any, *, after: float, every: float) -> Any:
        async def run() -> None:
            while True:
                await module.anyio.sleep(every)
                try:
                    age_ms = round(after * 1000)
                    found = await module.open_transactions(router, group, age_ms_min=age_ms)
                    for transaction in found:
                        outcome = check(transaction)
                        outcome = await outcome if isawaitable(outcome) else outcome
                        if outcome is not None:
                            with suppress(module.RaftmqError):
                                end = module.end_transaction
                                await end(router, transaction.id, is_commit=outcome, timeout=None)
                except module.RaftmqError:
                    continue

        async with module.anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    patch.set(import_module("raftmq.client.client"), "check_back", asynccontextmanager(in_turn))


def takes_leases_of_a_moment(patch: Patch) -> None:
    """331"""
    prefetcher = import_module("raftmq.client.pop.prefetcher")
    popping = import_module("raftmq.broker.deliver.popping")
    patch.set(prefetcher, "INVISIBLE_MS_MIN", 1)
    patch.set(popping, "INVISIBLE_MS_MIN", 1)


def filters_what_was_read_for_all(patch: Patch) -> None:
    """332"""
    module = import_module("raftmq.broker.deliver.feeds")
    propose = module.Feeds._propose

    def by_now(self: Any, group: Any, key: Any, look: Any, records: Any) -> None:
        is_filtered = module._subscription(group, key) > 0
        assert look.subscription or not is_filtered, "the filter of each batch is known"
        propose(self, group, key, look, records)

    patch.set(module.Feeds, "_propose", by_now)


def takes_a_refused_read_for_no_rot(patch: Patch) -> None:
    """333"""
    patch.set(import_module("raftmq.log.reading"), "_lost", lambda error, path, position: error)


def believes_each_refusal(patch: Patch) -> None:
    """334"""
    patch.set(import_module("raftmq.client.routing.router"), "SURE", frozenset(Reason))


def ends_its_round_at_a_refused_end(patch: Patch) -> None:
    """351"""
    module = import_module("raftmq.client.produce.transactions")

    async def check_group(
        router: Any, number: int, group: str, check: Any, after: float, lock: Any
    ) -> None:
        try:
            found = await module._open_in(router, number, group, round(after * 1000), None)
            for transaction in sorted(found, key=lambda each: each.opened_ms):
                async with lock:
                    outcome = check(transaction)
                    outcome = await outcome if isawaitable(outcome) else outcome
                if outcome is not None:
                    end = module.end_transaction
                    await end(router, transaction.id, is_commit=outcome, timeout=None)
        except module.RaftmqError:
            return

    patch.set(module, "_check_group", check_group)


def reads_filters_by_its_own_grammar(patch: Patch) -> None:
    """352"""
    module = import_module("raftmq.machine.catalog.subscribers")
    process = import_module("raftmq.chaos.world.process").Process
    compile_filter = module.compile_filter

    def compile_old(text: str) -> Any:
        current = process.current()
        if current is not None and current.machine.name == OLDER and ">" in text:
            message = "a list of tags has no comparisons"
            raise FilterSyntaxError(message, text=text, position=text.index(">"))
        return compile_filter(text)

    patch.set(module, "compile_filter", compile_old)


OLDER = "node2"
"""The machine whose software is older, in mutant 352."""

MUTANTS = (
    Mutant(
        number=290,
        name="tick-once",
        what="A Tick that was refused is not proposed again.",
        killers=("V8",),
        plant=proposes_a_tick_once,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=293,
        name="begun-in-vain",
        what="A hand-off whose first send failed is committed, without its output.",
        killers=("made-lost", "input-lost"),
        plant=commits_what_did_not_begin,
        workload="flows",
        seconds=6.0,
        kinds=("isolate-leader", "pause-leader", "kill-majority"),
        why_hinted="it takes a leader that does not answer the first send of a transaction",
    ),
    Mutant(
        number=294,
        name="latest-later",
        what="A group that starts at the end begins where the end is when its first pop arrives.",
        killers=("V3", "V5"),
        plant=begins_when_first_asked,
        workload="admin",
        seconds=10.0,
    ),
    Mutant(
        number=305,
        name="claim-before-deletion",
        what="A queue is claimed for a group before the deletion of its namesake is carried out.",
        killers=("V3",),
        plant=claims_before_a_deletion,
        workload="admin",
        seconds=10.0,
        kinds=("half-open", "chain", "isolate-node"),
        why_hinted="it takes a data group whose leader hears late of a deletion",
    ),
    Mutant(
        number=330,
        name="check-back-in-turn",
        what="A check-back asks one partition group after the other, and ends its round where one "
        "has no leader (raftmq before `8c9c832`).",
        killers=("V9",),
        plant=checks_back_one_group_after_the_other,
        workload="pop",
        nodes=5,
        kinds=("quorum-loss", "chain", "constrained-election"),
        why_hinted="it takes a group that has no leader for ten seconds while others have one, "
        "which one seed in twenty draws",
    ),
    Mutant(
        number=331,
        name="lease-of-a-moment",
        what="A consumer may ask for leases that are over before a message can arrive.",
        killers=("client-bug",),
        plant=takes_leases_of_a_moment,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=332,
        name="filter-meets-a-look",
        what="A feed that was read for a group without a filter is proposed by the filter that "
        "the group got meanwhile.",
        killers=("bug",),
        plant=filters_what_was_read_for_all,
        workload="admin",
        nodes=1,
        kinds=("slow-disk",),
        why_hinted="it takes a filter that comes while a leader reads keys from disk, and one seed "
        "in twenty draws a disk that is slow for long; with one node, that disk is the leader's",
    ),
    Mutant(
        number=333,
        name="refused-read-is-no-rot",
        what="A sector that answers with an error is not mended when a reader meets it.",
        killers=("V3", "L2", "V6", "V7"),
        plant=takes_a_refused_read_for_no_rot,
        workload="log",
        seconds=30.0,
        kinds=("unreadable-sector",),
        why_hinted="one seed in thirty-five draws sectors that cannot be read",
    ),
    Mutant(
        number=334,
        name="refusal-of-a-repeat",
        what="A refused repeat counts as not done, though the first request had no answer.",
        killers=("claim-disowned", "aborted-read", "made-undone"),
        plant=believes_each_refusal,
        workload="flows",
        seconds=6.0,
    ),
    Mutant(
        number=351,
        name="round-ends-at-refusal",
        what="An end that is refused ends the round of a check-back: transactions behind it wait "
        "(raftmq before `8c9c832`).",
        killers=("V9",),
        plant=ends_its_round_at_a_refused_end,
        workload="pop",
        seconds=6.0,
    ),
    Mutant(
        number=352,
        name="filter-of-newer-software",
        what="A node of older software refuses a filter that newer nodes read, and goes on: no "
        "version in the log stops that node (raftmq before `35506e5`).",
        killers=("R21", "client-bug"),
        plant=reads_filters_by_its_own_grammar,
        workload="admin",
        seconds=10.0,
    ),
)
