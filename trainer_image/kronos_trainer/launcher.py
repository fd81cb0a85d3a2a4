"""The launcher of one gang member: from its environment to an exit code and last words.

This module loads no torch: a wrong plan or missing data is told within a fraction of a second.
"""

from __future__ import annotations

import os
import signal
import time
import traceback

from kronos.api.plan import LastWords
from kronos_trainer import exits, last_words, log
from kronos_trainer.environment import prepare_environment
from kronos_trainer.exits import InputError
from kronos_trainer.failures import one_line
from kronos_trainer.inputs import read_plan, read_settings, termination_log
from kronos_trainer.log import logger
from kronos_trainer.text import open_corpus


class _StopRequest:
    """Remembers SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        def ask(*_: object) -> None:
            self.asked = True

        signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, ask)


def main() -> int:
    """Run one member as its environment says; returns the exit code (see `kronos_trainer.exits`)."""
    log.configure(f"member={os.environ.get('KRONOS_MEMBER', '0')}")
    request = _StopRequest()
    request.listen()
    try:
        code, words = _run(request)
    except InputError as error:
        code, words = exits.BAD_INPUT, LastWords(outcome="Failed", error=one_line(error))
    except Exception as error:
        trace = traceback.format_exc()
        code, words = exits.FAILED, LastWords(outcome="Failed", error=one_line(error), trace=trace)
    logger.info("%s%s (exit code %d)", words.outcome.lower(), f": {words.error}" if words.error else "", code)
    problem = last_words.write(termination_log(os.environ), words)
    if problem:
        logger.info(problem)
    return code


def _run(request: _StopRequest) -> tuple[int, LastWords]:
    started = time.monotonic()
    settings = read_settings(os.environ)
    plan = read_plan(settings)
    corpus = open_corpus(plan.data, plan.model.sequence_length)
    prepare_environment(os.environ, settings.pod_ip)
    # Imported here because it loads torch, whose libraries read the environment when they are loaded.
    from kronos_trainer.member import Member

    member = Member(settings, plan, corpus, lambda: request.asked)
    return member.run(started + plan.rendezvous_timeout_seconds)
