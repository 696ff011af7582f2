"""Names that a shell completes: how long it waits for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import click
import pytest

import raftmq
from raftmq.cli import names
from raftmq.client import Client

STEP = 0.15


async def asked(_: Client) -> list[str]:
    await anyio.sleep(STEP)
    return ["orders"]


@pytest.mark.parametrize(("seconds", "found"), [(60.0, ["orders"]), (1.5 * STEP, [])])
def test_shell_waits_for_the_connection_and_the_answers_together(
    seconds: float, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def connect(*_: Any, **__: Any) -> AsyncIterator[Client]:
        await anyio.sleep(STEP)
        yield cast("Client", None)

    monkeypatch.setattr(raftmq, "connect", connect)
    monkeypatch.setattr(names, "SECONDS_MAX", seconds)
    context = click.Context(click.Command("topic"))
    parameter = click.Argument(["name"])
    items = names._Name(asked).shell_complete(context, parameter, "ord")
    assert [item.value for item in items] == found
