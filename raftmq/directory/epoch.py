"""The epoch of a directory: which process of each member takes part.

    epoch of node 1   {1: 17, 2: 40, 3: 0}     node 3 was never heard
    node 3 says       {1: 17, 2: 40, 3: 55}    it has started: the epoch is that one from now on

The members of an epoch begin it with a blank log. A member that restarts has lost its votes and its
part of the log, and could make pysyncobj commit two logs. So it takes no part in the old epoch: its
new *boot*, a number, makes a new one.

Invariants:
- An epoch never comes back: the boots of its members only grow.
- Members that hear each other and agree on who is a member end up in one epoch.
"""

from collections.abc import Iterable, Mapping

from raftmq.wire.directory import BOOT_MAX, Boot

Boots = Mapping[int, int]
"""Member → the boot of its process; 0: the member was never heard."""


class Epoch:
    """The epoch as one member knows it."""

    def __init__(self, own: int, boot: int) -> None:
        """
        Args:
            own: the number of this member.
            boot: greater than those of its processes before, as far as clocks go.
        """
        assert boot > 0, "0 stands for a member that was never heard"
        self._own = own
        # Also of members that left: they may come back.
        self._known: dict[int, int] = {own: boot}
        self._members = [own]

    @property
    def boots(self) -> Boots:
        """By member."""
        return {member: self._known.get(member, 0) for member in self._members}

    @property
    def listed(self) -> list[Boot]:
        """Members and their boots, by member."""
        return [Boot(*each) for each in self.boots.items()]

    def follow(self, members: Iterable[int]) -> bool:
        """Have these members; True if that makes a new epoch."""
        wanted = sorted({*members, self._own})
        if wanted == self._members:
            return False
        self._members = wanted
        # Members that go and come back would else make an epoch that was.
        self.renew()
        return True

    def learn(self, heard: Boots) -> bool:
        """Take in what another member knows; True if that makes a new epoch."""
        before = self.boots
        for member, boot in heard.items():
            if member in before and before[member] < boot < BOOT_MAX:
                # Of this member itself: the clock was ahead at an earlier start.
                self._known[member] = boot + (member == self._own)
        return self.boots != before

    def renew(self) -> None:
        """Begin a new epoch: this member cannot go on in the old one."""
        self._known[self._own] += 1
