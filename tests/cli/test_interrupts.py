"""Ctrl-C, pressed once and twice; the commands are processes of their own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NODE = "raftmq://127.0.0.1:1"

CANCELLED = """
import anyio
from raftmq.cli.session import Session

async def call():
    try:
        print("running", flush=True)
        await anyio.sleep(60)
    finally:
        print("ending", flush=True)
        with anyio.CancelScope(shield=True):
            await anyio.sleep(ENDING)
"""
"""A call whose end takes `ENDING` seconds, as leaving a consumer may."""

TAKEN = CANCELLED.replace(
    """
        print("running", flush=True)
        await anyio.sleep(60)
""",
    """
        with anyio.CancelScope() as scope, first_calls(scope.cancel):
            print("running", flush=True)
            await anyio.sleep(60)
""",
).replace("import anyio\n", "import anyio\nfrom raftmq.cli.interrupts import first_calls\n")
"""A call that takes Ctrl-C itself, as `consume` does."""

RUN = f"""
try:
    Session("{NODE}", 1.0).run_alone(call, backend=BACKEND)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@contextmanager
def running(program: str, *, ending: float, backend: str) -> "Iterator[subprocess.Popen[str]]":
    """The program, once it runs and has got one Ctrl-C."""
    text = (program + RUN).replace("ENDING", str(ending)).replace("BACKEND", repr(backend))
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "ending\n"
            yield process
        finally:
            process.kill()


CASES = pytest.mark.parametrize(
    ("program", "backend", "end"),
    [
        (CANCELLED, "asyncio", "interrupted\n"),
        (CANCELLED, "trio", "interrupted\n"),
        (TAKEN, "asyncio", ""),
    ],
    ids=["cancelled", "cancelled-trio", "taken"],
)


@CASES
def test_first_ctrl_c_lets_a_command_end_in_its_own_way(
    program: str, backend: str, end: str
) -> None:
    with running(program, ending=0.05, backend=backend) as process:
        assert process.communicate(timeout=60) == (end, "")
        assert process.returncode == 0


@CASES
def test_second_ctrl_c_ends_the_process_at_once_and_quietly(
    program: str, backend: str, end: str
) -> None:
    with running(program, ending=600, backend=backend) as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 130


def test_ctrl_c_while_python_shuts_down_leaves_the_exit_code() -> None:
    text = (CANCELLED + RUN).replace("ENDING", "0").replace("BACKEND", "'asyncio'")
    # A module's objects are dropped after Python has given the signals back.
    late = (
        "\nimport os, signal, sys\n"
        "from raftmq.cli.interrupts import outlast_interrupts\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid()): kill(pid, 2)\n"
        "outlast_interrupts()\n"
        "sys.late = Late()\n"
        "sys.exit(7)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text + late], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"ending\ninterrupted\n", b"")
        assert process.returncode == 7
