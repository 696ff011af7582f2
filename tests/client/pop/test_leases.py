"""Leases as bits against an obviously right model: a state for each offset."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.pop.lease_bits import lowest
from raftmq.client.pop.leases import HeldLease, Item
from raftmq.client.pop.tally import Waiter
from raftmq.pop.actions import Action
from raftmq.pop.spans import offsets_of, runs_of

FIRST, LAST = 100, 116
OFFSETS = st.sets(st.integers(FIRST, LAST - 1), max_size=8)
WORDS = ["listed", "unlist", "take", "settle", "done", "undo", "lose", "hand off"]
LOST = ("lost", "unlisted", "unseen")
STEPS = st.lists(st.tuples(st.sampled_from(WORDS), OFFSETS))


def bits_of(lease: HeldLease, offsets: set[int]) -> int:
    return sum(1 << (offset - lease.base) for offset in offsets if offset >= lease.base)


def state_of(lease: HeldLease, offset: int) -> str:
    if offset < lease.base:
        return "unseen"
    bit = 1 << (offset - lease.base)
    if lease.buffered & bit:
        return "buffered"
    if lease.held & bit:
        return "in hand"
    if lease.busy & bit:
        return "busy"
    if lease.done.get(Action.ACK, 0) & bit:
        return "done"
    if lease.unlisted & bit:
        return "unlisted"
    return "lost" if lease.seen & bit else "unseen"


class Model:
    """The lease beside its expected states."""

    def __init__(self) -> None:
        self.lease = HeldLease(group=1, token=7, queue_number=3, attempt=1, base=FIRST + 8)
        self.states = dict.fromkeys(range(FIRST, LAST), "unseen")
        # A settlement under way, whose bits must follow the lease's base.
        self.item = Item(self.lease, Action.ACK, -1, "")
        self.lease.items.append(self.item)

    def step(self, what: str, offsets: set[int]) -> None:
        lease, states = self.lease, self.states
        if what == "listed" and offsets:
            base = min(offsets)
            bits = sum(1 << (offset - base) for offset in offsets)
            bits = lease.place(base, bits)
            lease.relist(bits)
            lease.mark_buffered(bits)
            states |= {n: "in hand" for n in offsets if states[n] == "unlisted"}
            states |= {n: "buffered" for n in offsets if states[n] == "unseen"}
            return
        if what == "unlist":
            lease.unlist(bits_of(lease, offsets))
            after = {"buffered": "unseen", "in hand": "unlisted"}
            states |= {n: after.get(s, s) for n, s in states.items() if n not in offsets}
            return
        before, then = {
            "listed": ([], ""),
            "take": (["buffered"], "in hand"),
            "settle": (["buffered", "in hand"], "busy"),
            "done": (["busy"], "done"),
            "undo": (["busy"], "in hand"),
            "lose": (["buffered", "in hand"], "lost"),
            # A list of our messages may come between the commit and its answer.
            "hand off": (["in hand", "lost", "unlisted"], "done"),
        }[what]
        chosen = {n for n in offsets if states[n] in before}
        bits = bits_of(lease, chosen)
        match what:
            case "take":
                lease.buffered ^= bits
            case "settle":
                lease.start(bits)
                self.item.bits |= bits
            case "done":
                lease.finish(Action.ACK, bits, 0)
                self.item.bits &= ~bits
            case "undo":
                lease.undo(bits)
                self.item.bits &= ~bits
            case "lose":
                lease.lose(bits)
            case "hand off":
                # Messages that are being settled stay so: the answer to their settlement decides.
                busy = {n for n in offsets if states[n] == "busy"}
                lease.set_done(Action.ACK, bits | bits_of(lease, busy))
        states |= dict.fromkeys(chosen, then)

    def check(self) -> None:
        lease = self.lease
        assert {n: state_of(lease, n) for n in self.states} == self.states
        busy = {n for n, state in self.states.items() if state == "busy"}
        assert set(offsets_of(lease.base, self.item.bits)) == busy
        is_over = not {"buffered", "in hand", "busy"} & set(self.states.values())
        assert lease.is_over == is_over
        everything = lease.mask(lease.base, LAST)
        lost = {n for n in range(lease.base, LAST) if self.states[n] in LOST}
        assert set(offsets_of(lease.base, lease.lost(everything))) == lost


@given(STEPS)
def test_each_message_is_in_one_state_whatever_happens(steps: list[tuple[str, set[int]]]) -> None:
    model = Model()
    for what, offsets in steps:
        model.step(what, offsets)
        model.check()


@given(st.integers(0, 1 << 70))
def test_runs_and_offsets_are_the_set_bits(bits: int) -> None:
    expected = [n for n in range(bits.bit_length()) if bits >> n & 1]
    assert [n for start, stop in runs_of(bits) for n in range(start, stop)] == expected
    assert list(offsets_of(5, bits)) == [n + 5 for n in expected]
    for count in (0, 1, 3, 100):
        assert list(offsets_of(0, lowest(bits, count))) == expected[:count]


def test_what_a_call_takes_back_is_what_only_it_wanted() -> None:
    lease = HeldLease(group=1, token=7, queue_number=3, attempt=1, base=0)
    lease.mark_buffered(0b1111)
    lease.start(0b1111)
    item = Item(lease, Action.ACK, -1, "")
    item.bits, item.quiet = 0b1111, 0b1000
    one, two = Waiter(), Waiter()
    item.join(one, 0b0011)
    item.join(two, 0b0110)
    assert item.leave(one, take_back=True), "another call wants a part of it"
    assert (item.bits, lease.held, one.open) == (0b1110, 0b0001, 0)
    assert not item.leave(two, take_back=True)
    assert (item.bits, lease.busy) == (0b1000, 0b1000)


def test_lease_without_order_needs_no_numpy() -> None:
    program = (
        "import sys\n"
        "from raftmq.client.pop.leases import HeldLease\n"
        "lease = HeldLease(group=1, token=1, queue_number=1, attempt=1, base=5)\n"
        "lease.mark_buffered(0b111)\n"
        "print(lease.withheld, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 False\n"
