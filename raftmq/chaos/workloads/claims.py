"""Claimants: each claims one of few keys, keeps it for a moment, and gives it up or forgets it.

Most claims run for longer than any clock is wrong, some for about a second. A claimant may give up
a claim a second time, when another claimant may have the key: the second time must change nothing.
A key whose claimant died is refused for as long as the claim runs; after `REFUSALS_MAX` refusals in
a row a new key takes its place.

The form of the history: `raftmq.checkers.objects.claims`.

Sources: the deduplication tables of Notify's consumers; Jepsen's lock workloads.
"""

from collections import Counter
from random import Random

import trio

from raftmq.checkers.history import Recorder
from raftmq.checkers.objects.claims import CLAIM, GIVE_UP, LONG_MS
from raftmq.client import Client, HeldClaim, PopConsumer
from raftmq.errors import OutcomeUnknown, Unavailable

GROUP = "k"
"""The consumer group of all claims; its consumers pop nothing."""
KEYS = 3
"""Keys that can be claimed at one time."""
SHORT_SECONDS = (0.8, 1.6)
"""Duration of a short claim, which may run out before it is given up."""
KEEP_SECONDS = 0.15
"""Mean time between the grant of a claim and giving it up."""
THINK_SECONDS = 0.2
"""Mean pause between two claims of a claimant."""
FORGOTTEN_SHARE = 0.1
"""Share of claims that their claimant never gives up."""
AGAIN_SHARE = 0.5
"""Share of given-up claims that are given up a second time."""
REFUSALS_MAX = 8
"""A key is replaced after this many refusals in a row."""
CALL_SECONDS = 2.0
"""Timeout of a call."""


class Claims:
    """State that all claimants of a run share."""

    def __init__(self, recorder: Recorder, *, topic: str, counts: Counter[str]) -> None:
        self._recorder = recorder
        self._topic = topic
        self._counts = counts
        # For each place: the number of its present key, and refusals since the last grant.
        self._versions = [0] * KEYS
        self._refusals = [0] * KEYS
        self.is_draining = False
        """True: claimants end."""

    async def contend(self, mq: Client, process: int, random: Random) -> None:
        """Be one claimant.

        Args:
            mq: its connection.
            process: its number in the history, never used before.
            random: for all that it chooses.

        Raises:
            Unavailable, OutcomeUnknown: no node could be reached.
        """
        given_up: list[tuple[HeldClaim, str, int]] = []
        async with mq.consumer(self._topic, group=GROUP, mode="pop", prefetch=0) as consumer:
            while not self.is_draining:
                await self._claim(consumer, process, random, given_up)
                await trio.sleep(random.expovariate(1 / THINK_SECONDS))
                if given_up and random.random() < AGAIN_SHARE:
                    await self._give_up(*given_up.pop(0), process)

    async def _claim(
        self,
        consumer: PopConsumer,
        process: int,
        random: Random,
        given_up: list[tuple[HeldClaim, str, int]],
    ) -> None:
        place, number = random.randrange(KEYS), self._recorder.unique_value()
        key = f"job-{place}-{self._versions[place]}"
        ttl = random.choice(SHORT_SECONDS) if random.random() < 0.2 else 1.4 * LONG_MS / 1000
        operation = self._recorder.invoke(process, CLAIM, key, (number, round(1000 * ttl)))
        try:
            held = await consumer.claim(key, ttl=ttl, timeout=CALL_SECONDS)
        except Unavailable:
            self._recorder.fail(operation)
            return
        except OutcomeUnknown:
            self._recorder.unknown(operation)
            return
        self._recorder.ok(operation, value=(number, int(held is not None)))
        self._note(place, is_granted=held is not None)
        if held is None:
            return
        await trio.sleep(random.expovariate(1 / KEEP_SECONDS))
        if random.random() >= FORGOTTEN_SHARE:
            await self._give_up(held, key, number, process)
            if random.random() < AGAIN_SHARE:
                given_up.append((held, key, number))

    def _note(self, place: int, *, is_granted: bool) -> None:
        self._counts["claims granted" if is_granted else "claims refused"] += 1
        self._refusals[place] = 0 if is_granted else self._refusals[place] + 1
        if self._refusals[place] >= REFUSALS_MAX:
            self._refusals[place] = 0
            self._versions[place] += 1

    async def _give_up(self, held: HeldClaim, key: str, number: int, process: int) -> None:
        operation = self._recorder.invoke(process, GIVE_UP, key, number)
        try:
            is_ours = await held.release(timeout=CALL_SECONDS)
        except (Unavailable, OutcomeUnknown):
            self._recorder.unknown(operation)
            return
        self._counts["claims given up"] += is_ours
        self._recorder.ok(operation, value=(number, int(is_ours)))
