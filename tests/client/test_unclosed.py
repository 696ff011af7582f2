"""Blocking clients that are not left: the program ends, and later calls say what is wrong."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import raftmq
from raftmq.errors import RaftmqError, Rejected

UNCLOSED = """
import raftmq
cm = raftmq.blocking.open({folder!r}, backend={backend!r})
mq = cm.__enter__()
mq.admin.create_topic("orders")
producer = mq.producer("orders", linger=60.0).__enter__()
producer.send_nowait(b"unsent")
mq.consumer("orders", group="g", mode="pop").__enter__()
print("end")
"""
STACK = """
from contextlib import ExitStack
import raftmq
stack = ExitStack()
mq = stack.enter_context(raftmq.blocking.open({folder!r}, backend={backend!r}))
mq.admin.create_topic("orders")
print("end")
raise ValueError("a test that fails")
"""
FORKED = """
import os
import raftmq
cm = raftmq.blocking.open({folder!r}, backend={backend!r})
mq = cm.__enter__()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    mq.admin.create_topic("orders")
    print("end")
"""
HELD = """
import threading, time
import raftmq
cm = raftmq.blocking.open({folder!r}, backend={backend!r})
mq = cm.__enter__()
mq.admin.create_topic("orders")
producer = mq.producer("orders").__enter__()
held = threading.Event()
def bodies():
    held.set()
    time.sleep(600)
    yield b""
threading.Thread(target=producer.send_many, args=(bodies(),), daemon=True).start()
held.wait()
print("end")
"""


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(("program", "code"), [(UNCLOSED, 0), (STACK, 1), (FORKED, 0), (HELD, 0)])
def test_program_ends_that_leaves_its_client_open(
    tmp_path: Path, program: str, code: int, backend: str
) -> None:
    text = program.format(folder=str(tmp_path), backend=backend)
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=40.0
    )
    assert (ended.returncode, ended.stdout) == (code, "end\n"), ended.stderr
    assert code or not ended.stderr
    assert time.monotonic() - begun < 20


def test_closed_client_says_that_it_was_closed(tmp_path: Path) -> None:
    with raftmq.blocking.open(tmp_path) as mq:
        mq.admin.create_topic("orders")
    with pytest.raises(RaftmqError, match="the client was closed: its `with` block has ended"):
        mq.admin.list_topics()
    with pytest.raises(RaftmqError, match="the client was closed"):
        mq.producer("orders")


def test_connection_that_is_not_entered_says_how_to() -> None:
    with pytest.raises(AttributeError, match=r"write `with .* as mq:` and `mq.producer`"):
        raftmq.blocking.connect("raftmq://127.0.0.1:7400").producer  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"write `async with .* as mq:` and `mq.admin`"):
        raftmq.connect("raftmq://127.0.0.1:7400").admin  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("url", [7400, None, ["raftmq://a"], b"raftmq://a", "raftmq://127.0.0.1:"])
def test_url_of_another_kind_says_how_to_write_one(url: Any) -> None:
    with pytest.raises(Rejected, match=r"no cluster URL: .*; write raftmq://host:port"):
        raftmq.blocking.connect(url)


@pytest.mark.parametrize("timeout", ["5", None, -1, float("nan"), True])
def test_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    with pytest.raises(Rejected, match="timeout is a number of seconds, from 0, not"):
        raftmq.connect("raftmq://127.0.0.1:7400", timeout=timeout)
