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

from raftmq.wire.directory import Boot

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
        self.boots: dict[int, int] = {own: boot}
        """By member."""

    @property
    def listed(self) -> list[Boot]:
        """Members and their boots, by member."""
        return [Boot(*each) for each in self.boots.items()]

    def follow(self, members: Iterable[int]) -> bool:
        """Have these members; True if that makes a new epoch."""
        before, wanted = self.boots, sorted({*members, self._own})
        self.boots = {member: before.get(member, 0) for member in wanted}
        return self.boots != before

    def learn(self, heard: Boots) -> bool:
        """Take in what another member knows; True if that makes a new epoch."""
        before = dict(self.boots)
        for member, boot in heard.items():
            if member == self._own and boot > self.boots[member]:
                # The clock was ahead at an earlier start of this member.
                self.boots[member] = boot + 1
            elif boot > self.boots.get(member, boot):
                self.boots[member] = boot
        return self.boots != before

    def renew(self) -> None:
        """Begin a new epoch: this member cannot go on in the old one."""
        self.boots = self.boots | {self._own: self.boots[self._own] + 1}
