"""The commands of `kubectl kronos`, which is also `python -m kronos.cli`."""

from __future__ import annotations

import io
import os
import sys

import typer

from kronos.cli.inputs import tell
from kronos.cli.plan import plan
from kronos.cli.simulate import simulate_trace

app = typer.Typer(
    help="Plan training jobs of Kronos, and try clusters out.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    # It would complete `kubectl-kronos`, which nobody types.
    add_completion=False,
    # A mistake in Kronos should look like one, not like a page of local variables.
    pretty_exceptions_enable=False,
)
app.command()(plan)
app.command("simulate")(simulate_trace)


@app.callback()
def commands() -> None:
    """Plan training jobs of Kronos, and try clusters out."""
    # Being here makes Typer ask for a command's name even while there is a single command.


UNWRITTEN = 1
"""Exit code when the answer couldn't be written."""


def main() -> None:
    """Run the command that the arguments name."""
    if sys.stdout is None or sys.stderr is None:
        # Nobody would see the answer, or what is wrong.
        sys.exit(UNWRITTEN)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character should show a question mark, not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            app(prog_name="kubectl kronos")
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Commands turn what they can't read into sentences themselves, so it is the answer that had no place to go.
        tell(f"error: the answer can't be written ({error.strerror or error}); write it somewhere else")
        # What is left in the buffer would be tried again at exit, and end in a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(UNWRITTEN)


if __name__ == "__main__":
    main()
