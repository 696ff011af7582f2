"""Write the generated parts of these pages: the reference from the code, the quotes in the tour.

    python docs/generate.py            rewrite what differs
    python docs/generate.py --check    change nothing; name what differs, exit status 1 if anything

| page | made of |
|---|---|
| `reference/settings.md` | the structs of `raftmq/broker/settings.py` |
| `reference/client.md` | the public names of `raftmq` |
| `reference/commands.md` | the help of each command |
| `reference/errors.md` | `raftmq/errors.py` |
| `reference/messages.md` | `raftmq/wire/`: `messages.py`, and what it names in its table |
| `reference/formats.md` | the headings of the modules that define bytes |
| `tour/*.md`, `chaos/*.md` | code below each `<!-- quote: FILE NAME -->` |

Invariants:
- The same code gives the same pages, on any machine.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
NOTE = "<!-- Written by docs/generate.py. Change the code, then `make docs`. -->\n\n"
SIGNATURE_COLUMNS = 88

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def pages() -> dict[Path, str]:
    """Every generated page and what it should hold."""
    reference = {
        "settings": settings_page(),
        "client": client_page(),
        "commands": commands_page(),
        "errors": errors_page(),
        "messages": messages_page(),
        "formats": formats_page(),
    }
    found = {DOCS / f"reference/{name}.md": NOTE + text for name, text in reference.items()}
    for path in sorted([*(DOCS / "tour").glob("*.md"), *(DOCS / "chaos").glob("*.md")]):
        found[path] = with_quotes(path.read_text())
    return found


# Reading the code


@cache
def module(path: str) -> ast.Module:
    """The parsed file."""
    return ast.parse((ROOT / path).read_text())


def docstring(node: ast.Module | Definition) -> str:
    """Its docstring; every documented thing has one."""
    text = ast.get_docstring(node)
    assert text, f"{getattr(node, 'name', node)} has no docstring"
    return text


def classes(path: str) -> list[ast.ClassDef]:
    """The public classes of a file, in its order."""
    return [
        node
        for node in module(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def definition(path: str, name: str) -> Definition:
    """A function, class or method by its dotted name."""
    body: list[ast.stmt] = module(path).body
    found: Definition | None = None
    for part in name.split("."):
        found = next(
            (node for node in body if isinstance(node, Definition) and node.name == part), None
        )
        assert found is not None, f"{path} has no {name}"
        body = found.body
    assert found is not None
    return found


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, docstring) of each field of a struct, named tuple or enum."""
    for item, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        match item:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                default = "" if value is None else ast.unparse(value)
                row = (name, ast.unparse(kind), default)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                row = (name, "", ast.unparse(value))
            case _:
                continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        if not name.startswith("_"):
            yield (*row, text)


# Writing Markdown


def markdown(text: str, *, level: int = 2) -> str:
    """A docstring as Markdown: examples fenced, sections as lists, blank lines where needed."""
    lines: list[str] = []
    is_example, section = False, ""
    for line in text.splitlines():
        label = re.fullmatch(r"(Args|Returns|Raises|Invariants.*|Left out|Sources):(.*)", line)
        if is_example != (line.startswith(">>>") or (is_example and bool(line.strip()))):
            is_example = not is_example
            lines.append("```python" if is_example else "```")
        if label and not is_example:
            section = label[1]
            lines += ["", f"**{label[1]}.**{label[2]}"]
            if not label[2]:
                lines.append("")
        elif section in ("Args", "Returns", "Raises") and line.startswith("    "):
            lines.append(_item(line))
        else:
            lines.append(line)
    if is_example:
        lines.append("```")
    return _spaced(lines)


def _item(line: str) -> str:
    """A line of an `Args`, `Returns` or `Raises` section as part of a list."""
    inner = line[4:]
    if inner.startswith(" "):
        return f"  {inner.strip()}"
    name, found, rest = inner.partition(": ")
    named = found and re.fullmatch(r"[\w, ]+", name)
    return f"- `{name}`: {rest}" if named else f"- {inner}"


def _spaced(lines: list[str]) -> str:
    """Blank lines before lists and tables, which not every Markdown needs."""
    spaced: list[str] = []
    for line in lines:
        before = spaced[-1] if spaced else ""
        for start in ("- ", "|"):
            opens = line.startswith(start) and not before.startswith(start)
            if opens and before.strip() and not before.startswith("  "):
                spaced.append("")
        spaced.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(spaced)).strip() + "\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell or '-' for cell in row)} |" for row in lines) + "\n"


def code(text: str) -> str:
    """As code within a table's cell; nothing for nothing."""
    if "|" in text:
        # Markdowns differ in how a bar is escaped inside code.
        return f"<code>{escape(text, quote=False).replace('|', '&#124;')}</code>"
    return f"`{text}`" if text else ""


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """How it is called, in a fenced block; one argument a line if it is long."""
    arguments = ast.unparse(node.args)
    parts = [_typed(part) for part in _split(arguments) if part not in ("self", "cls")]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    word = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{word}{name}({', '.join(parts)}){returns}"
    if len(line) > SIGNATURE_COLUMNS:
        inner = "".join(f"    {part},\n" for part in parts)
        line = f"{word}{name}(\n{inner}){returns}"
    return f"```python\n{line}\n```\n"


def _typed(argument: str) -> str:
    """With blanks around the default of an annotated argument, as people write it."""
    return re.sub(r"(?<![=!<>])=(?!=)", " = ", argument, count=1) if ":" in argument else argument


def _split(arguments: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(arguments[start:position].strip())
            start = position + 1
    return [*parts, arguments[start:].strip()] if arguments else []


# The pages


def settings_page() -> str:
    """Every setting of a node."""
    path = "raftmq/broker/settings.py"
    nodes = {node.name: node for node in classes(path)}
    constants = {
        ast.unparse(each.targets[0]): ast.unparse(each.value)
        for each in module(path).body
        if isinstance(each, ast.Assign)
    }
    tables = {name: kind for name, kind, _, _ in fields(nodes["Settings"])}
    parts = ["# Settings\n", markdown(docstring(module(path)))]
    parts.append(
        "A sample with every setting is in `deploy/node.toml`.\n"
        "`raftmq serve -c node.toml --set TABLE.NAME=VALUE` replaces one.\n"
    )
    for name, kind in [*tables.items(), ("peers and join", "Peer")]:
        heading = f"## `[{name}]`\n" if name in tables else "## An entry of `peers` and `join`\n"
        rows = [
            [code(field), plain_type(type_), code(sized(constants.get(default, default))), text]
            for field, type_, default, text in fields(nodes[kind])
        ]
        parts += [heading, docstring(nodes[kind]) + "\n"]
        parts.append(table(["setting", "value", "default", "meaning"], rows))
    parts.append("## What does not fit together\n")
    parts.append("The node does not start, and says so in these words, with the values:\n")
    parts.append(validations(path))
    return "\n".join(parts)


def plain_type(text: str) -> str:
    """A field's type in words.

    >>> plain_type("Annotated[int, Meta(ge=5, le=10000)]")
    'integer, 5 to 10,000'
    """
    known = {
        "Positive": "integer, from 1",
        "Port": "integer, 1 to 65,535",
        "bool": "true or false",
        "str": "text",
        "list[Peer]": "list of peers",
        "list[str]": "list of texts",
    }
    bounds = dict(re.findall(r"(ge|le|min_length|max_length)=([^,)]+)", text))
    if "int" in text and bounds:
        until = f" to {sized(bounds['le'])}" if "le" in bounds else ""
        start = f"from {sized(bounds['ge'])}" if not until else sized(bounds["ge"])
        return f"integer, {start}{until}"
    if bounds:
        return f"text, {bounds['min_length']} to {bounds['max_length']} characters"
    assert text in known, f"say in docs/generate.py what {text} is in words"
    return known[text]


def sized(text: str) -> str:
    """A number as people write it.

    >>> sized("64 * MIB"), sized("MIB"), sized("3 * 24 * 3600 * 1000"), sized("'127.0.0.1'")
    ('64 MiB', '1 MiB', '259,200,000', '"127.0.0.1"')
    """
    unit = re.fullmatch(r"(?:(\d+) \* )?([KMG])IB", text)
    if unit:
        return f"{unit[1] or 1} {unit[2]}iB"
    if re.fullmatch(r"[\d_* ]+", text):
        value = 1
        for factor in text.split("*"):
            value *= int(factor)
        return f"{value:,}" if value >= 10_000 else str(value)
    return text.replace("'", '"')


def validations(path: str) -> str:
    """What `validate` checks over several settings, in its own words."""
    rules = [
        call.args[1]
        for name in ("validate", "_validate_access")
        for call in ast.walk(definition(path, f"Settings.{name}"))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "_require"
    ]
    texts = [
        "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…"
            for part in (rule.values if isinstance(rule, ast.JoinedStr) else [rule])
        )
        for rule in rules
    ]
    return "".join(f"- {text.replace(' (…)', '').replace(': …', '')}\n" for text in texts)


def errors_page() -> str:
    """What a user may catch."""
    path = "raftmq/errors.py"
    parts = ["# Errors\n", markdown(docstring(module(path)))]
    for node in classes(path):
        parts += [f"## `{node.name}`\n", markdown(docstring(node))]
        if node.name == "Reason":
            rows = [
                [code(name), code(value.strip("'")), text] for name, _, value, text in fields(node)
            ]
            parts.append(table(["reason", "on the wire", "meaning"], rows))
    return "\n".join(parts)


def messages_page() -> str:
    """The messages of the native protocol."""
    names = ["messages", "fetches", "popping", "consumer_groups", "assignment"]
    names += ["producing", "traces", "access", "settings", "directory"]
    paths = [f"raftmq/wire/{name}.py" for name in names]
    paths.insert(3, "raftmq/pop/actions.py")  # after `popping`, whose items name the actions
    parts = [
        "# Messages of the protocol\n",
        *[markdown(docstring(module(path))) for path in paths],
        "The layout of a frame is among the [formats](formats.md).\n",
        "The same messages as CDDL: [wire.cddl](../wire.cddl).\n",
    ]
    for node in [node for path in paths for node in classes(path)]:
        parts += [f"## `{node.name}`\n", markdown(docstring(node))]
        rows = [list(row) for row in fields(node)]
        if node.name == "FrameKind":
            parts.append(table(["kind", "number"], [[code(row[0]), row[2]] for row in rows]))
        elif rows:
            cells = [
                [code(n), code(bounded(kind)), code(default), text]
                for n, kind, default, text in rows
            ]
            parts.append(table(["field", "type", "default", "meaning"], cells))
    return "\n".join(parts)


def bounded(kind: str) -> str:
    """The type of a message's field: of a number with a range also the range, of a list with a
    bound also the bound."""
    from raftmq.wire import numbers

    plain = re.sub(r"\bBounded\[(\w+)\]", r"list[\1]", kind)
    if plain != kind:
        return f"{plain}, up to {numbers.LIST_MAX:,}"
    alias = getattr(numbers, kind, None)
    if alias is None:
        return kind
    (bounds,) = alias.__metadata__
    return f"int >= {bounds.ge}" if bounds.le is None else f"int, {bounds.ge} to {bounds.le}"


FORMATS = {
    "A frame on a connection": "raftmq/wire/frame.py",
    "A batch": "raftmq/batch/layout.py",
    "A record": "raftmq/log/record.py",
    "A segment file": "raftmq/log/segment.py",
    "A snapshot file": "raftmq/log/snapshot.py",
    "An index file": "raftmq/log/index_file.py",
}


def formats_page() -> str:
    """Every byte layout, as its module's heading has it."""
    parts = [
        "# Formats\n",
        "The bytes on connections and disks, from the headings of the modules that define them.\n",
    ]
    for title, path in FORMATS.items():
        parts += [f"## {title}\n", f"`{path}`\n", markdown(docstring(module(path)))]
    return "\n".join(parts)


def client_page() -> str:
    """The public names of `raftmq`."""
    import raftmq.client

    parts = [
        "# The client\n",
        "`raftmq.blocking.connect` gives the same names without `await`.\n",
        (
            "Every call takes `timeout=` in seconds; None means the one given to `connect`.\n"
            "`fetch` and `pop` take `wait=` instead: how long they wait for messages.\n"
        ),
    ]
    names = [name for name in raftmq.client.__all__ if name not in ("format_id", "parse_id")]
    first = ["connect", "Client", "Producer", "Consumer", "PopConsumer", "Admin"]
    first += ["Message", "Messages", "PoppedMessage", "PoppedMessages"]
    for name in [*first, *(name for name in names if name not in first)]:
        home = getattr(raftmq.client, name).__module__
        path = home.replace(".", "/") + ".py"
        parts.append(described(definition(path, name)))
    return "\n".join(parts)


def described(node: Definition) -> str:
    """A public function or class with its methods, properties and fields."""
    parts = [f"## `{node.name}`\n"]
    if not isinstance(node, ast.ClassDef):
        return "\n".join([*parts, signature(node, node.name), markdown(docstring(node))])
    parts.append(markdown(docstring(node)))
    import raftmq.client

    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    shown = [code(base) for base in bases if base in raftmq.client.__all__]
    if shown:
        parts.append(f"It has all that {' and '.join(shown)} has.\n")
    rows = [[code(n), code(kind), text] for n, kind, _, text in fields(node) if text]
    inherited = [
        item
        for kind in getattr(raftmq.client, node.name, type(None)).__mro__[1:-1]
        if kind.__module__.startswith("raftmq.") and kind.__name__ not in raftmq.client.__all__
        for item in definition(kind.__module__.replace(".", "/") + ".py", kind.__name__).body
    ]
    methods = [
        item
        for item in [*node.body, *inherited]
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        and not item.name.startswith("_")
        and not (ast.get_docstring(item) or "").startswith("Internal: ")
    ]
    for item in methods:
        if any(ast.unparse(mark) == "property" for mark in item.decorator_list):
            assert item.returns is not None
            text = " ".join(docstring(item).split())
            rows.append([code(item.name), code(ast.unparse(item.returns)), text])
    if rows:
        parts.append(table(["attribute", "type", "meaning"], rows))
    for item in methods:
        if not item.decorator_list:
            parts.append(f"### `{node.name}.{item.name}`\n")
            parts += [signature(item, item.name), markdown(docstring(item))]
    return "\n".join(parts)


def commands_page() -> str:
    """The help of every command."""
    import click

    from raftmq.cli.app import cli

    parts = ["# Commands\n", markdown(docstring(module("raftmq/cli/exits.py")))]

    def add(command: click.Command, path: str) -> None:
        context = click.Context(command, info_name=path, terminal_width=88)
        context.max_content_width = 88
        parts.append(f"## `{path}`\n")
        parts.append(f"```text\n{command.get_help(context).rstrip()}\n```\n")
        if isinstance(command, click.Group):
            add_all(command, context, path)

    def add_all(group: click.Group, context: click.Context, path: str) -> None:
        for name in group.list_commands(context):
            child = group.get_command(context, name)
            assert child is not None
            add(child, f"{path} {name}")

    add_all(cli, click.Context(cli), "raftmq")
    return "\n".join(parts)


QUOTE = re.compile(r"(<!-- quote: (\S+) (\S+) -->\n)(```python\n.*?\n```\n)?", re.DOTALL)


def with_quotes(text: str) -> str:
    """The page with the code that each of its marks names."""

    def fill(found: re.Match[str]) -> str:
        node = definition(found[2], found[3])
        lines = (ROOT / found[2]).read_text().splitlines()
        assert node.end_lineno is not None
        # A marker says how a test is run; other decorators are left out.
        first = min(
            [node.lineno, *(m.lineno for m in node.decorator_list if "mark" in ast.dump(m))]
        )
        body = lines[first - 1 : node.end_lineno]
        body = [line.removeprefix(" " * node.col_offset) for line in body]
        return f"{found[1]}```python\n" + "\n".join(body) + "\n```\n"

    return QUOTE.sub(fill, text)


def main(arguments: list[str]) -> int:
    """Rewrite or check; the exit status."""
    differ = []
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            differ.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    for path in differ:
        sys.stdout.write(f"{path}\n")
    return 1 if differ and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
