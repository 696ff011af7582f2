"""The acts that each request needs, by a real catalog."""

from types import SimpleNamespace
from typing import Any, cast, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.access.rules import OPERATIONS, Act, Operation, Resource, Rule
from raftmq.batch import encode
from raftmq.broker.access.needs import (
    ADMIN_CLUSTER,
    DESCRIBE_CLUSTER,
    NEEDS,
    NODE_KINDS,
    READ_CLUSTER,
    RefusedEarly,
)
from raftmq.broker.host import Host
from raftmq.errors import Reason
from raftmq.machine.catalog import access, audit, catalog, membership, quotas
from raftmq.machine.catalog.catalog import Bootstrap, Catalog, Node, Once
from raftmq.machine.catalog.consumer_groups import (
    Attach,
    DeleteConsumerGroup,
    Detach,
    PutConsumerGroup,
)
from raftmq.machine.catalog.deletions import PruneDeletions
from raftmq.machine.catalog.levels import RaiseLevel
from raftmq.machine.catalog.membership import JoinGroup
from raftmq.machine.catalog.nodes import (
    AddGroup,
    DrainNode,
    MoveGroup,
    NameNode,
    NoteAbsence,
    PlaceNode,
)
from raftmq.machine.catalog.replicas import RetireReplica
from raftmq.machine.catalog.settings import PutSettings, Scope, Setting
from raftmq.machine.catalog.subscribers import Subscribe, Unsubscribe
from raftmq.machine.catalog.topics import AlterTopic, CreateTopic, DeleteTopic
from raftmq.machine.delays import NEVER as NEVER_MS
from raftmq.machine.machine import PartitionMachine
from raftmq.machine.pop_groups import InHand
from raftmq.machine.transactions import Open
from raftmq.pop.policy import Mode, Policy
from raftmq.pop.spans import Span
from raftmq.results import Refused
from raftmq.wire import access as wire_access
from raftmq.wire import assignment, directory, fetches, popping, producing, traces
from raftmq.wire import settings as wire_settings
from raftmq.wire.assignment import Committed
from raftmq.wire.codec import pack, unpack
from raftmq.wire.consumer_groups import FindConsumerGroups, ForgetGroup
from raftmq.wire.frame import Frame
from raftmq.wire.messages import (
    Admin,
    ChangeNode,
    FindKey,
    FindOffset,
    FindOffsets,
    FindSubscriptions,
    FrameKind,
    Metadata,
    RepairRange,
    Status,
    Transfer,
)
from raftmq.wire.producing import CancelDelayed
from tests.access.structs import values
from tests.machine.test_catalog import run

ORDERS, BILLS, GONE, NEVER = (n << 16 for n in (1, 2, 3, 4))
BILLING, DROPPED, LATER = 1, 2, 3
"""Attachments: there is one, there was one, there may be one."""
MEMBER = 77
RULE = Rule("alice", True, Operation.READ, Resource.TOPIC, "orders")
OF_TOPIC = wire_settings.SettingScope("topic", "orders")
OF_CLIENTS = wire_settings.SettingScope("client", "*")
OF_NODE = wire_settings.SettingScope("node", "3")
SUBJECT = quotas.Subject(quotas.SubjectKind.TOPIC, "orders")
READ, WRITE, POP = Operation.READ, Operation.WRITE, Operation.POP
DESCRIBE, ADMIN = Operation.DESCRIBE, Operation.ADMIN


def topic(operation: Operation, name: str) -> Act:
    return Act(operation, Resource.TOPIC, name)


def group(operation: Operation, name: str) -> Act:
    return Act(operation, Resource.GROUP, name)


def made_catalog() -> Catalog:
    made = Catalog()
    run(made, Bootstrap([Node(1, "a", 1)], groups=1, replicas=1))
    for name in ("orders", "bills", "gone"):
        run(made, CreateTopic(name, 2))
    run(made, Attach("orders", "billing", Mode.POP, False))
    run(made, Attach("bills", "billing", Mode.POP, False))
    run(made, Detach("bills", "billing", DROPPED))
    run(made, JoinGroup("orders", "readers", MEMBER, 10_000))
    run(made, DeleteTopic("gone"))
    return made


def made_machine() -> PartitionMachine:
    """A data group with a transaction, 5, a hand-off, 6, and one whose input is gone, 7."""
    machine = PartitionMachine()
    opened = {5: Open("payments", "", 0), 6: Open("", "", 0), 7: Open("", "", 0)}
    for transaction, number in ((6, BILLING), (6, BILLING), (7, DROPPED)):
        opened[transaction].inputs.append(InHand(number, 1, 1, Span(0, 1)))
    machine.transactions.open.update(opened)
    return machine


class FakeHost:
    """What `needs` reads of a node."""

    def __init__(self) -> None:
        self.catalog = made_catalog()
        self.groups = {
            0: SimpleNamespace(machine=self.catalog),
            1: SimpleNamespace(number=1, machine=made_machine(), is_leader=True, is_current=True),
        }

    def group(self, number: int) -> SimpleNamespace | None:
        return self.groups.get(number)


HOST = cast("Host", FakeHost())


def acts(kind: FrameKind, message: object) -> list[Act]:
    return list(NEEDS[kind](HOST, message))


def acts_of(command: msgspec.Struct) -> list[Act]:
    return acts(FrameKind.ADMIN, Admin.of(command, 9))


def refusal(kind: FrameKind, message: object) -> tuple[str, str]:
    with pytest.raises(RefusedEarly) as error:
        acts(kind, message)
    assert str(error.value) == error.value.reply.message
    return error.value.reply.code, error.value.reply.message


# The table


def test_each_kind_of_request_has_a_row() -> None:
    assert set(NEEDS) == set(FrameKind) - {FrameKind.HELLO, FrameKind.ERROR}


COMMANDS: list[tuple[msgspec.Struct, list[Act]]] = [
    (CreateTopic("new", 2), [topic(ADMIN, "new")]),
    (CreateTopic("new", 2, "orders"), [topic(ADMIN, "new"), topic(DESCRIBE, "orders")]),
    (AlterTopic("orders", 2), [topic(ADMIN, "orders")]),
    (DeleteTopic("none"), [topic(ADMIN, "none")]),
    (Subscribe("orders", "g", "a"), [group(READ, "g"), topic(DESCRIBE, "orders")]),
    (Unsubscribe("none", "g"), [group(READ, "g"), topic(DESCRIBE, "none")]),
    (PutConsumerGroup("g", Mode.POP, Policy()), [group(ADMIN, "g")]),
    (DeleteConsumerGroup("g"), [group(ADMIN, "g")]),
    (Attach("orders", "g", Mode.POP, False), [topic(POP, "orders"), group(READ, "g")]),
    (
        Detach("orders", "billing", BILLING),
        [group(ADMIN, "billing"), topic(DESCRIBE, "orders")],
    ),
    (JoinGroup("orders", "g", 1, 1000), [topic(READ, "orders"), group(READ, "g")]),
    (
        membership.RegrantQueues("orders", "g@one"),
        [group(READ, "g"), topic(DESCRIBE, "orders")],
    ),
    (membership.LeaveGroup(MEMBER), [group(READ, "readers")]),
    (membership.ReleaseQueues(MEMBER, [0], [1]), [group(READ, "readers")]),
    (catalog.PutNode(Node(9, "a", 1)), [ADMIN_CLUSTER]),
    (catalog.RemoveNode(9), [ADMIN_CLUSTER]),
    (catalog.PutGroup(catalog.Group(1, [1])), [ADMIN_CLUSTER]),
    (DrainNode(2), [ADMIN_CLUSTER]),
    (MoveGroup(1, [2], [1]), [ADMIN_CLUSTER]),
    (AddGroup(9, [1]), [ADMIN_CLUSTER]),
    (access.PutUser("alice"), [ADMIN_CLUSTER]),
    (access.DropUser("alice"), [ADMIN_CLUSTER]),
    (access.PutToken("alice", "a" * 16, bytes(32)), [ADMIN_CLUSTER]),
    (access.DropToken("a" * 16), [ADMIN_CLUSTER]),
    (access.PutRule(RULE), [ADMIN_CLUSTER]),
    (access.DropRule(RULE), [ADMIN_CLUSTER]),
    (quotas.PutQuota(SUBJECT, quotas.Quota()), [ADMIN_CLUSTER]),
    (quotas.DropQuota(SUBJECT), [ADMIN_CLUSTER]),
    (PutSettings([Setting(Scope.CLIENT, "*", "a.b", 1)]), [ADMIN_CLUSTER]),
    (
        PutSettings([Setting(Scope.TOPIC, "orders", "a.b", 1), Setting(Scope.NODE, "1", "a.b", 1)]),
        [topic(ADMIN, "orders"), ADMIN_CLUSTER],
    ),
    (PutSettings([Setting(Scope.TOPIC, "orders", "log.retention_ms", 1)]), [ADMIN_CLUSTER]),
]
OF_NODES: list[msgspec.Struct] = [
    Bootstrap([Node(1, "a", 1)], 1, 1),
    NameNode(1, "ab"),
    catalog.RenewNode(1, "ab", "cd"),
    catalog.Reconfigure([catalog.PutGroup(catalog.Group(1, [1]))]),
    membership.RenewMembers([MEMBER], []),
    RetireReplica(1, 1),
    RaiseLevel(2),
    PlaceNode(1, "a", ""),
    NoteAbsence(1),
    PruneDeletions(7),
    catalog.Authored(audit.AdminAct("root", ""), CreateTopic("new", 2)),
    audit.BeginAct(audit.AdminAct("root", "")),
    audit.EndAct(1, "done"),
]


OF_NODES_TYPES = tuple(type(command) for command in OF_NODES)


def test_each_command_of_the_catalog_is_in_one_of_these_tables() -> None:
    listed = {type(command) for command, _ in COMMANDS} | {type(each) for each in OF_NODES}
    assert listed | {Once} == set(get_args(catalog.Command))


@pytest.mark.parametrize(("command", "needed"), COMMANDS)
def test_command_needs_these_acts_with_and_without_a_number(
    command: msgspec.Struct, needed: list[Act]
) -> None:
    assert acts_of(command) == needed
    if isinstance(command, catalog.Change):
        assert acts_of(Once(7, command)) == needed


@pytest.mark.parametrize("command", OF_NODES)
def test_command_of_nodes_is_refused_to_every_user(command: msgspec.Struct) -> None:
    assert refusal(FrameKind.ADMIN, Admin.of(command))[0] == Reason.DENIED.value


@pytest.mark.parametrize("kind", sorted(NODE_KINDS))
def test_kind_of_nodes_is_refused_to_every_user(kind: FrameKind) -> None:
    assert refusal(kind, None)[0] == Reason.DENIED.value


ONE = [fetches.FetchFrom(ORDERS, 0)]
REQUESTS: list[tuple[FrameKind, Any, list[Act]]] = [
    (FrameKind.FETCH, fetches.Fetch(ONE, 0, 1), [topic(READ, "orders")]),
    (FrameKind.FETCH, fetches.Fetch(ONE, 0, 1, "g@i"), [group(READ, "g"), topic(READ, "orders")]),
    (FrameKind.FETCH, fetches.Fetch([], 0, 1), []),
    (FrameKind.COMMIT, assignment.CommitOffsets("g@one", []), [group(READ, "g")]),
    (FrameKind.COMMIT, assignment.CommitOffsets("g", [], is_reset=True), [group(ADMIN, "g")]),
    (
        FrameKind.COMMIT,
        assignment.CommitOffsets("g", [assignment.QueueOffset(ORDERS, 1)]),
        [group(READ, "g"), topic(DESCRIBE, "orders")],
    ),
    (FrameKind.COMMITTED, Committed(1, "g"), [group(DESCRIBE, "g")]),
    (FrameKind.COMMITTED, Committed(1, None), []),
    (FrameKind.OFFSETS, FindOffsets([FindOffset(ORDERS, 0)]), [topic(DESCRIBE, "orders")]),
    (FrameKind.KEY, FindKey(1, ORDERS >> 16, b"k", 0, 9), [topic(READ, "orders")]),
    (FrameKind.STATUS, Status(), [DESCRIBE_CLUSTER]),
    (FrameKind.TRANSFER, Transfer(1, 0), [ADMIN_CLUSTER]),
    (FrameKind.CHANGE_NODE, ChangeNode("remove", 1), [ADMIN_CLUSTER]),
    (
        FrameKind.POP,
        popping.Pop(1, BILLING, 1, 1, 0, 0, 1),
        [topic(POP, "orders"), group(READ, "billing")],
    ),
    (FrameKind.SETTLE, popping.Settle(1, BILLING, 1, 1, []), [group(READ, "billing")]),
    (FrameKind.LEAVE, popping.Leave(1, BILLING, 1), [group(READ, "billing")]),
    (FrameKind.CLAIM, popping.Claim(1, BILLING, b"k", 1, 1), [group(READ, "billing")]),
    (FrameKind.BACKLOGS, popping.FindBacklogs(1, BILLING), [group(DESCRIBE, "billing")]),
    (FrameKind.BACKLOGS, popping.FindBacklogs(1), []),
    (FrameKind.DEAD, popping.FindDead(1, BILLING), [group(DESCRIBE, "billing")]),
    (FrameKind.CHANGE_DEAD, popping.ChangeDead(1, BILLING, []), [group(ADMIN, "billing")]),
    (FrameKind.RESET, popping.ResetGroup(1, BILLING, [], []), [group(ADMIN, "billing")]),
    (
        FrameKind.HEARTBEAT,
        assignment.Heartbeat(MEMBER),
        [group(READ, "readers"), topic(READ, "orders")],
    ),
    # It is told that it is no member.
    (FrameKind.HEARTBEAT, assignment.Heartbeat(5), []),
    (
        FrameKind.CANCEL,
        CancelDelayed(1, [BILLS, ORDERS], [], []),
        [topic(WRITE, "bills"), topic(WRITE, "orders")],
    ),
    (
        FrameKind.BEGIN,
        producing.BeginTransaction(1, 9, "payments", ""),
        [group(WRITE, "payments")],
    ),
    (
        FrameKind.BEGIN,
        producing.BeginTransaction(
            1, 9, "", "", [producing.TransactionInput(BILLING, 1, 1, n, b"\1") for n in (0, 9)]
        ),
        [group(READ, "billing")],
    ),
    (FrameKind.END, producing.EndTransaction(1, 5, True), [group(WRITE, "payments")]),
    (FrameKind.END, producing.EndTransaction(1, 6, True), [group(READ, "billing")]),
    # The group of one that is open counts, whatever the request says.
    (FrameKind.END, producing.EndTransaction(1, 5, True, "mine"), [group(WRITE, "payments")]),
    (FrameKind.END, producing.EndTransaction(1, 8, True, "mine"), [group(WRITE, "mine")]),
    # There is no data group of that number: the handler answers.
    (FrameKind.END, producing.EndTransaction(0, 5, True), []),
    (FrameKind.END, producing.EndTransaction(9, 5, True), []),
    (FrameKind.TRANSACTIONS, producing.FindTransactions(1, "p"), [group(DESCRIBE, "p")]),
    (FrameKind.TRANSACTIONS, producing.FindTransactions(1), []),
    (FrameKind.SESSIONS, producing.ClaimSessions(1, 1, [ORDERS], 0), [topic(WRITE, "orders")]),
    (FrameKind.WHY, traces.FindTrace(1, ORDERS, 0), [topic(READ, "orders")]),
    (FrameKind.EVENTS, traces.FindEvents(1, 0), [READ_CLUSTER]),
    (FrameKind.USERS, wire_access.FindUsers(), [ADMIN_CLUSTER]),
    (FrameKind.RULES, wire_access.FindRules(), [ADMIN_CLUSTER]),
    (FrameKind.JUDGE, wire_access.JudgeAct("alice", "read", "topic"), [ADMIN_CLUSTER]),
    (FrameKind.AUDIT, wire_access.FindAudit(), [ADMIN_CLUSTER]),
    (FrameKind.QUOTAS, wire_access.FindQuotas(), [ADMIN_CLUSTER]),
    (FrameKind.SETTINGS, wire_settings.FindSettings([]), [DESCRIBE_CLUSTER]),
    (FrameKind.SETTINGS, wire_settings.FindSettings([OF_TOPIC, OF_CLIENTS]), []),
    (FrameKind.SETTINGS, wire_settings.FindSettings([OF_TOPIC, OF_NODE]), [DESCRIBE_CLUSTER]),
    (FrameKind.SETTINGS_HISTORY, wire_settings.FindSettingsHistory(), [DESCRIBE_CLUSTER]),
    (FrameKind.CLIENTS, directory.FindClients(), [DESCRIBE_CLUSTER]),
    (FrameKind.DIRECTORY_NODES, directory.FindDirectoryNodes(), [DESCRIBE_CLUSTER]),
    (FrameKind.LEASE, directory.AskLease("report", "take"), [ADMIN_CLUSTER]),
    (FrameKind.LOG, traces.FindLog(1), [ADMIN_CLUSTER]),
    (FrameKind.REPAIR, RepairRange(1, 1, 2), [ADMIN_CLUSTER]),
    # Their answers show only what the user may see.
    (FrameKind.METADATA, Metadata(), []),
    (FrameKind.SUBSCRIBED, FindSubscriptions(), []),
    (FrameKind.GROUPS, FindConsumerGroups(), []),
    (FrameKind.MEMBERS, assignment.FindMembers(), []),
    # Data groups forget a deleted group in any case.
    (FrameKind.FORGET_GROUP, ForgetGroup(1, 1), []),
    (FrameKind.LOG_IN, wire_access.LogIn("token", ""), []),
    (FrameKind.FORGET, Frame(FrameKind.FORGET, 1, b"", b""), []),
]


def test_each_row_has_a_request_here() -> None:
    tried = {kind for kind, _, _ in REQUESTS}
    assert tried | NODE_KINDS | {FrameKind.ADMIN, FrameKind.PRODUCE} == set(NEEDS)


@pytest.mark.parametrize(("kind", "message", "needed"), REQUESTS)
def test_request_needs_these_acts(kind: FrameKind, message: Any, needed: list[Act]) -> None:
    assert acts(kind, message) == needed


def test_sent_batch_needs_to_write_the_topic_of_its_queue() -> None:
    body = bytes(encode([b"x"]).to_bytes(queue=BILLS + 1))
    assert acts(FrameKind.PRODUCE, Frame(FrameKind.PRODUCE, 1, b"", body)) == [
        topic(WRITE, "bills")
    ]
    # The handler refuses what is no batch.
    assert acts(FrameKind.PRODUCE, Frame(FrameKind.PRODUCE, 1, b"", body[:9])) == []


def sent(producer: int, deliver_at_ms: int = 0) -> Frame:
    batch = encode([b"x"], deliver_at_ms=[deliver_at_ms])
    return Frame(FrameKind.PRODUCE, 1, b"", batch.to_bytes(queue=BILLS, producer=producer))


@pytest.mark.parametrize(
    ("transaction", "needed"), [(5, [group(WRITE, "payments")]), (6, [group(READ, "billing")])]
)
def test_sent_batch_of_an_open_transaction_needs_what_its_begin_needed(
    transaction: int, needed: list[Act]
) -> None:
    """Else whoever sees its number in a list could add a message that makes the commit fail."""
    write = topic(WRITE, "bills")
    for due in (0, NEVER_MS):
        assert acts(FrameKind.PRODUCE, sent(transaction, due)) == [write, *needed]
        # A number that is no open transaction of that data group.
        assert acts(FrameKind.PRODUCE, sent(8, due)) == [write]


def test_message_that_may_be_of_a_transaction_waits_until_a_new_leader_knows_them() -> None:
    host = FakeHost()
    host.groups[1].is_current = False
    produce = NEEDS[FrameKind.PRODUCE]
    with pytest.raises(RefusedEarly) as error:
        list(produce(cast("Host", host), sent(8, NEVER_MS)))
    assert error.value.reply.code == "unavailable"
    # Others do not wait, and another leader's replica leaves the refusal to the handler.
    write = [topic(WRITE, "bills")]
    assert list(produce(cast("Host", host), sent(8))) == write
    host.groups[1].is_leader = False
    assert list(produce(cast("Host", host), sent(8, NEVER_MS))) == write


# Names and numbers


def test_queues_of_one_topic_need_one_act() -> None:
    queues = [ORDERS, BILLS + 1, ORDERS + 1, BILLS, ORDERS]
    request = fetches.Fetch([fetches.FetchFrom(queue, 0) for queue in queues], 0, 1)
    assert acts(FrameKind.FETCH, request) == [topic(READ, "orders"), topic(READ, "bills")]


@pytest.mark.parametrize("first", [GONE, NEVER, 0, -65_536, 2**64 - 65_536])
@pytest.mark.parametrize("n", [0, 5])
def test_queue_that_no_topic_has_is_named_in_the_refusal(first: int, n: int) -> None:
    code, message = refusal(FrameKind.WHY, traces.FindTrace(1, first + n, 0))
    assert code == Reason.UNKNOWN_TOPIC.value
    assert message == f"queue {first + n} belongs to no topic"


def test_queue_beyond_those_of_a_topic_is_judged_as_the_topic() -> None:
    assert acts(FrameKind.WHY, traces.FindTrace(1, ORDERS + 9, 0)) == [topic(READ, "orders")]


OF_ATTACHMENTS = [
    (FrameKind.POP, popping.Pop(1, BILLING, 1, 1, 0, 0, 1)),
    (FrameKind.SETTLE, popping.Settle(1, BILLING, 1, 1, [])),
    (FrameKind.LEAVE, popping.Leave(1, BILLING, 1)),
    (FrameKind.CLAIM, popping.Claim(1, BILLING, b"k", 1, 1)),
    (FrameKind.BACKLOGS, popping.FindBacklogs(1, BILLING)),
    (FrameKind.DEAD, popping.FindDead(1, BILLING)),
    (FrameKind.CHANGE_DEAD, popping.ChangeDead(1, BILLING, [])),
    (FrameKind.RESET, popping.ResetGroup(1, BILLING, [], [])),
]


@pytest.mark.parametrize(("kind", "message"), OF_ATTACHMENTS)
def test_attachment_may_be_news_or_deleted(kind: FrameKind, message: msgspec.Struct) -> None:
    for number in (LATER, 2**64 - 1):
        later = msgspec.structs.replace(message, number=number)
        assert refusal(kind, later)[0] == "unavailable"
    for number in (DROPPED, -1):
        gone = msgspec.structs.replace(message, number=number)
        assert refusal(kind, gone)[0] == Reason.UNKNOWN_GROUP.value


def test_attachment_that_is_news_is_asked_for_again_soon() -> None:
    with pytest.raises(RefusedEarly) as error:
        acts(FrameKind.LEAVE, popping.Leave(1, LATER, 1))
    assert error.value.reply.retry_ms > 0


def test_transaction_with_an_input_of_a_deleted_attachment_is_refused() -> None:
    gone = producing.TransactionInput(DROPPED, 1, 1, 0, b"\1")
    begin = producing.BeginTransaction(1, 9, "", "", [gone])
    end = producing.EndTransaction(1, 7, False)
    for kind, message in ((FrameKind.BEGIN, begin), (FrameKind.END, end)):
        assert refusal(kind, message)[0] == Reason.UNKNOWN_GROUP.value


def test_detach_is_judged_by_the_attachment_and_not_by_its_words() -> None:
    detach = Admin.of(Detach("mine", "mine", BILLING), 9)
    assert refusal(FrameKind.ADMIN, detach)[0] == Reason.UNKNOWN_GROUP.value
    # A repeat finds it gone, and a command of older software has no number.
    for number in (DROPPED, 0):
        needed = [group(ADMIN, "mine"), topic(DESCRIBE, "none")]
        assert acts_of(Detach("none", "mine", number)) == needed
    # Else whoever names the next number first would detach it.
    with pytest.raises(RefusedEarly) as error:
        acts_of(Detach("mine", "mine", LATER))
    assert error.value.reply.code == "unavailable"


def test_transaction_that_never_began_is_not_ended_by_its_number_alone() -> None:
    code, _ = refusal(FrameKind.END, producing.EndTransaction(1, 8, False))
    assert code == Reason.UNKNOWN_TRANSACTION.value


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (FrameKind.CANCEL, CancelDelayed(1, [], [], [])),
        (FrameKind.SESSIONS, producing.ClaimSessions(1, 1, [], 1)),
        (FrameKind.BEGIN, producing.BeginTransaction(1, 9, "", "a note")),
    ],
)
def test_request_about_nothing_is_no_record(kind: FrameKind, message: object) -> None:
    assert refusal(kind, message)[0] == Reason.BAD_ARGUMENT.value


def test_name_that_nothing_can_have_is_not_kept() -> None:
    long = "g" * 1000
    request = Committed(1, long)
    assert refusal(FrameKind.COMMITTED, request)[0] == Reason.BAD_NAME.value


def test_member_of_another_group_is_refused_without_the_name_of_that_group() -> None:
    command = JoinGroup("orders", "mine", MEMBER, 1000)
    join = Admin.of(command, 9)
    code, message = refusal(FrameKind.ADMIN, join)
    assert code == Reason.BAD_ARGUMENT.value
    assert "readers" not in message
    assert isinstance(run(made_catalog(), command), Refused)
    # A repeat of its own join is none of another group.
    own = [topic(READ, "orders"), group(READ, "readers")]
    assert acts_of(JoinGroup("orders", "readers", MEMBER, 1000)) == own


def test_member_that_is_unknown_needs_nothing() -> None:
    assert acts_of(membership.LeaveGroup(5)) == []


@pytest.mark.parametrize("plain", [[], ["nonsense"], ["put_user"], ["drop_user", 7], [7], [None]])
def test_text_that_is_no_command_is_left_to_the_handler(plain: list[Any]) -> None:
    assert acts(FrameKind.ADMIN, Admin(plain)) == []


# Anything that can arrive

names = st.sampled_from(["orders", "bills", "gone", "billing", "readers", "readers@one", ""])
queues = st.sampled_from([ORDERS, BILLS + 1, GONE, NEVER]) | st.integers(-(2**64), 2**64 - 1)
numbers = st.sampled_from([BILLING, DROPPED, LATER, 0]) | st.integers(-(2**64), 2**64 - 1)
HINTS: dict[str, Any] = {
    "name": names,
    "topic_name": names,
    "consumer_group": names,
    "beside": names,
    "queue": queues,
    "number": numbers,
    "member": st.just(MEMBER) | st.integers(-(2**64), 2**64 - 1),
    "partition_group": st.integers(0, 2),
    "transaction": st.integers(1, 9),
}


def code_of(kind: FrameKind, message: object) -> str:
    """The code of the refusal; empty: the request needs acts, and each is one that there is."""
    try:
        found = acts(kind, message)
    except RefusedEarly as unfound:
        return unfound.reply.code
    for act in found:
        assert act.operation in OPERATIONS[act.resource] - {Operation.ANY}
        assert act.resource is not Resource.CLUSTER or not act.name
    return ""


@settings(max_examples=400)
@given(values(catalog.Command, **HINTS))
def test_any_command_gives_acts_or_a_refusal(command: catalog.Command) -> None:
    message = unpack(Admin, pack(Admin.of(command)))
    assert catalog.parse_command(message.command) == command
    expected = (
        {Reason.DENIED.value}
        if isinstance(command, OF_NODES_TYPES)
        else {"", "unavailable", "unknown_group", "bad_argument"}
    )
    assert code_of(FrameKind.ADMIN, message) in expected


OF_USERS = [row for row in REQUESTS if not isinstance(row[1], Frame)]
KINDS = sorted({(kind, type(message)) for kind, message, _ in OF_USERS}, key=lambda row: row[0])


@pytest.mark.parametrize(("kind", "type_"), KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_request_gives_acts_or_a_refusal(
    kind: FrameKind, type_: type[msgspec.Struct], data: st.DataObject
) -> None:
    message = data.draw(values(type_, **HINTS))
    assert code_of(kind, message) in (
        "", "unavailable", "unknown_topic", "unknown_group", "unknown_transaction", "bad_argument",
    )  # fmt: skip


@given(st.binary(max_size=200))
def test_no_batch_breaks_the_table(body: bytes) -> None:
    frame = Frame(FrameKind.PRODUCE, 1, b"", body)
    assert code_of(FrameKind.PRODUCE, frame) in ("", "unknown_topic")
