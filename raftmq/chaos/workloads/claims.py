"""Consumers that claim: each takes one of few keys, keeps it, and gives it up, or forgets it.

Most claims run for longer than any clock is wrong, some for a second or two. A claim that was given
up is given up once more later, when another consumer may have it: that must change nothing. A key
that is refused again and again, as a consumer that died has it, is replaced by another one.

How it is written down: `raftmq.chaos.checkers.claims`.

Sources: the deduplication tables of Notify's consumers; Jepsen's lock workloads.
"""

from collections import Counter
from random import Random

import trio

from raftmq.chaos.checkers.claims import CLAIM, GIVE_UP, LONG_MS
from raftmq.chaos.history import Recorder
from raftmq.client import Client, HeldClaim, PopConsumer
from raftmq.errors import OutcomeUnknown, Unavailable

GROUP = "k"
"""The consumer group whose claims they are; it pops nothing."""
KEYS = 3
"""Different keys at a time."""
SHORT_SECONDS = (0.8, 1.6)
"""How long claims run that may end by themselves."""
KEEP_SECONDS = 0.15
"""How long a claim is kept, on average."""
THINK_SECONDS = 0.2
"""Between two claims of a consumer, on average."""
FORGOTTEN_SHARE = 0.1
"""So many claims nobody gives up."""
AGAIN_SHARE = 0.5
"""So many that were given up are given up once more."""
REFUSALS_MAX = 8
"""A key that is refused so often in a row is replaced."""
CALL_SECONDS = 2.0
"""Timeout of a call."""


class Claims:
    """What all claimants of a run share."""

    def __init__(self, recorder: Recorder, *, topic: str, counts: Counter[str]) -> None:
        self._recorder = recorder
        self._topic = topic
        self._counts = counts
        # Which key stands in each place, and how often it was refused since it was granted.
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
            Unavailable, OutcomeUnknown: nobody could be reached.
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
