"""Members of pull groups: even, sticky, one owner a queue and epoch, moved one by one."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftmq.errors import Reason
from raftmq.machine.catalog.membership import (
    MEMBERS_MAX,
    JoinGroup,
    LeaveGroup,
    Memberships,
    ReleaseQueues,
    RenewMembers,
    deal,
)
from raftmq.pop.policy import Mode
from raftmq.results import Changed, Refused, Result

TOPIC = 3


class Table:
    """Memberships with a log index and a clock."""

    def __init__(self, queues: int = 12) -> None:
        self.memberships = Memberships()
        self.index = 0
        self.now = 1_000_000
        self.queues = queues

    def join(self, member: int, *, group: str = "g", **options: Any) -> Result:
        self.index += 1
        command = JoinGroup("orders", group, member, options.pop("session_ms", 10_000), **options)
        return self.memberships.join(TOPIC, self.queues, command, index=self.index, now=self.now)

    def apply(self, command: LeaveGroup | ReleaseQueues | RenewMembers) -> Result:
        self.index += 1
        return self.memberships.apply(command, index=self.index, now=self.now)

    def queues_of(self, member: int) -> list[int]:
        holding = self.memberships.holding(member)
        assert holding is not None
        return holding.queues

    def giving_up(self, member: int) -> list[int]:
        holding = self.memberships.holding(member)
        assert holding is not None
        return holding.giving_up

    def release(self, member: int, *queues: int) -> Result:
        holding = self.memberships.holding(member)
        assert holding is not None
        epochs = dict(zip(holding.queues, holding.epochs, strict=True))
        return self.apply(ReleaseQueues(member, list(queues), [epochs[q] for q in queues]))

    def settle(self) -> None:
        """Each member gives up its surplus queues."""
        for member in list(self.memberships.of_member):
            self.release(member, *self.giving_up(member))


def test_first_member_owns_all_queues() -> None:
    table = Table(4)
    assert table.join(7) == Changed([1, [0, 1, 2, 3], [1, 1, 1, 1], []])


def test_queue_moves_only_when_its_owner_gave_it_up() -> None:
    table = Table(4)
    table.join(7)
    assert table.join(8) == Changed([2, [], [], []])
    assert table.queues_of(7) == [0, 1, 2, 3]
    assert table.giving_up(7) == [2, 3]
    assert table.release(7, 3) == Changed(1)
    assert (table.queues_of(7), table.queues_of(8)) == ([0, 1, 2], [3])
    assert table.memberships.holding(8) == (3, [3], [3], [])


def test_release_that_is_repeated_or_late_changes_nothing() -> None:
    table = Table(2)
    table.join(7)
    table.join(8)
    assert table.apply(ReleaseQueues(7, [1], [1])) == Changed(1)
    assert table.apply(ReleaseQueues(7, [1], [1])) == Changed(0)
    assert table.apply(ReleaseQueues(8, [1], [1])) == Changed(0)
    assert table.apply(ReleaseQueues(9, [1], [1])) == Changed(0)
    assert table.apply(ReleaseQueues(8, [5, -1], [1, 1])) == Changed(0)
    assert table.queues_of(8) == [1]
    refused = table.apply(ReleaseQueues(8, [1], []))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.BAD_ARGUMENT


def test_queue_that_was_given_up_unasked_comes_back_under_a_new_epoch() -> None:
    table = Table(2)
    table.join(7)
    table.release(7, 0)
    assert table.memberships.holding(7) == (2, [0, 1], [2, 1], [])


def test_member_that_leaves_frees_its_queues_at_once_and_no_others_move() -> None:
    table = Table(12)
    for member in (7, 8, 9):
        table.join(member)
    table.settle()
    before = {member: table.queues_of(member) for member in (7, 9)}
    table.apply(LeaveGroup(8))
    for member, queues in before.items():
        assert set(queues) < set(table.queues_of(member))
        assert len(table.queues_of(member)) == 6
        assert table.giving_up(member) == []
    assert table.memberships.holding(8) is None


def test_lease_lapses_only_if_it_ran_out_and_is_named() -> None:
    table = Table(4)
    table.join(7)
    table.join(8, session_ms=5_000)
    table.settle()
    table.now += 4_999
    assert table.apply(RenewMembers([], [8])) == Changed(0)
    table.now += 1
    table.apply(RenewMembers([], []))
    assert table.queues_of(8) == [2, 3]
    assert table.apply(RenewMembers([], [8, 8, 7])) == Changed(1)
    assert table.queues_of(7) == [0, 1, 2, 3]


def test_heartbeat_renews_a_lease_for_a_whole_session() -> None:
    table = Table(4)
    table.join(7)
    table.now += 9_000
    table.apply(RenewMembers([7, 99], []))
    table.now += 9_999
    assert table.apply(RenewMembers([], [7])) == Changed(0)
    table.now += 1
    assert table.apply(RenewMembers([], [7])) == Changed(1)
    assert table.memberships.assignments == {}


def test_member_that_was_heard_does_not_lapse_in_the_same_command() -> None:
    table = Table(4)
    table.join(7)
    table.now += 20_000
    assert table.apply(RenewMembers([7], [7])) == Changed(0)


def test_epochs_grow_over_a_group_that_was_forgotten() -> None:
    table = Table(2)
    table.join(7)
    table.apply(LeaveGroup(7))
    assert table.join(7) == Changed([3, [0, 1], [3, 3], []])


def test_joining_twice_changes_nothing() -> None:
    table = Table(4)
    first = table.join(7)
    table.join(8)
    assert table.join(7) == Changed([2, [0, 1, 2, 3], [1, 1, 1, 1], [2, 3]])
    assert first != table.join(7)
    elsewhere = table.join(7, group="h")
    assert isinstance(elsewhere, Refused)
    assert elsewhere.reason is Reason.BAD_ARGUMENT


def test_next_process_of_an_instance_takes_its_queues_at_once_under_new_epochs() -> None:
    table = Table(4)
    table.join(7, instance="a")
    table.join(8, instance="b")
    table.settle()
    assert table.join(9, instance="a") == Changed([5, [0, 1], [5, 5], []])
    assert table.memberships.member(7) is None
    assert table.giving_up(8) == []


def test_process_that_was_replaced_does_not_come_back_by_itself() -> None:
    table = Table(4)
    table.join(7, instance="a")
    table.join(9, instance="a")
    refused = table.join(7, instance="a", is_again=True)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.FENCED
    table.apply(LeaveGroup(9))
    assert isinstance(table.join(7, instance="a", is_again=True), Changed)


def test_join_that_arrives_once_more_drives_out_nobody_who_came_later() -> None:
    table = Table(4)
    table.join(7, instance="a", replaces=0)
    taken = table.join(8, instance="a", replaces=0)
    assert isinstance(taken, Refused)
    assert taken.reason is Reason.FENCED
    assert isinstance(table.join(8, instance="a", replaces=7), Changed)
    table.apply(LeaveGroup(8))
    table.join(9, instance="a", replaces=0)
    for number, replaced in ((7, 0), (8, 0), (8, 7)):
        assert isinstance(table.join(number, instance="a", replaces=replaced), Refused)
    assert table.queues_of(9) == [0, 1, 2, 3]


def test_each_instance_of_a_broadcast_group_is_dealt_all_queues() -> None:
    table = Table(2)
    options = {"mode": Mode.BROADCAST}
    assert table.join(7, instance="a", **options) == Changed([1, [0, 1], [1, 1], []])
    assert table.join(8, instance="b", **options) == Changed([2, [0, 1], [2, 2], []])
    assert table.join(9, instance="a", **options) == Changed([3, [0, 1], [3, 3], []])
    assert [table.memberships.holding(n) is None for n in (7, 8, 9)] == [True, False, False]
    assert [name for name, _ in table.memberships.assignments] == ["g@a", "g@b"]


def test_more_members_than_queues_leave_some_with_nothing() -> None:
    table = Table(2)
    for member in (7, 8, 9):
        table.join(member)
    table.settle()
    assert [table.queues_of(member) for member in (7, 8, 9)] == [[0], [1], []]
    table.apply(LeaveGroup(7))
    assert [table.queues_of(member) for member in (8, 9)] == [[1], [0]]


def test_new_queues_of_a_topic_are_dealt_out() -> None:
    table = Table(2)
    table.join(7)
    table.join(8)
    table.settle()
    table.index += 1
    table.memberships.topic_changed(TOPIC, 6, table.index)
    assert [table.queues_of(member) for member in (7, 8)] == [[0, 2, 3], [1, 4, 5]]


def test_deleted_topic_takes_its_members_with_it() -> None:
    table = Table(2)
    table.join(7)
    table.memberships.drop_topic(TOPIC)
    assert table.memberships.member(7) is None
    assert table.memberships.dump() == []


def test_what_is_out_of_range_is_refused() -> None:
    table = Table(2)
    cases = [
        (table.join(0), Reason.BAD_ARGUMENT),
        (table.join(1 << 63), Reason.BAD_ARGUMENT),
        (table.join(7, session_ms=999), Reason.BAD_ARGUMENT),
        (table.join(7, session_ms=3_600_001), Reason.BAD_ARGUMENT),
        (table.join(7, group=""), Reason.BAD_NAME),
        (table.join(7, group="x" * 128), Reason.BAD_NAME),
        (table.join(7, instance="x" * 128), Reason.BAD_NAME),
        (table.join(7, mode=Mode.POP), Reason.BAD_ARGUMENT),
        (table.join(7, mode=Mode.BROADCAST), Reason.BAD_NAME),
        (table.join(7, mode=Mode.BROADCAST, group="x" * 64, instance="y" * 63), Reason.BAD_NAME),
    ]
    for result, reason in cases:
        assert isinstance(result, Refused)
        assert result.reason is reason
    assert table.memberships.dump() == []


def test_members_of_a_cluster_are_bounded() -> None:
    table = Table(1)
    for member in range(1, MEMBERS_MAX + 1):
        table.join(member, group=f"g{member}")
    refused = table.join(MEMBERS_MAX + 1)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.TOO_LARGE


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8))
def test_dealing_is_even_and_moves_no_more_than_it_must(owners: list[int], members: int) -> None:
    everybody = list(range(1, max(members, *owners, 1) + 1))
    targets = deal(owners, everybody)
    counts = [targets.count(member) for member in everybody]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == len(owners)
    moved = sum(owner not in (0, target) for owner, target in zip(owners, targets, strict=True))
    share, more = divmod(len(owners), len(everybody))
    held = sorted((owners.count(member) for member in everybody), reverse=True)
    assert moved == sum(max(0, n - share - (at < more)) for at, n in enumerate(held))


class MembersComeAndGo(RuleBasedStateMachine):
    """Random joins, leaves, releases and silences, twice: once through snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(7)
        self.numbers = self.others = 0
        self.owner_of: dict[tuple[int, int], int] = {}
        self.last: dict[int, tuple[int, int]] = {}
        self.gone: set[int] = set()

    @property
    def members(self) -> list[int]:
        return [number for number in self.table.memberships.of_member if number < 10_000]

    def epochs_of(self, member: int) -> list[tuple[int, int]]:
        holding = self.table.memberships.holding(member)
        assert holding is not None
        return list(zip(holding.queues, holding.epochs, strict=True))

    @rule(instance=st.sampled_from(["", "", "a", "b"]), session_ms=st.sampled_from([2_000, 9_000]))
    def join(self, instance: str, session_ms: int) -> None:
        self.numbers += 1
        before = self.members
        self.table.join(self.numbers, instance=instance, session_ms=session_ms)
        self.gone |= set(before) - set(self.members)

    @rule(instance=st.sampled_from(["", "a"]), mode=st.sampled_from([Mode.PULL, Mode.BROADCAST]))
    def join_others(self, instance: str, mode: Mode) -> None:
        self.others += 1
        self.table.join(10_000 + self.others, group="other", instance=instance, mode=mode)

    @rule(name=st.sampled_from(["other", "other@a"]))
    def delete_others(self, name: str) -> None:
        self.table.index += 1
        self.table.memberships.expel(name, self.table.index)
        assert self.table.memberships.count(name) == 0

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.table.apply(LeaveGroup(member))
        self.gone.add(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        queues = data.draw(st.sets(st.sampled_from(range(7))))
        held = [q for q in self.table.queues_of(member) if q in queues]
        self.table.release(member, *held)

    @rule(data=st.data(), ms=st.integers(0, 6_000))
    def pass_time(self, data: st.DataObject, ms: int) -> None:
        self.table.now += ms
        heard = [m for m in self.members if data.draw(st.booleans())]
        silent = [m for m in self.members if m not in heard]
        before = {m: self.table.memberships.member(m) for m in silent}
        self.table.apply(RenewMembers(heard, silent))
        for number, member in before.items():
            assert member is not None
            assert (number in self.members) == (member.deadline > self.table.now)
        self.gone |= set(silent) - set(self.members)

    @rule()
    def restart(self) -> None:
        state = msgspec.json.decode(msgspec.json.encode(self.table.memberships.dump()))
        again = Memberships()
        again.load(state)
        assert again.dump() == self.table.memberships.dump()
        self.table.memberships = again

    @invariant()
    def each_queue_has_one_owner_and_its_epoch_no_other(self) -> None:
        owned = [
            (queue, member, epoch)
            for member in self.members
            for queue, epoch in self.epochs_of(member)
        ]
        assert sorted(queue for queue, _, _ in owned) == (list(range(7)) if self.members else [])
        for queue, member, epoch in owned:
            assignment = self.table.memberships.of_member[member]
            assert (member, epoch) == (assignment.owners[queue], assignment.epochs[queue])
        for queue, member, epoch in owned:
            assert self.owner_of.setdefault((queue, epoch), member) == member
            epoch_before, member_before = self.last.get(queue, (0, 0))
            assert epoch >= epoch_before
            if member != member_before:
                assert epoch > epoch_before
            self.last[queue] = (epoch, member)

    @invariant()
    def members_are_counted_by_their_group_and_by_their_instance(self) -> None:
        memberships = self.table.memberships
        for name in ("g", "other", "other@a"):
            by_looking = [
                member
                for (group, _), assignment in memberships.assignments.items()
                for member in assignment.members
                if group == name or (name == "other" and group == "other@a")
            ]
            assert memberships.count(name) == len(by_looking)

    @invariant()
    def shares_are_even_once_all_is_given_up(self) -> None:
        if not self.members:
            return
        assignment = self.table.memberships.assignments["g", TOPIC]
        counts = [assignment.targets.count(member) for member in self.members]
        assert max(counts) - min(counts) <= 1
        assert set(assignment.targets) <= set(self.members)


MembersComeAndGo.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestMembersComeAndGo = MembersComeAndGo.TestCase
