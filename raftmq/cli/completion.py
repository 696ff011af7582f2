"""`raftmq completion`: print a shell's completion script."""

import sys

import click

_HOW = {
    "bash": 'add to ~/.bashrc:  eval "$(raftmq completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(raftmq completion zsh)"',
    "fish": "run:  raftmq completion fish > ~/.config/fish/completions/raftmq.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash: eval "$(raftmq completion bash)" in ~/.bashrc
    zsh:  eval "$(raftmq completion zsh)" in ~/.zshrc
    fish: raftmq completion fish > ~/.config/fish/completions/raftmq.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(ctx.find_root().command, {}, "raftmq", "_RAFTMQ_COMPLETE").source())
    if sys.stdout.isatty():
        click.echo(_HOW[shell], err=True)
