"""docs/wire.cddl agrees with the structs: a rule for each message, word for word."""

import re
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import pytest

from raftmq.batch import Flag, PropertyKind
from raftmq.batch.columns import F64, I32, I64, U8, U16, U32
from raftmq.wire import (
    access,
    assignment,
    consumer_groups,
    directory,
    fetches,
    messages,
    popping,
    producing,
    raft,
    settings,
    traces,
)
from raftmq.wire.messages import FrameKind

SPECIFICATION = (Path(__file__).parents[2] / "docs" / "wire.cddl").read_text()
PLAIN = {int: "int", str: "tstr", bytes: "bstr", bool: "bool", float: "float", NoneType: "nil"}
STRUCTS = {
    type_.__name__: type_
    for module in (
        messages,
        access,
        fetches,
        popping,
        consumer_groups,
        assignment,
        directory,
        producing,
        settings,
        traces,
        raft,
    )
    for type_ in vars(module).values()
    if isinstance(type_, type)
    and issubclass(type_, msgspec.Struct)
    and type_.__module__ == module.__name__
    and not type_.__name__.startswith("_")
}


def rule_name(type_: type) -> str:
    """FetchFrom → fetch-from."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type_.__name__).lower()


def type_rule(type_: Any) -> str:
    """A field's type in CDDL."""
    if type_ is Any:
        return "any"
    if get_origin(type_) is Annotated:
        bare, bounds = get_args(type_)
        if bare is str:
            return "tstr"
        if get_origin(bare) is list:
            return f"[*{bounds.max_length} {type_rule(get_args(bare)[0])}]"
        return f"{bounds.ge}..{bounds.le}" if bounds.le is not None else f"int .ge {bounds.ge}"
    if type_ in PLAIN:
        return PLAIN[type_]
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return rule_name(type_)
    if get_origin(type_) is list:
        return f"[* {type_rule(get_args(type_)[0])}]"
    if get_origin(type_) is Literal:
        return " / ".join(f'"{each}"' for each in get_args(type_))
    if get_origin(type_) is dict:
        key, value = map(type_rule, get_args(type_))
        return f"{{* {key} => {value}}}"
    return " / ".join(map(type_rule, get_args(type_)))


def struct_rule(type_: type[msgspec.Struct]) -> str:
    """The rule of a message: its fields in order, then fields of later versions."""
    lines = [f"{rule_name(type_)} = ["]
    if type_.__struct_config__.tag is not None:
        lines.append(f'  "{type_.__struct_config__.tag}",')
    for field in msgspec.structs.fields(type_):
        optional = "" if field.required else "? "
        lines.append(f"  {optional}{field.encode_name}: {type_rule(field.type)},")
    return "\n".join([*lines, "  * any,", "]"])


@pytest.mark.parametrize("name", STRUCTS)
def test_specification_has_the_rule_of_each_message(name: str) -> None:
    rule = struct_rule(STRUCTS[name])
    assert f"\n{rule}\n" in SPECIFICATION, f"put this into docs/wire.cddl:\n{rule}"


def test_specification_has_no_other_messages() -> None:
    start = SPECIFICATION.index("; == Messages")
    rules = set(re.findall(r"^([a-z-]+) = \[$", SPECIFICATION[start:], re.MULTILINE))
    assert rules == {rule_name(type_) for type_ in STRUCTS.values()}


@pytest.mark.parametrize("kind", FrameKind)
def test_specification_lists_each_kind_of_frame(kind: FrameKind) -> None:
    assert re.search(rf"^; \| +{kind.value} \| {kind.name} +\|", SPECIFICATION, re.MULTILINE)


def test_every_rule_that_is_used_is_defined() -> None:
    code = re.sub(r'"[^"]*"', "", re.sub(r";.*", "", SPECIFICATION))
    defined = set(re.findall(r"^([a-z][a-z0-9-]*) =", code, re.MULTILINE))
    without_names = re.sub(
        r"[a-z_0-9]+:", "", re.sub(r"^[a-z0-9-]+ =", "", code, flags=re.MULTILINE)
    )
    used = set(re.findall(r"(?<![.#\w-])[a-z][a-z0-9-]*", without_names))
    builtin = {"int", "uint", "tstr", "bstr", "bool", "float", "nil", "any"}
    assert used - defined - builtin == set()


def test_typed_arrays_have_the_tags_of_the_code() -> None:
    tags = {"u8": U8, "u16": U16, "u32": U32, "i32": I32, "i64": I64, "f64": F64}
    for name, tag in tags.items():
        assert f"\n{name}-vector = #6.{tag}(bstr)\n" in SPECIFICATION


def test_flags_and_kinds_of_properties_are_listed() -> None:
    for flag in Flag:
        assert re.search(rf"^; \| +{flag.value} \| {flag.name} ", SPECIFICATION, re.MULTILINE)
    for kind in PropertyKind:
        name = kind.name.lower().replace("_", "-")
        assert f"; {kind.value}: {name}" in SPECIFICATION
