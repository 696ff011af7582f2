"""Readers of histories that other tools wrote.

| format | looks like |
|---|---|
| Jepsen's log | `INFO  jepsen.util - 3 :invoke :cas [1 2]`, or `3 :ok :read 2` alone |
| EDN | `{:process 3, :type :invoke, :f :get, :key "7", :value nil}`, a map a line or one vector |
| Parquet | ours, see `history` |

In a Jepsen log of a register, `:fail :cas` is an answer: the register held another value. Any
other `:fail` means that the operation did not happen, `:info` that its outcome is unknown;
`:timed-out` is never a value. In EDN every `:fail` means that the operation did not happen.
Processes that are no numbers (the nemesis) and other lines of Jepsen's are passed over, but at
least one line must be an operation.

Invariants:
- Either the whole file is understood or `NotAHistory` says which line is not.

Sources: the test data of Porcupine and Knossos; the EDN specification (edn-format/edn).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from .history import History, NotAHistory, Recorder, Value, read_parquet

Form: TypeAlias = "Value | dict[Value, Form] | list[Form]"

TIMED_OUT = ":timed-out"
_PARQUET_MAGIC = b"PAR1"
_LOG_LINE = re.compile(
    r"^(?:.*(?:\s-|jepsen\.util:)\s+)?(?P<process>-?\d+|:[\w-]+)\s+:(?P<type>invoke|ok|fail|info)\s+"
    r":(?P<function>[\w-]+)(?:\s+(?P<rest>.*))?$"
)
_TOKEN = re.compile(
    r"""[\s,]*(?:;[^\n]*\n[\s,]*)*(?P<token>"(?:\\.|[^"\\])*"|\#\{|[\[\](){}]|[^\s,\[\](){}"]+|$)"""
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_CLOSING = {"[": "]", "(": ")", "{": "}", "#{": "}"}


def read_history(path: str | Path) -> History:
    """Load a history of any format known here.

    Raises:
        NotAHistory: the format is not known, or a line does not fit it.
    """
    path = Path(path)
    raw = path.read_bytes()
    if raw.startswith(_PARQUET_MAGIC):
        return read_parquet(path)
    try:
        text = raw.decode()
    except UnicodeDecodeError as problem:
        raise NotAHistory(f"{path} is neither Parquet nor text") from problem
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return Recorder().history()
    # Comments of EDN may come first.
    first = next((line.lstrip() for line in lines if not line.lstrip().startswith(";")), ";")
    if first[0] in "{[#(;":
        return _from_maps(path, text)
    return _from_log(path, lines)


class _Builder:
    """Feeds events of processes, which have one operation at a time, to a recorder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now = 0
        self._recorder = Recorder(clock=self._tick)
        self._pending: dict[int, tuple[int, str]] = {}

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def event(
        self, where: str, process: int, kind: str, function: str, key: str | None, value: Value
    ) -> None:
        if kind == "invoke":
            if process in self._pending:
                raise NotAHistory(f"{self._path}, {where}: process {process} is busy already")
            operation = self._recorder.invoke(process, function, key, value)
            self._pending[process] = operation, function
            return
        operation, began = self._pending.pop(process, (-1, ""))
        if began != function:
            raise NotAHistory(f"{self._path}, {where}: :{kind} :{function} ends no such operation")
        if kind == "ok":
            self._recorder.ok(operation, value=value)
        elif kind == "fail":
            self._recorder.fail(operation)
        else:
            self._recorder.unknown(operation)

    def history(self) -> History:
        return self._recorder.history()


def _from_log(path: Path, lines: list[str]) -> History:
    builder, used = _Builder(path), 0
    for number, line in enumerate(lines, 1):
        match = _LOG_LINE.match(line)
        if match is None:
            # Jepsen's logs have other lines between; a list of operations alone has none.
            if " - " in line or "jepsen." in line or line.startswith((" ", "\t")):
                continue
            raise NotAHistory(f"{path}, line {number} is no operation: {line[:80]!r}")
        if match["process"].startswith(":"):
            continue
        kind, function = match["type"], match["function"]
        forms = list(_forms(match["rest"] or "", path, f"line {number}"))
        value = _value(forms[0], path, f"line {number}") if forms else None
        if kind == "fail" and function == "cas" and TIMED_OUT not in forms:
            # The answer of the register: it held another value than the one to replace.
            kind, value = "ok", False
        value = None if value == TIMED_OUT else value
        builder.event(f"line {number}", int(match["process"]), kind, function, None, value)
        used += 1
    if not used:
        raise NotAHistory(f"{path}: no line is an operation in a format known here")
    return builder.history()


def _from_maps(path: Path, text: str) -> History:
    builder = _Builder(path)
    forms = list(_forms(text, path, "as EDN"))
    if len(forms) == 1 and isinstance(forms[0], list):
        forms = forms[0]
    for number, form in enumerate(forms, 1):
        where = f"operation {number}"
        if not isinstance(form, dict) or not {":process", ":type", ":f"} <= form.keys():
            raise NotAHistory(f"{path}, {where} is no map with :process, :type and :f")
        process, kind, function = form[":process"], form[":type"], form[":f"]
        if not isinstance(process, int):
            continue
        if kind not in (":invoke", ":ok", ":fail", ":info") or not isinstance(function, str):
            raise NotAHistory(f"{path}, {where}: :type {kind!r} or :f {function!r} is unknown")
        key = form.get(":key")
        value = _value(form.get(":value"), path, where)
        value = None if value == TIMED_OUT else value
        name = None if key is None else str(_value(key, path, where))
        builder.event(where, process, str(kind)[1:], function.lstrip(":"), name, value)
    return builder.history()


def _value(form: Form, path: Path, where: str) -> Value:
    """A form as a value: vectors as tuples."""
    if isinstance(form, list):
        return tuple(_value(one, path, where) for one in form)
    if isinstance(form, dict):
        raise NotAHistory(f"{path}, {where}: a map is no value that a model knows")
    return form


def _forms(text: str, path: Path, where: str) -> Iterator[Form]:
    """The EDN forms of a text."""
    tokens = (match["token"] for match in _TOKEN.finditer(text))
    try:
        for token in tokens:
            if token:
                yield _form(token, tokens)
    except (StopIteration, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise NotAHistory(f"{path}, {where}: not EDN: {problem}") from problem


def _form(token: str, tokens: Iterator[str]) -> Form:
    if token in _CLOSING:
        items: list[Form] = []
        for inner in tokens:
            if inner == _CLOSING[token]:
                return _collection(token, items)
            if not inner:
                break
            items.append(_form(inner, tokens))
        raise ValueError(f"{token} is never closed")
    if token.startswith("#"):
        # A tag names the type for other programs; the value alone is enough here.
        return _form(next(tokens), tokens)
    return _atom(token)


def _collection(opening: str, items: list[Form]) -> Form:
    if opening != "{":
        return items
    if len(items) % 2:
        raise ValueError("a map has a key without a value")
    keys = items[::2]
    if any(isinstance(key, list | dict) for key in keys):
        raise ValueError("a map has a collection as a key")
    return dict(zip(keys, items[1::2], strict=True))  # type: ignore[arg-type]


def _atom(token: str) -> Value:
    if token.startswith('"'):
        return re.sub(r"\\(.)", lambda match: _ESCAPES[match[1]], token[1:-1], flags=re.DOTALL)
    constants = {"nil": None, "true": True, "false": False}
    if token in constants:
        return constants[token]
    if re.fullmatch(r"[+-]?\d+[NM]?", token):
        return int(token.rstrip("NM"))
    if re.fullmatch(r"[+-]?\d+\.\d*(?:[eE][+-]?\d+)?M?", token):
        return float(token.rstrip("M"))
    if token.startswith(":") or re.fullmatch(r"[A-Za-z_*!?$%&=<>.+/-][\w*!?$%&=<>.+/#:-]*", token):
        return token
    raise ValueError(f"{token!r} is no EDN")
