"""What a rank tells its launcher, as JSON lines through a pipe."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kronos.api.base import Model
from kronos.api.plan import Progress


class AtStep(Model):
    """A rank has done this many steps."""

    kind: Literal["step"] = "step"
    step: int


class Advanced(Model):
    """Progress of the gang, from rank 0."""

    kind: Literal["progress"] = "progress"
    progress: Progress


class Failure(Model):
    """A rank has failed; also the note that members leave for each other."""

    kind: Literal["failure"] = "failure"
    rank: int
    step: int | None
    """Steps done when it failed; None before the first one could begin."""
    error: str
    """One line."""
    trace: str | None = None
    secondary: bool = False
    """Whether the error looks like the consequence of another rank's failure."""
    user_error: bool = False
    """Whether the data or the checkpoint is at fault, so that another attempt would fail the same way."""


class Ended(Model):
    """A rank has ended well."""

    kind: Literal["ended"] = "ended"
    stopped: bool
    """True when it was asked to stop before the last step."""


Message = Annotated[AtStep | Advanced | Failure | Ended, Field(discriminator="kind")]
_MESSAGE: TypeAdapter[AtStep | Advanced | Failure | Ended] = TypeAdapter(Message)


class Reporter:
    """The rank's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, message: AtStep | Advanced | Failure | Ended) -> None:
        """Write one message; a launcher that is gone is no error here, since this process dies with it."""
        line = message.model_dump_json().encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except BrokenPipeError:
            pass


def parse(line: bytes) -> AtStep | Advanced | Failure | Ended:
    """The message in one line of the pipe."""
    return _MESSAGE.validate_json(line)
