"""Ctrl-C: the first one lets a command end in its own way, the second one ends the process at once.

Python's own handler raises `KeyboardInterrupt` between any two lines. A second one would come while
the event loop or the interpreter shuts down: a traceback, or a process that never ends.

| Ctrl-C | a command that takes it by itself (`first_calls`) | another one (`second_ends`) |
|---|---|---|
| first | `stop` is called in the event loop | the event loop's handler: the call is cancelled |
| second | `end_at_once` | `end_at_once` |
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .exits import ExitCode

SHOW_CURSOR = b"\x1b[?25h"


def end_at_once(*_: object) -> None:
    """End the process with 130: a signal handler. Nothing is flushed, no `finally` runs."""
    # The progress bar hides the terminal's cursor.
    if os.isatty(2):
        os.write(2, SHOW_CURSOR)
    os._exit(ExitCode.INTERRUPTED)


def outlast_interrupts() -> None:
    """Let an interrupted command end with its own exit code: the last call of the process."""
    # Python's shutdown would reset `end_at_once` to the system's default, a death by the signal.
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def second_ends() -> Iterator[None]:
    """Inside, the present handler of SIGINT gets the first one; later ones end the process, even
    after the block. For the body of an event loop, which has set its handler by then."""
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread may set handlers; a handler that is no function ignores SIGINT.
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def first(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, end_at_once)
        before(number, frame)  # type: ignore[arg-type]

    with _handling(first, signal.SIGINT):
        yield


@contextmanager
def first_calls(stop: Callable[[], object]) -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM calls `stop` in the running loop, which is asyncio's;
    later ones end the process, even after the block."""
    import asyncio

    loop = asyncio.get_running_loop()

    def first(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end_at_once)
        loop.call_soon_threadsafe(stop)

    with _handling(first, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def as_interrupts(*numbers: signal.Signals) -> Iterator[None]:
    """Inside, these signals do what Ctrl-C does."""
    with _handling(lambda *_: signal.raise_signal(signal.SIGINT), *numbers):
        yield


@contextmanager
def _handling(first: Callable[..., None], *numbers: signal.Signals) -> Iterator[None]:
    """Inside, `first` is the handler of the signals; a handler that `first` has set stays."""
    before = {number: signal.signal(number, first) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is first:
                signal.signal(number, handler)
