"""How a member ends: exit codes, and the error that is the user's to fix."""

COMPLETE = 0
"""Training is complete."""
FAILED = 1
"""A rank of this member failed first; another attempt may succeed."""
BAD_INPUT = 2
"""The plan, the data or the checkpoint is wrong; another attempt fails the same way."""
PEER_FAILED = 3
"""This member ended because another member of the gang failed first."""
RENDEZVOUS_TIMED_OUT = 4
"""Not every member of the gang arrived in time."""
STOPPED = 143
"""Stopped by SIGTERM, with the state saved where a checkpoint is configured."""


class InputError(ValueError):
    """The plan, the data or a checkpoint can't be used; the message is one sentence for the person who wrote it."""
