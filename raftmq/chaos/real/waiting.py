"""Waiting for facts about other processes, which tell nobody when they change."""

from collections.abc import Awaitable, Callable

import trio

LOOK_SECONDS = 0.02


async def wait_true(fact: Callable[[], bool], *, timeout: float) -> bool:
    """Whether a fact came true in time."""

    async def is_true() -> bool:
        return fact()

    return await wait_found(is_true, timeout=timeout)


async def wait_found(
    fact: Callable[[], Awaitable[bool]], *, timeout: float, look_seconds: float = LOOK_SECONDS
) -> bool:
    """Whether a fact that has to be asked for came true in time."""
    with trio.move_on_after(timeout):
        while True:
            if await fact():
                return True
            await trio.sleep(look_seconds)
    return False
