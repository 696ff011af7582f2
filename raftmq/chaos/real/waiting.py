"""Waiting for facts about other processes, by polling: no process announces its changes."""

from collections.abc import Awaitable, Callable

import trio

LOOK_SECONDS = 0.02


async def wait_true(fact: Callable[[], bool], *, timeout: float) -> bool:
    """Wait until `fact` is true; False if `timeout` seconds pass first."""

    async def is_true() -> bool:
        return fact()

    return await wait_found(is_true, timeout=timeout)


async def wait_found(
    fact: Callable[[], Awaitable[bool]], *, timeout: float, look_seconds: float = LOOK_SECONDS
) -> bool:
    """As `wait_true`, for a fact that a call has to find out."""
    with trio.move_on_after(timeout):
        while True:
            if await fact():
                return True
            await trio.sleep(look_seconds)
    return False
