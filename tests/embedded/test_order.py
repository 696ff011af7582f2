"""The order of a sender over several queues, in one process on real files and a real clock."""

import ast
import inspect
import re
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

import raftmq
import raftmq.blocking
from raftmq.blocking import BlockingResequencer
from raftmq.errors import MissingMessages, WrongType

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs/order.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
MESSAGES = 200


def spread(mq: raftmq.blocking.BlockingClient, sequencer: raftmq.Sequencer) -> None:
    """Send numbered messages to queues at random, each fifth one twice."""
    rng = Random(7)
    with mq.producer("orders") as producer:
        for n in range(MESSAGES):
            props = sequencer.stamp()
            for _ in range(1 if n % 5 else 2):
                producer.send_nowait(b"%d" % n, props=props, queue=rng.randrange(4))


@pytest.mark.parametrize("is_checked", [False, True])
def test_order_is_restored_and_a_restart_goes_on(tmp_path: Path, is_checked: bool) -> None:
    with raftmq.blocking.open(tmp_path, check=is_checked) as mq:
        mq.admin.create_topic("orders", queues=4)
        spread(mq, raftmq.Sequencer("meter-7"))
        got: list[bytes] = []
        stored: dict[str, int] = {}
        for _ in range(4):
            with mq.consumer("orders", group="g") as consumer:
                messages = BlockingResequencer(consumer, numbers=stored)
                for message in messages:
                    got.append(message.body)
                    if len(got) % (MESSAGES // 4) == 0:
                        break
                messages.commit()
                stored = messages.numbers
        assert got == [b"%d" % n for n in range(MESSAGES)]
        assert stored == {"meter-7": MESSAGES}
        if is_checked:
            assert mq.check().verdict == "valid"


def test_popped_messages_come_in_order_and_each_is_settled_once(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path, check=True) as mq:
        mq.admin.create_topic("orders", queues=4)
        spread(mq, raftmq.Sequencer())
        got: list[bytes] = []
        with mq.consumer("orders", group="g", mode="pop", renew=30) as popper:
            messages = BlockingResequencer(popper)
            for message in messages:
                message.ack_nowait()
                got.append(message.body)
                if len(got) == MESSAGES:
                    break
            popper.flush()
            assert messages.statistics().messages == 0
        assert got == [b"%d" % n for n in range(MESSAGES)]
        checked = mq.check()
    assert checked.verdict == "valid", str(checked)


def test_gap_is_raised_or_given_to_the_function_in_the_thread_that_iterates(
    tmp_path: Path,
) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=2)
        sequencer = raftmq.Sequencer()
        with mq.producer("orders") as producer:
            for n in range(6):
                props = sequencer.stamp()
                if n not in (2, 3):
                    producer.send(b"%d" % n, props=props, queue=n % 2)
        with mq.consumer("orders") as consumer:
            messages = BlockingResequencer(consumer, gap_timeout=0.5)
            got: list[bytes] = []
            with pytest.raises(MissingMessages) as raised:
                got.extend(message.body for message in messages)
            assert got == [b"0", b"1"]
            assert (raised.value.first, raised.value.last) == (2, 3)
            assert next(iter(messages)).body == b"4"
        gaps: list[MissingMessages] = []

        def note(gap: MissingMessages) -> None:
            # In the thread of the client's loop this call would wait for ever.
            assert mq.admin.list_topics()
            gaps.append(gap)

        with mq.consumer("orders") as consumer:
            iterator = iter(BlockingResequencer(consumer, gap_timeout=0.5, on_gap=note))
            assert [next(iterator).body for _ in range(4)] == [b"0", b"1", b"4", b"5"]
        assert [(gap.first, gap.last) for gap in gaps] == [(2, 3)]


def test_delayed_messages_and_those_of_transactions_keep_their_place(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders", queues=2)
        sequencer = raftmq.Sequencer()
        with mq.producer("orders") as producer:
            producer.send(b"0", props=sequencer.stamp(), delay=0.5)
            producer.send(b"1", props=sequencer.stamp())
            with producer.transaction(group="shop") as transaction:
                transaction.send(b"2", props=sequencer.stamp())
                producer.send(b"3", props=sequencer.stamp())
        with mq.consumer("orders") as consumer:
            iterator = iter(BlockingResequencer(consumer))
            assert [next(iterator).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_blocking_face_has_every_call_of_the_async_one(tmp_path: Path) -> None:
    def calls(each: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(each) if name[0] != "_"}

    assert calls(raftmq.Resequencer) - calls(BlockingResequencer) == set()
    with raftmq.blocking.open(tmp_path) as mq, pytest.raises(WrongType, match=r"raftmq\.blocking"):
        BlockingResequencer(mq)  # type: ignore[call-overload]


def test_examples_of_the_page_send_and_restore_one_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play() -> None:
        async with raftmq.open(tmp_path) as mq:
            await mq.admin.create_topic("readings", queues=3)
            for example in EXAMPLES:
                # The examples that read have no end.
                with anyio.move_on_after(2.0):
                    await run(example, {"raftmq": raftmq, "mq": mq})

    anyio.run(play, backend="trio")
    bodies = [repr(b"%d" % n) for n in range(5)]
    numbered = "".join(f"{n} {body}\n" for n, body in enumerate(bodies))
    plain = "".join(f"{body}\n" for body in bodies)
    assert capsys.readouterr().out == numbered + plain * 2


async def run(example: str, names: dict[str, Any]) -> None:
    """Run an example of the page."""
    code = compile(example, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)
