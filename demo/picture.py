"""`python -m demo.picture`: run the demo and draw its terminal as docs/demo.svg.

The picture shows a real run on the machine it was made on, with its figures. It needs no font and
nothing else from the network.
"""

import io
import sys
from pathlib import Path

import anyio
import click
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from .__main__ import run
from .flights import ROWS
from .screen import Screen, tables

WIDTH = 84
PATH = Path(__file__).parent.parent / "docs" / "demo.svg"
THEME = TerminalTheme(
    (22, 27, 34),
    (201, 209, 217),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
    [
        *((110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (240, 246, 252)),
    ],
)
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>make demo: a leader is killed, and nothing is lost</title>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@click.command()
@click.option("--rows", type=click.IntRange(1_000, ROWS), default=ROWS, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=PATH, show_default=True)
def main(rows: int, output: Path) -> None:
    """Run the demo and write a picture of it."""
    screen = Screen(Console(stderr=True, force_terminal=True, width=WIDTH))
    report = anyio.run(run, rows, screen, None, backend="trio")
    if report is None or not report.holds:
        raise click.ClickException("there is nothing to show: the demo did not hold")
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.assemble(("$ ", "bold green"), ("make demo", "bold")), end="\n\n")
    for shown in screen.transcript:
        console.print(shown)
    console.print(tables(report))
    svg = console.export_svg(title="raftmq", theme=THEME, code_format=FORMAT, unique_id="demo")
    output.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    click.echo(f"wrote {output}", err=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
