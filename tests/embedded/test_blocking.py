"""The embedded queue for plain code."""

import threading
from pathlib import Path

import pytest

import raftmq.blocking
from raftmq.errors import Unavailable

pytestmark = pytest.mark.process


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_plain_code_sends_and_reads(tmp_path: Path, backend: str) -> None:
    with raftmq.blocking.open(tmp_path, backend=backend) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.producer("orders") as producer:
            assert producer.send(b"a").offset == 0
        with mq.consumer("orders") as consumer:
            assert consumer.fetch(1, wait=5.0).bodies == [b"a"]
    assert not [t for t in threading.enumerate() if t.name.startswith("raftmq")]


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (
        raftmq.blocking.open(tmp_path),
        pytest.raises(Unavailable, match="in use"),
        raftmq.blocking.open(tmp_path),
    ):
        pass


def test_connecting_loads_no_broker() -> None:
    import subprocess
    import sys

    program = "import sys, raftmq.blocking; print('raftmq.broker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_plain_code_pops_and_checks(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path, check=True) as mq:
        mq.admin.create_topic("orders", queues=1)
        with mq.producer("orders") as producer:
            producer.send_many(bodies=[b"a", b"b"])
        with mq.consumer("orders", group="g", mode="pop") as popper:
            popper.pop(2, wait=5.0).ack()
        checked = mq.check()
    assert checked.verdict == "valid", str(checked)
    assert checked.counts["acked"] == 2
