"""Checks of arguments: their types, each once a call, none once a message; and their values.

The annotations of a call name the accepted types, so `typed` derives the checks from them, once,
when its module is imported. A wrong argument is refused at the call with `WrongType`, before
anything is sent: an encoder or a broker would name the encoded value, not the caller's argument.

| annotation | accepted |
|---|---|
| `str`, `bool`, a class | an instance |
| `bytes` | also a `bytearray` or `memoryview` |
| `int` | a whole number, also of numpy, no bool |
| `float` | a number, no bool and no NaN; a `timeout` or `wait` is not negative |
| `Sequence[T]` and the like | an iterable, no text; in a list or tuple the entries, too |
| `Mapping`, `Callable` | an instance |
| `Literal` | any text: the call checks which text |
| `T | None` | either |
| others, as an enum, a protocol or a union in a sequence | anything: the call checks |

`require` and `milliseconds` refuse a value of the right type with `Rejected`.

Left out: `Producer.send` and `send_nowait`, which are called once a message. There the encoder
refuses wrong values.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import EnumType, StrEnum
from functools import wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from raftmq.errors import Reason, Rejected, WrongType

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
F = TypeVar("F", bound=Callable[..., Any])

_SECONDS = {"timeout", "wait"}
"""Names of arguments that are times, which are not negative."""
_NO_ENTRIES = (bytes,)
"""Entries that encoders check in bulk."""


class _Rule(NamedTuple):
    """The type rule of one argument."""

    takes: Callable[[Any], bool]
    """True for a value that the rule accepts."""
    words: str
    """The right kind, in words: `a text (str)`."""


def typed(*, skip: Iterable[str] = ()) -> Callable[[type[T]], type[T]]:
    """Check the arguments of a class's own public methods, except those named in `skip`."""

    def check_all(kind: type[T]) -> type[T]:
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in skip:
                setattr(kind, name, typed_call(method))
        return kind

    return check_all


def typed_call(function: F) -> F:
    """Check the arguments of a function, not its defaults.

    Raises:
        WrongType: at each call with a wrong argument; for an `async` function when awaited.
    """
    parameters = inspect.signature(function).parameters.values()
    rules = {each.name: _rule_of(each.annotation, each.name) for each in parameters}
    named = {name: rule for name, rule in rules.items() if rule is not None}
    placed = [
        (each.name, rules[each.name])
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if not named:
        return function

    def check(args: tuple[Any, ...], options: dict[str, Any]) -> None:
        for (name, rule), value in zip(placed, args, strict=False):
            if rule is not None and not rule.takes(value):
                raise _refusal(name, rule, value)
        for name, value in options.items():
            rule = named.get(name)
            if rule is not None and not rule.takes(value):
                raise _refusal(name, rule, value)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def waiting(*args: Any, **options: Any) -> Any:
            check(args, options)
            return await function(*args, **options)

        return waiting  # type: ignore[return-value]

    @wraps(function)
    def calling(*args: Any, **options: Any) -> Any:
        check(args, options)
        return function(*args, **options)

    return calling  # type: ignore[return-value]


def require_fields(settings: "DataclassInstance") -> None:
    """Refuse settings with a field of another type than is annotated.

    Raises:
        WrongType: the first such field.
    """
    for each in fields(settings):
        rule, value = _rule_of(each.type, each.name), getattr(settings, each.name)
        if rule is not None and not rule.takes(value):
            raise _refusal(each.name, rule, value)


def require_whole(value: object, name: str) -> None:
    """Refuse a value that is no whole number.

    Raises:
        WrongType: the value is no whole number.
    """
    if not _is_whole(value):
        raise _refusal(name, _PLAIN[int], value)


def require_dict(value: object, name: str) -> None:
    """Refuse a value that is neither a mapping nor None.

    Raises:
        WrongType: the value is neither.
    """
    if value is not None and type(value) is not dict and not isinstance(value, Mapping):
        raise WrongType(f"{name} is a dict or None, not {value!r:.80}")


def require_text(value: object, name: str) -> None:
    """Refuse a value that is no `str`.

    Raises:
        WrongType: the value is no `str`.
    """
    if not isinstance(value, str):
        raise _refusal(name, _PLAIN[str], value)


def require_seconds(value: object, name: str) -> None:
    """Refuse a value that is no number of seconds, from 0.

    Raises:
        WrongType: the value is no such number.
    """
    if not _TIME.takes(value):
        raise _refusal(name, _TIME, value)


def milliseconds(seconds: float, name: str) -> int:
    """A time as whole milliseconds.

    Raises:
        Rejected: `BAD_ARGUMENT`, the time is no finite number.
    """
    try:
        return round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise Rejected(Reason.BAD_ARGUMENT, f"{name} is seconds, not {seconds!r}") from None


def member_of(kind: type[E], word: str, what: str) -> E:
    """The member of an enum that a text names.

    Raises:
        Rejected: `BAD_ARGUMENT`, there is no such member.
    """
    try:
        return kind(word)
    except ValueError:
        message = f"there is no {what} {word!r}: it is one of {', '.join(kind)}"
        raise Rejected(Reason.BAD_ARGUMENT, message) from None


def require(holds: bool, message: str) -> None:
    """Raise `Rejected` with `BAD_ARGUMENT` unless `holds` is true."""
    if not holds:
        raise Rejected(Reason.BAD_ARGUMENT, message)


class Unentered:
    """The base of the results of `connect` and `open`: no clients before they are entered."""

    _ENTER = "async with"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            message = f"write `{self._ENTER} ... as mq:` and `mq.{name}`: this is no client yet"
            raise AttributeError(message)


class _OneMode:
    """The base of what belongs to one mode of a consumer: it names the mode of the other calls."""

    __slots__ = ()
    _OTHER_CALLS: ClassVar[frozenset[str]] = frozenset()
    _OTHER_MODE: ClassVar[str] = ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in self._OTHER_CALLS:
                text = f"{text}: {self._OTHER_MODE}"
            raise AttributeError(text, name=name, obj=self)


class ByOffset(_OneMode):
    """The base of what reads by offset."""

    __slots__ = ()
    _OTHER_CALLS = frozenset(("pop", "ack", "nack", "reject", "extend"))
    _OTHER_MODE = 'this reads by offset; `mq.consumer(..., mode="pop")` pops'


class Popping(_OneMode):
    """The base of what pops."""

    __slots__ = ()
    _OTHER_CALLS = frozenset(("fetch", "commit", "seek", "position", "committed"))
    _OTHER_MODE = "this pops; `mq.consumer(...)` without a mode reads by offset"


def _refusal(name: str, rule: _Rule, value: object) -> WrongType:
    return WrongType(f"{name} is {rule.words}, not {value!r:.80}")


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: object) -> bool:
    # NaN differs from itself.
    is_real = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    return is_real and value == value


def _is_time(value: Any) -> bool:
    return _is_number(value) and value >= 0


_PLAIN = {
    str: _Rule(lambda value: isinstance(value, str), "a text (str)"),
    bytes: _Rule(lambda value: isinstance(value, bytes | bytearray | memoryview), "bytes"),
    int: _Rule(_is_whole, "a whole number (int)"),
    float: _Rule(_is_number, "a number of seconds"),
    bool: _Rule(lambda value: isinstance(value, bool), "True or False"),
    NoneType: _Rule(lambda value: value is None, "None"),
}
_TIME = _Rule(_is_time, "a number of seconds, from 0")


def _rule_of(annotation: Any, name: str = "") -> _Rule | None:
    """The rule of an annotation; None: any value is accepted."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is None:
        return _PLAIN[NoneType]
    if annotation is float and name in _SECONDS:
        return _TIME
    if origin is None:
        return _of_class(annotation)
    if origin in (Union, UnionType):
        return _any_of([_rule_of(part, name) for part in parts])
    if origin is Literal:
        words = ", ".join(map(repr, parts))
        return _Rule(_PLAIN[str].takes, words)
    if origin is Callable:
        return _Rule(callable, "a function")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _Rule(lambda value: isinstance(value, Mapping), "a dict")
    if isinstance(origin, type) and issubclass(origin, Iterable) and parts:
        return _sequence_of(parts[0])
    return None


def _of_class(annotation: Any) -> _Rule | None:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    is_class = isinstance(annotation, type) and annotation not in (Any, inspect.Parameter.empty)
    # For an enum the call checks the value, and its error names the possible ones.
    is_open = getattr(annotation, "_is_protocol", False) or annotation.__class__ is EnumType
    if not is_class or is_open:
        return None
    return _Rule(lambda value: isinstance(value, annotation), f"a {annotation.__name__}")


def _any_of(rules: list[_Rule | None]) -> _Rule | None:
    known = [rule for rule in rules if rule is not None]
    if len(known) < len(rules):
        return None
    *words, last = [rule.words for rule in known]
    takes = tuple(rule.takes for rule in known)
    return _Rule(lambda value: any(take(value) for take in takes), f"{', '.join(words)} or {last}")


def _sequence_of(entry: Any) -> _Rule:
    rule = None if entry in _NO_ENTRIES else _rule_of(entry)
    is_union = get_origin(entry) in (Union, UnionType)

    def takes(value: Any) -> bool:
        if isinstance(value, str | bytes):
            # The call refuses one text in place of a list, with a better error.
            return is_union
        if not isinstance(value, Iterable):
            return False
        # The client's own sequences are right, and other iterables may be read only once.
        is_plain = type(value) in (list, tuple)
        return not is_plain or rule is None or is_union or all(map(rule.takes, value))

    words = "a list" if rule is None or is_union else f"a list, each entry {rule.words}"
    return _Rule(takes, words)
