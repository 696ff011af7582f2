"""The ends of queues, by queue and by topic."""

from hypothesis import given
from hypothesis import strategies as st

from raftmq.machine.queue_ends import QueueEnds
from raftmq.machine.queue_numbers import QUEUE_BITS

queues = st.builds(lambda topic, n: topic << QUEUE_BITS | n, st.integers(1, 3), st.integers(0, 3))


@given(st.lists(st.tuples(queues, st.integers(0, 3))))
def test_a_topic_has_its_queues_in_the_order_of_their_first_messages(
    steps: list[tuple[int, int]],
) -> None:
    ends, plain = QueueEnds(), dict[int, int]()
    for queue, count in steps:
        if count:
            assert ends.place(queue, count) == plain.get(queue, 0)
            plain[queue] = plain.get(queue, 0) + count
        else:
            ends.drop(queue)
            plain.pop(queue, None)
    for each in (ends, QueueEnds(ends.items())):
        assert list(each.items()) == list(plain.items())
        for topic in range(1, 4):
            expected = [queue for queue in plain if queue >> QUEUE_BITS == topic]
            assert list(each.of_topic(topic)) == expected
