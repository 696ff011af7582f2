"""The examples in Python of the guide to popping, run as they stand on the page."""

import ast
import inspect
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

import raftmq

pytestmark = [pytest.mark.anyio, pytest.mark.process]

PAGE = Path(__file__).parents[2] / "docs/popping.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
MESSAGES = 30
SECONDS_MAX = 20.0


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


def work(body: bytes) -> None:
    """Work that fails from time to time."""
    if int(body) % 3 == 1:
        raise OSError("busy")
    if int(body) % 3 == 2:
        raise ValueError("no such customer")


async def run(example: str, names: dict[str, Any]) -> None:
    """Run an example, and `main` if it defines that."""
    code = compile(example, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, names)
    if inspect.isawaitable(done):
        await done
    if "main" in names:
        await names["main"]()


async def acked(mq: raftmq.Client) -> int:
    return sum(each.acked for each in await mq.admin.backlogs(topic="orders"))


def test_page_has_examples() -> None:
    assert len(EXAMPLES) > 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[0][:40])
async def test_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with raftmq.open(tmp_path) as mq:
        monkeypatch.setattr(raftmq, "connect", lambda url: nullcontext(mq))
        await mq.admin.create_topic("orders", queues=2)
        async with mq.producer("orders") as producer:
            for n in range(MESSAGES):
                await producer.send(b"%d" % n, key=f"customer-{n % 4}")
        async with mq.consumer("orders", group="billing", mode="pop", prefetch=0) as consumer:
            names = {"raftmq": raftmq, "mq": mq, "consumer": consumer, "work": work}
            # Two dead letters, which one page of the guide looks at.
            for _ in range(2):
                await (await consumer.pop(1, wait=5))[0].reject("too large")
            with anyio.fail_after(SECONDS_MAX):
                if "async for message in" not in example:
                    await run(example, names)
                    return
                # The example has no end: its work is done when all other messages are acked.
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run, example, names)
                    while await acked(mq) < MESSAGES - 2:
                        await anyio.sleep(0.05)
                    tasks.cancel_scope.cancel()
