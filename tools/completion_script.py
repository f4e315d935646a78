"""`pocketmq completion`: prints the script with which a shell completes verbs, options and choices."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_HOW = """
Add one of these lines to the start file of your shell:

\b
  bash   eval "$(pocketmq completion bash)"     in ~/.bashrc
  zsh    eval "$(pocketmq completion zsh)"      in ~/.zshrc
  fish   pocketmq completion fish | source      in ~/.config/fish/config.fish
"""


@click.command(epilog=_HOW)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    The shell then completes verbs, options, and names of topics and groups.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    click.echo(kind(root, {}, "pocketmq", "_POCKETMQ_COMPLETE").source())
