"""Calls of consumer groups that pop, read back from a history."""

from raftmq.checkers.history import Recorder
from raftmq.checkers.pop.calls import FENCED, Named, begin_settling, end_settling, pop_traffic


def test_answer_belongs_to_a_message_of_one_queue() -> None:
    """A pop hands messages of several queues out under one token; their offsets may be alike."""
    recorder = Recorder()
    lost, kept = Named("orders/0", 8, 1 << 20), Named("orders/1", 8, 1 << 20)
    ack = begin_settling(recorder, 7, "ack", "billing", [lost, kept])
    end_settling(recorder, ack, "billing", [(lost, FENCED), (kept, 1)])
    found = pop_traffic(recorder.history())
    assert found["billing orders/0"].settlements[0].is_fenced
    assert found["billing orders/1"].settlements[0].is_done
