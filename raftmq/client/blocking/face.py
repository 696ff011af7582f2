"""Faces: async objects for plain code, each method made from the async one.

    class BlockingProducer(Entered[Producer]):
        send = waits(Producer.send)
        send_nowait = gives(Producer.send_nowait, BlockingPending)

A type checker sees the parameters and the result of the async method, and `help` shows them. A call
looks the method up in the object itself, so an object that overrides the method uses its own.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from .loop import Loop

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any])
P = ParamSpec("P")
T = TypeVar("T")


class Face(Generic[A]):
    """The base of the faces."""

    def __init__(self, loop: Loop, inner: A) -> None:
        self._loop = loop
        self._inner = inner


class Entered(Face[C]):
    """The base of faces used as `with`: it enters and leaves an async object on the loop."""

    def __init__(self, loop: Loop, inner: C) -> None:
        super().__init__(loop, inner)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._loop.enter(self._stack, self._inner)
        self._loop.note_entered(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.note_left(self)
        if self._loop.is_here and not self._loop.is_over:
            self._stack.__exit__(kind, error, traceback)


def waits(of: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """The method that runs `of` on the loop and waits for its result."""
    name = of.__name__

    @wraps(of)
    def call(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = face._loop.wait(lambda: getattr(face._inner, name)(*args, **kwargs))
        return result

    return _documented(call, of)


def calls(of: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The method that runs `of`, a plain function, on the loop."""
    name = of.__name__

    @wraps(of)
    def call(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = face._loop.call(lambda: getattr(face._inner, name)(*args, **kwargs))
        return result

    return _documented(call, of)


def gives(
    of: Callable[Concatenate[A, P], T], face_of: Callable[[Loop, T], B]
) -> Callable[Concatenate[Any, P], B]:
    """As `calls`, for a method that makes another async object: the result is a face of it."""
    make = calls(of)

    @wraps(of)
    def call(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> B:
        return face_of(face._loop, make(face, *args, **kwargs))

    return _documented(call, of)


def _documented(call: Callable[P, T], of: Callable[..., object]) -> Callable[P, T]:
    call.__doc__ = f"See `{of.__qualname__}`."
    return call
