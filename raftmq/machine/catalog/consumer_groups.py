"""Consumer groups and their attachments to topics: a part of the catalog.

A consumer group has a mode and a policy. To be served messages of a topic it is *attached* to it;
each attachment gets a number that is never used again, and all that the data groups keep of it
(backlogs, leases, dead letters) is kept under that number.

    PutConsumerGroup("billing", "pop", policy)         -> version: the record's index
    Attach("orders", "billing", "pop", False)          -> [number 7, version of the policy]
    Attach("orders", "billing", "pop", True)           -> the same again: the first one holds
    Attach("orders", "audit", "ordered", False)        -> the group is made, with the usual policy
    Attach("orders", "audit", "pop", False)            -> refused: it is an ordered group
    Detach("orders", "billing", 7)                     -> forgotten; the next Attach has number 9

A consumer group of which nothing is kept here may still read by offset and commit what it has read,
and have filters: that needs no entry.

Invariants:
- A group keeps its mode for as long as it exists, and an ordered one its order and its run:
  what is in hand and in what order depends on them.
- Each attachment's group and topic exist; a group that is deleted takes its attachments along.
- `version` grows with every change that a data group must hear of.

Left out: holding back a reader by offset that uses the name of a group of another mode; clients ask
before they begin.

Sources: RocketMQ's subscription groups, without their many switches.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from raftmq.errors import Reason
from raftmq.machine.names import NAME_CHARACTERS_MAX
from raftmq.pop.policy import (
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    RUN_MAX,
    Mode,
    Order,
    Policy,
)
from raftmq.results import Changed, Refused, Result

from .quotas import OwnedCounts

GROUPS_MAX = 100_000
"""Consumer groups of a cluster: each node keeps them all in memory."""
ATTACHMENTS_MAX = 100_000
"""Attachments of a cluster."""
SCHEDULE_ENTRIES_MAX = 64
"""Entries of a schedule; the last one repeats."""
DELAY_MS_MAX = 7 * 24 * 3600 * 1000
"""The longest that a message may wait for its next attempt."""
ATTEMPTS_MAX = 1_000_000
"""The most attempts that a policy may allow."""


class PutConsumerGroup(msgspec.Struct, frozen=True, array_like=True, tag="put_consumer_group"):
    """Create a consumer group, or give it another policy; its mode never changes, nor does what an
    ordered group keeps in order."""

    name: str
    """The consumer group's name, 1 to 127 characters."""
    mode: Mode
    """How it is served."""
    policy: Policy
    """The fate of messages that fail."""


class DeleteConsumerGroup(
    msgspec.Struct, frozen=True, array_like=True, tag="delete_consumer_group"
):
    """Forget a consumer group: its attachments with all that is in hand or dead, its filters, and
    what is committed under its name.

    Refused while it has members, unless it is forced.
    """

    name: str
    """The consumer group's name."""
    is_whole: bool = False
    """False in records of older software, after which committed offsets stay."""
    is_forced: bool = False
    """True: members are expelled."""
    has_offsets: bool = False
    """True: something is committed under its name, so there is such a group even if nothing of it
    is kept in the catalog."""
    seen: int | None = None
    """Index of a record that the caller had seen when it was asked: if the group was deleted by a
    later one, this is a repeat, and what has the name by now is another group. None, which older
    software wrote: whatever has the name is deleted."""


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """A consumer group takes messages of a topic; it is created if there is none."""

    topic: str
    """The topic's name."""
    consumer_group: str
    """The consumer group's name."""
    mode: Mode
    """How it is served; one that exists must have this mode."""
    is_latest: bool
    """Where the group begins in the queues that the topic has now: True: at their end. In queues
    that are added later it begins with the first message."""
    run: int = 1
    """The `run` of a new group's policy; 1 in records of older software."""


class Detach(msgspec.Struct, frozen=True, array_like=True, tag="detach"):
    """A consumer group takes no more messages of a topic: what is in hand or dead is forgotten."""

    topic: str
    """The topic's name."""
    consumer_group: str
    """The consumer group's name."""
    number: int = 0
    """The attachment's number: nothing is done to a later one of the two. 0, which older software
    wrote: that of the two names."""


ConsumerGroupCommand = PutConsumerGroup | DeleteConsumerGroup | Attach | Detach


class ConsumerGroup(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group."""

    name: str
    """Unique among the groups that exist."""
    mode: Mode
    """How it is served."""
    policy: Policy
    """The fate of messages that fail."""
    version: int
    """Index of the catalog's record that gave it this policy."""
    owner: str = ""
    """The user that created it; empty: not known, as in clusters that do not know their users."""


class Attachment(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group takes messages of a topic."""

    number: int
    """Its number, from 1; never used again."""
    topic_id: int
    """The topic's number."""
    consumer_group: str
    """The consumer group's name."""
    is_latest: bool
    """True: it began at the end of the first `queues` queues."""
    queues: int
    """How many queues the topic had when it began."""
    version: int
    """Index of the catalog's record that made it."""


class ConsumerGroups:
    """All consumer groups of the catalog and their attachments."""

    def __init__(self) -> None:
        self.version = 0
        """Index of the catalog's last record after which data groups have something to take over:
        an attachment, the policy of a group that has some, or the queues of a topic with some."""
        self.number_last = 0
        """The highest number of an attachment given so far."""
        self.groups: dict[str, ConsumerGroup] = {}
        """All groups by name."""
        self.owned = OwnedCounts()
        """How many groups each user owns."""
        self.attachments: dict[int, Attachment] = {}
        """All attachments by number, which is the order in which they were made."""
        # Both say the same: topic's number → group → attachment's number, and the other way round.
        self._of_topic: dict[int, dict[str, int]] = {}
        self._of_group: dict[str, dict[int, int]] = {}

    def of_topic(self, topic_id: int) -> Iterator[Attachment]:
        """The attachments to a topic, in the order in which they were made."""
        return (self.attachments[number] for number in self._of_topic.get(topic_id, {}).values())

    def of_group(self, name: str) -> Iterator[Attachment]:
        """The attachments of a consumer group, in the order in which they were made."""
        return (self.attachments[number] for number in self._of_group.get(name, {}).values())

    def find(self, topic_id: int, name: str) -> Attachment | None:
        """The attachment of a consumer group to a topic; None: there is none."""
        number = self._of_topic.get(topic_id, {}).get(name)
        return None if number is None else self.attachments[number]

    def put(self, command: PutConsumerGroup, index: int, author: str = "") -> Result:
        """Create a group, which is its author's, or change its policy; the result's value is the
        policy's version."""
        name, mode = command.name, command.mode
        before = self.groups.get(name)
        policy = _with_run(command.policy, mode, before)
        refused = self._check(name, mode) or _check_policy(mode, policy)
        if refused is not None:
            return refused
        if before is not None and before.policy == policy:
            return Changed(before.version)
        if before is not None and mode is Mode.ORDERED:
            refused = _check_order(name, before.policy, policy)
            if refused is not None:
                return refused
        owner = author if before is None else before.owner
        self._keep_group(ConsumerGroup(name, mode, policy, index, owner))
        if name in self._of_group:
            self.version = index
        return Changed(index)

    def delete(self, name: str, index: int) -> bool:
        """Forget a group and its attachments; False if there is none."""
        group = self.groups.pop(name, None)
        if group is None:
            return False
        self.owned.add(group.owner, -1)
        for attachment in list(self.of_group(name)):
            self._forget(attachment, index)
        return True

    def attach(
        self, topic_id: int, queues: int, command: Attach, index: int, author: str = ""
    ) -> Result:
        """Attach a group to an existing topic with this many queues; the result's value is the
        attachment's number and the version of the group's policy. A new group is its author's."""
        name, mode = command.consumer_group, command.mode
        refused = self._check(name, mode)
        if refused is not None:
            return refused
        attachment = self.find(topic_id, name)
        if attachment is None:
            if len(self.attachments) >= ATTACHMENTS_MAX:
                message = f"a cluster has {ATTACHMENTS_MAX} attachments at the most"
                return Refused(Reason.TOO_LARGE, message)
            if name not in self.groups:
                policy = _with_run(Policy(run=command.run), mode, None)
                self._keep_group(ConsumerGroup(name, mode, policy, index, author))
            self.number_last += 1
            attachment = Attachment(
                self.number_last, topic_id, name, command.is_latest, queues, index
            )
            self._keep(attachment)
            self.version = index
        return Changed([attachment.number, self.groups[name].version])

    def detach(self, number: int, index: int) -> Result:
        """Forget an attachment, if it is there; the result's value is its number."""
        if number in self.attachments:
            self._forget(self.attachments[number], index)
        return Changed(number)

    def topic_changed(self, topic_id: int, index: int) -> None:
        """A topic has more queues: perhaps in data groups that had none of it."""
        if topic_id in self._of_topic:
            self.version = index

    def drop_topic(self, topic_id: int, index: int) -> None:
        """A topic is deleted."""
        for attachment in list(self.of_topic(topic_id)):
            self._forget(attachment, index)

    def dump(self) -> list[Any]:
        """The whole state as plain values, alike on every replica."""
        groups, attachments = list(self.groups.values()), list(self.attachments.values())
        return [self.version, self.number_last, groups, attachments]

    def load(self, state: list[Any]) -> None:
        """Take the state that `dump` gave."""
        self.version, self.number_last, groups, attachments = state
        for group in msgspec.convert(groups, list[ConsumerGroup]):
            self._keep_group(group)
        for attachment in msgspec.convert(attachments, list[Attachment]):
            self._keep(attachment)

    # -- inside ----------------------------------------------------------------------------------

    def _check(self, name: str, mode: Mode) -> Refused | None:
        """Why there cannot be a group of this name and mode."""
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
            message = f"a consumer group's name has 1 to {NAME_CHARACTERS_MAX} characters"
            return Refused(Reason.BAD_NAME, message)
        group = self.groups.get(name)
        if group is None and len(self.groups) >= GROUPS_MAX:
            message = f"a cluster has {GROUPS_MAX} consumer groups at the most: delete one first"
            return Refused(Reason.TOO_LARGE, message)
        if group is not None and group.mode is not mode:
            message = (
                f"consumer group {name!r} has mode {group.mode}, not {mode}: use it as "
                f"{group.mode}, take another name, or delete it with all that it has in hand"
            )
            return Refused(Reason.GROUP_MODE, message)
        return None

    def _keep_group(self, group: ConsumerGroup) -> None:
        if group.name not in self.groups:
            self.owned.add(group.owner, 1)
        self.groups[group.name] = group

    def _keep(self, attachment: Attachment) -> None:
        number, topic_id, name = attachment.number, attachment.topic_id, attachment.consumer_group
        assert 0 < number <= self.number_last, f"attachment {number} of {self.number_last}"
        assert self.find(topic_id, name) is None, f"{name!r} is attached to topic {topic_id} twice"
        self.attachments[number] = attachment
        self._of_topic.setdefault(topic_id, {})[name] = number
        self._of_group.setdefault(name, {})[topic_id] = number

    def _forget(self, attachment: Attachment, index: int) -> None:
        topic_id, name = attachment.topic_id, attachment.consumer_group
        del self.attachments[attachment.number]
        del self._of_topic[topic_id][name]
        if not self._of_topic[topic_id]:
            del self._of_topic[topic_id]
        del self._of_group[name][topic_id]
        if not self._of_group[name]:
            del self._of_group[name]
        is_empty = not self.attachments
        assert is_empty == (not self._of_topic) == (not self._of_group), "tables out of step"
        self.version = index


def _with_run(policy: Policy, mode: Mode, before: ConsumerGroup | None) -> Policy:
    """The policy with the run that a 0 stands for."""
    if policy.run:
        return policy
    if before is not None and before.policy.order is policy.order:
        return msgspec.structs.replace(policy, run=before.policy.run)
    has_runs = mode is Mode.ORDERED and policy.order is Order.KEY
    return msgspec.structs.replace(policy, run=RUN_MAX if has_runs else 1)


def _check_order(name: str, before: Policy, policy: Policy) -> Refused | None:
    """Why an ordered group cannot get this policy after that one."""
    if before.order is not policy.order:
        has, asked = f"is ordered by {before.order}", f"not by {policy.order}"
    elif before.run != policy.run:
        has, asked = (
            f"hands out up to {before.run} messages of a key at a time",
            f"not {policy.run}",
        )
    else:
        return None
    message = (
        f"consumer group {name!r} {has}, {asked}: keep that order, take another name, or delete it "
        "with all that it has in hand"
    )
    return Refused(Reason.GROUP_MODE, message)


def _check_policy(mode: Mode, policy: Policy) -> Refused | None:
    """Why a group of this mode cannot have this policy."""
    delays = policy.schedule_ms
    if not 1 <= len(delays) <= SCHEDULE_ENTRIES_MAX:
        message = f"a schedule has 1 to {SCHEDULE_ENTRIES_MAX} delays, not {len(delays)}"
    elif not 0 <= min(delays) <= max(delays) <= DELAY_MS_MAX:
        message = "each delay of a schedule is 0 s to 7 days"
    elif not 1 <= policy.attempts_max <= ATTEMPTS_MAX:
        message = f"a policy allows 1 to {ATTEMPTS_MAX} attempts, not {policy.attempts_max}"
    elif not INVISIBLE_MS_MIN <= policy.invisible_ms <= INVISIBLE_MS_MAX:
        message = (
            f"messages are invisible for {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX} ms (12 hours), "
            f"not {policy.invisible_ms}"
        )
    elif not 1 <= policy.run <= RUN_MAX:
        message = f"a lease holds 1 to {RUN_MAX} messages of a key, not {policy.run}"
    elif policy.run > 1 and (mode is not Mode.ORDERED or policy.order is not Order.KEY):
        message = "only a group that is ordered by key has runs of a key's messages"
    elif policy.is_blocking and mode is not Mode.ORDERED:
        message = f"only messages of an ordered group can block others; this group's mode is {mode}"
    else:
        return None
    return Refused(Reason.BAD_ARGUMENT, message)
