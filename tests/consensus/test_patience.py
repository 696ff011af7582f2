"""Elections beside slow disks: a leader is found, and stays, however long a vote takes."""

from collections.abc import Callable
from random import Random

import pytest

from raftmq.consensus import APPEND_THREAD, APPLY_THREAD, ConfState, Message, Role, patience
from raftmq.consensus.core import Core
from raftmq.log.record import Kind
from tests.consensus.cluster import make_raft, make_storage

ELECTION_TICKS = 10


class Disk:
    """Storage messages become durable in passes, as in the broker: those that come during a pass
    wait for the next one. The writes of other groups make each pass last."""

    def __init__(self, take: Callable[[], int]) -> None:
        self._take = take
        self._waiting: list[Message] = []
        self._pass: list[Message] = []
        self._ends = 0

    def write(self, now: int, message: Message) -> None:
        """Put a message into the next pass, which begins when none is under way."""
        self._waiting.append(message)
        self._begin(now)

    def done(self, now: int) -> list[Message]:
        """The messages that have become durable."""
        if not self._pass or self._ends > now:
            return []
        done, self._pass = self._pass, []
        self._begin(now)
        return done

    def _begin(self, now: int) -> None:
        if self._waiting and not self._pass:
            self._pass, self._waiting = self._waiting, []
            self._ends = now + self._take()


class SlowCluster:
    """Members that write to slow disks. Messages take no time, and some links may be dead."""

    def __init__(
        self, seed: int, voters: int, write_ticks: tuple[int, int], *, pre_vote: bool = True
    ) -> None:
        random = Random(seed)
        self.write_ticks = write_ticks
        self.now = 0
        self.dead: set[tuple[int, int]] = set()
        numbers = range(1, voters + 1)
        self.storages = {each: make_storage(ConfState(tuple(numbers))) for each in numbers}
        self.rafts = {
            number: make_raft(
                self.storages[number],
                number,
                pre_vote=pre_vote,
                check_quorum=True,
                async_storage_writes=True,
                election_ticks=ELECTION_TICKS,
                draw=random.randrange,
            )
            for number in numbers
        }
        self.disks = {each: Disk(lambda: random.randint(*self.write_ticks)) for each in numbers}

    @property
    def leader(self) -> int:
        """The member that all follow; 0: none."""
        led = {raft.leader for raft in self.rafts.values()}
        return led.pop() if len(led) == 1 else 0

    def terms(self) -> int:
        """The highest term."""
        return max(raft.term for raft in self.rafts.values())

    def tick(self) -> None:
        """Let one tick pass, and all that follows from it."""
        self.now += 1
        for number, raft in self.rafts.items():
            raft.tick()
            for message in self.disks[number].done(self.now):
                self._store(number, message)
        while any(self._work(number) for number in self.rafts):
            pass

    def ticks_until_led(self, ticks_max: int) -> int:
        """The ticks until all follow one leader, `ticks_max` at most."""
        began = self.now
        while not self.leader and self.now < began + ticks_max:
            self.tick()
        return self.now - began

    def _store(self, number: int, message: Message) -> None:
        storage = self.storages[number]
        storage.append(message.entries)
        if message.term:
            storage.hard_state = (message.term, message.vote, message.commit)  # type: ignore[assignment]
        for response in message.responses:
            self._deliver(response)

    def _work(self, number: int) -> bool:
        raft = self.rafts[number]
        if not raft.has_ready():
            return False
        for message in raft.ready().messages:
            if message.to == APPEND_THREAD:
                self.disks[number].write(self.now, message)
                for stored in self.disks[number].done(self.now):
                    self._store(number, stored)
            elif message.to == APPLY_THREAD:
                for response in message.responses:
                    raft.step(response)
            else:
                self._deliver(message)
        return True

    def _deliver(self, message: Message) -> None:
        if (message.sender, message.to) not in self.dead:
            self.rafts[message.to].step(message)


SLOW = [(3, 8), (5, 15), (12, 18), (30, 60)]
"""From and to: ticks of a write, where election timeouts are 10 to 19 ticks on a quick disk."""


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("write_ticks", SLOW)
def test_leader_is_found_and_stays(voters: int, write_ticks: tuple[int, int]) -> None:
    longest = 0
    for seed in range(40):
        cluster = SlowCluster(seed, voters, write_ticks)
        longest = max(longest, cluster.ticks_until_led(2000))
        assert cluster.leader, f"seed {seed}: no leader in term {cluster.terms()}"
        leader, term = cluster.leader, cluster.terms()
        for _ in range(20 * ELECTION_TICKS):
            cluster.tick()
        assert (cluster.leader, cluster.terms()) == (leader, term)
    assert longest <= 12 * (ELECTION_TICKS + write_ticks[1])


def test_quick_disks_elect_as_if_there_were_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(seed: int) -> tuple[int, int, int]:
        cluster = SlowCluster(seed, 5, (0, 0))
        return cluster.ticks_until_led(2000), cluster.leader, cluster.terms()

    patient = [found(seed) for seed in range(40)]
    monkeypatch.setattr(patience, "has_to_wait", lambda core: False)
    assert [found(seed) for seed in range(40)] == patient


def test_without_patience_slow_disks_find_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "has_to_wait", lambda core: False)
    led = [SlowCluster(seed, 3, (12, 18)).ticks_until_led(2000) < 2000 for seed in range(40)]
    assert led.count(False) > 20


def test_timeout_is_short_again_under_a_leader() -> None:
    cluster = SlowCluster(1, 3, (30, 60))
    cluster.ticks_until_led(2000)
    cluster.tick()
    for raft in cluster.rafts.values():
        core: Core = raft._core
        assert core.role is Role.LEADER or core.election_timeout < 2 * ELECTION_TICKS


@pytest.mark.parametrize("voters", [3, 5])
def test_shell_that_campaigns_again_and_again_keeps_no_leader_away(voters: int) -> None:
    """As the broker does where a dead leader's port refuses each attempt to connect."""
    for seed in range(20):
        cluster = SlowCluster(seed, voters, (5, 15))
        random = Random(seed)
        while not cluster.leader and cluster.now < 600:
            cluster.tick()
            for raft in cluster.rafts.values():
                if not raft.leader and random.random() < 0.3:
                    raft.campaign()
        assert cluster.leader, f"seed {seed}: no leader in term {cluster.terms()}"


@pytest.mark.parametrize("pre_vote", [False, True])
def test_leader_that_steps_down_on_a_quick_disk_is_replaced_quickly(pre_vote: bool) -> None:
    for seed in range(20):
        cluster = SlowCluster(seed, 3, (30, 60), pre_vote=pre_vote)
        cluster.ticks_until_led(5000)
        cluster.write_ticks = (0, 0)
        for _ in range(100):
            cluster.tick()
        leader = cluster.leader
        others = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if leader not in (a, b)}
        cluster.dead = {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}
        # It alone can be elected, as it alone holds this record, and the others are cut apart.
        cluster.rafts[leader].propose([(Kind.BATCH, b"x", 1)], now=0)
        for _ in range(40):
            cluster.tick()
        assert not cluster.leader
        cluster.dead = others
        assert cluster.ticks_until_led(400) < 150, f"seed {seed}"


@pytest.mark.parametrize("pre_vote", [False, True])
def test_quick_vote_makes_timeouts_short_again(pre_vote: bool) -> None:
    cluster = SlowCluster(1, 3, (40, 40), pre_vote=pre_vote)
    while max(raft._core.election_timeout for raft in cluster.rafts.values()) < 90:
        cluster.tick()
        assert cluster.now < 1000
    cluster.write_ticks = (0, 0)
    assert cluster.ticks_until_led(1000) < 400
    cluster.tick()
    assert max(raft._core.election_timeout for raft in cluster.rafts.values()) < 20


@pytest.mark.parametrize("seed", range(20))
def test_candidate_that_hears_no_answers_keeps_no_leader_away(seed: int) -> None:
    cluster = SlowCluster(seed, 3, (5, 15))
    cluster.dead = {(2, 1), (3, 1)}
    cluster.rafts[1].campaign()
    for _ in range(400):
        cluster.tick()
        if cluster.rafts[2].leader == cluster.rafts[3].leader != 0:
            return
    pytest.fail("members 2 and 3 hear each other and have no leader")
