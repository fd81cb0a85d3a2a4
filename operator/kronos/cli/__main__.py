"""The commands of `kubectl kronos`, which is also `python -m kronos.cli`."""

from __future__ import annotations

import io
import sys

import typer

from kronos.cli.plan import plan

app = typer.Typer(
    help="Plan and watch the training jobs of Kronos.",
    no_args_is_help=True,
    # It would complete `kubectl-kronos`, which nobody types.
    add_completion=False,
    # A mistake in Kronos should look like one, not like a page of local variables.
    pretty_exceptions_enable=False,
)
app.command()(plan)


@app.callback()
def commands() -> None:
    """Plan and watch the training jobs of Kronos."""
    # Being here makes Typer ask for a command's name even while there is a single command.


def main() -> None:
    """Run the command that the arguments name."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character should show a question mark, not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="kubectl kronos")


if __name__ == "__main__":
    main()
