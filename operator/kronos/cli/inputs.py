"""Reading what a command was pointed at, and ending it with sentences rather than with a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from kronos.cli.complaints import InputError

BAD_INPUT = 2
"""Exit code when what was given can't be used; the same as that of wrong options."""
MOST_SENTENCES = 20
"""Mistakes that are told at once."""
STDIN = "-"


def read_text(source: str) -> str:
    """The text of a file, or of standard input for `-`; InputError when there is none to read."""
    try:
        # Some editors begin a file with a byte order mark.
        if source == STDIN:
            if sys.stdin is None:
                raise InputError("standard input is closed; give a file with a manifest")
            return sys.stdin.buffer.read().decode("utf-8-sig")
        return Path(source).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{name_of(source)} is no text in UTF-8; give a manifest in YAML") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{name_of(source)} can't be read ({reason}); give a file with a manifest") from None


def name_of(source: str) -> str:
    """How sentences call a source."""
    return "standard input" if source == STDIN else source


def tell(sentence: str) -> None:
    """Say something beside the output."""
    # Half a character, which YAML can hold and no output can, is spelt out.
    typer.echo(sentence.encode(errors="backslashreplace").decode(), err=True)


@contextmanager
def explained() -> Iterator[None]:
    """Turns an InputError into its sentences and exit code 2."""
    try:
        yield
    except InputError as error:
        for sentence in error.sentences[:MOST_SENTENCES]:
            tell(f"error: {sentence}")
        if len(error.sentences) > MOST_SENTENCES:
            tell(f"error: and {len(error.sentences) - MOST_SENTENCES} more; correct these first")
        raise typer.Exit(BAD_INPUT) from None
