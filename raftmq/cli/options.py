"""The parameters of a command as a dataclass, and the options that several commands share.

@dataclass(frozen=True, slots=True)
class _Options:
    topic: str = argument(type=TOPIC)
    count: int | None = option("-n", "--count", type=int, help="Stop after this many.")

@command()
@with_options(_Options)
def consume(options: _Options) -> None: ...
"""

from collections.abc import Callable
from dataclasses import field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

execute_option = click.option(
    "--execute", is_flag=True, help="Do it; without this option, a dry run."
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
queues_option = click.option(
    "-q", "--queue", "queues", type=int, multiple=True, help="Only this queue (repeat)."
)


def option(*names: str, **settings: Any) -> Any:
    """A field of a dataclass that `click.option` fills."""
    return field(metadata={"click": lambda name: click.option(name, *names, **settings)})


def argument(**settings: Any) -> Any:
    """A field of a dataclass that `click.argument` fills."""
    return field(metadata={"click": lambda name: click.argument(name, **settings)})


def with_options(
    kind: "type[DataclassInstance]",
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the parameters of a dataclass, and the filled dataclass as `options`."""
    given = [each for each in fields(kind) if "click" in each.metadata]

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @wraps(command)
        def wrapper(**values: Any) -> T:
            own = {each.name: values.pop(each.name) for each in given}
            return command(options=kind(**own), **values)

        for each in reversed(given):
            wrapper = each.metadata["click"](each.name)(wrapper)
        return wrapper

    return decorate
