"""One member of the gang, once its plan and data are known to be good. Importing this module loads torch."""

from __future__ import annotations

import faulthandler
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from kronos.api.plan import PROGRESS_PORT, RENDEZVOUS_PORT, LastWords, Plan, Progress
from kronos_trainer import exits, log, worker
from kronos_trainer.failures import describe
from kronos_trainer.inputs import Settings, ranks_of_member
from kronos_trainer.log import logger
from kronos_trainer.mesh import position_of
from kronos_trainer.messages import Advanced, AtStep, Ended, Failure, Reporter
from kronos_trainer.processes import RankProcesses
from kronos_trainer.progress_server import ProgressServer
from kronos_trainer.rendezvous import Meeting, RendezvousError, meet, rank_store
from kronos_trainer.text import TextCorpus

_POLL_SECONDS = 0.2
_FIRST_CAUSE_SECONDS = 2.0
"""How long to look for the first cause when a failure looks like a consequence of another."""
_GRACE_SECONDS = 1.0
"""From SIGTERM to SIGKILL for the other ranks, once one has failed: there is nothing left to save."""
_LOST_MEETING_SECONDS = 30.0
"""How long ranks may go on when member 0 is gone; it is the last to end when all goes well."""


class _StoppedError(Exception):
    """Asked to stop before the ranks began."""


class Member:
    """Runs the ranks of one member and finds out how the attempt ended."""

    def __init__(self, settings: Settings, plan: Plan, corpus: TextCorpus, asked: Callable[[], bool]) -> None:
        self._settings = settings
        self._plan = plan
        self._corpus = corpus
        self._asked = asked
        """Whether this pod was asked to stop."""
        self._meeting: Meeting | None = None
        self._server: ProgressServer | None = None
        self._progress: Progress | None = None
        self._load_for_ranks()
        self._ranks = RankProcesses(ranks_of_member(plan, settings.member), self._run_rank)

    def run(self, deadline: float) -> tuple[int, LastWords]:
        """Meet the others by `deadline` (monotonic clock), train, and return the exit code and the last words."""
        try:
            self._serve_progress()
            try:
                self._meeting = meet(self._settings, self._plan, deadline, self._check_before_start)
            except RendezvousError as error:
                return exits.RENDEZVOUS_TIMED_OUT, LastWords(
                    outcome="Failed", error=f"The gang did not meet: {error}."
                )
            except _StoppedError:
                return exits.STOPPED, LastWords(outcome="Stopped")
            logger.info(
                "all %d members are here; starting %d ranks", len(self._plan.members), len(self._ranks.alive)
            )
            self._ranks.begin(self._meeting.address)
            return self._watch(self._meeting)
        finally:
            self._ranks.end(0)
            if self._meeting is not None:
                self._meeting.leave(_FIRST_CAUSE_SECONDS + _GRACE_SECONDS)
            if self._server is not None:
                self._server.stop()

    def _load_for_ranks(self) -> None:
        """Load once, before forking, what every rank would load later for this plan."""
        if self._plan.degrees.pipeline_parallel > 1:
            import_module("torch.distributed.pipelining")
        if self._plan.checkpoint is not None:
            import_module("torch.distributed.checkpoint")

    def _serve_progress(self) -> None:
        if self._settings.member != 0:
            return
        try:
            self._server = ProgressServer(self._settings.pod_ip, PROGRESS_PORT)
        except OSError as error:
            logger.info("progress can't be served on port %d: %s", PROGRESS_PORT, error)
        else:
            self._server.start()

    def _check_before_start(self) -> None:
        if self._asked():
            raise _StoppedError
        for message in self._ranks.poll(0):
            if isinstance(message, Failure):
                raise RuntimeError(f"rank {message.rank} ended before it began: {message.error}")

    def _watch(self, meeting: Meeting) -> tuple[int, LastWords]:
        told = False
        lost_since: float | None = None
        while self._ranks.alive:
            if self._asked() and not told:
                told = True
                logger.info("asked to stop: ranks end after the current step")
                self._ranks.ask_to_stop()
            for message in self._ranks.poll(_POLL_SECONDS):
                self._take(message)
            own = self._own_failures()
            if own:
                return self._fail(meeting, own)
            try:
                note = None if lost_since else meeting.failure()
            except RuntimeError:
                lost_since, note = time.monotonic(), None
            if note is not None and self._ranks.alive:
                return self._fail_after(note)
            if lost_since and time.monotonic() - lost_since > _LOST_MEETING_SECONDS:
                return self._conclude(Failure(rank=0, step=None, error="member 0 is gone", secondary=True))
        own = self._own_failures()
        if own:
            return self._fail(meeting, own)
        if any(isinstance(process.last, Ended) and process.last.stopped for process in self._ranks.processes):
            return exits.STOPPED, LastWords(outcome="Stopped", step=self._step(), progress=self._progress)
        return exits.COMPLETE, LastWords(outcome="Complete", step=self._step(), progress=self._progress)

    def _take(self, message: AtStep | Advanced | Ended | Failure) -> None:
        if isinstance(message, Advanced):
            self._progress = message.progress
            if self._server is not None:
                self._server.progress = message.progress

    def _own_failures(self) -> list[Failure]:
        return [process.last for process in self._ranks.processes if isinstance(process.last, Failure)]

    def _fail(self, meeting: Meeting, failures: list[Failure]) -> tuple[int, LastWords]:
        """A rank of this member failed: find out whether it was the first, tell the others, stop the rest."""
        deadline = time.monotonic() + _FIRST_CAUSE_SECONDS
        while all(failure.secondary for failure in failures) and time.monotonic() < deadline:
            try:
                note = meeting.failure()
            except RuntimeError:
                break  # Member 0 is gone; this member can't know more.
            if note is not None:
                return self._fail_after(note)
            for message in self._ranks.poll(0.1) if self._ranks.alive else ():
                self._take(message)
            if not self._ranks.alive:
                time.sleep(0.1)
            failures = self._own_failures()
        cause = min(failures, key=lambda failure: failure.secondary)
        if not cause.secondary:
            # Two members may fail on their own at once: the first note stands, and each tells its own story.
            with suppress(RuntimeError):
                meeting.note_failure(cause)
        return self._conclude(cause)

    def _fail_after(self, note: Failure) -> tuple[int, LastWords]:
        """Another member left a note that one of its ranks failed first."""
        error = f"rank {note.rank} failed first: {note.error}"
        return self._conclude(note.model_copy(update={"error": error, "trace": None, "secondary": True}))

    def _conclude(self, cause: Failure) -> tuple[int, LastWords]:
        self._ranks.end(_GRACE_SECONDS)
        words = LastWords(
            outcome="Failed",
            rank=cause.rank,
            step=cause.step,
            error=cause.error,
            trace=cause.trace,
            secondary=cause.secondary,
            progress=self._progress,
        )
        if self._asked():
            # Asked to stop, so the end was wanted; the words still tell what went wrong on the way.
            return exits.STOPPED, words.model_copy(update={"outcome": "Stopped"})
        if cause.secondary:
            return exits.PEER_FAILED, words
        return exits.BAD_INPUT if cause.user_error else exits.FAILED, words

    def _step(self) -> int | None:
        steps = [process.step for process in self._ranks.processes if process.step is not None]
        return min(steps, default=None)

    def _run_rank(self, rank: int, local_rank: int, wait: Callable[[], str], reporter: Reporter) -> int:
        """The life of a rank, in its own process."""
        log.configure(f"rank={rank}")
        state = worker.RankState()
        address = wait()
        if not address:
            return exits.STOPPED
        state.listen()
        faulthandler.enable()
        try:
            self._export(rank, local_rank, address)
            store = rank_store(address, self._plan.attempt, self._plan.collective_timeout_seconds)
            place = worker.Place(rank, local_rank, store)
            worker.train(self._plan, self._corpus, place, reporter, state)
        except Exception as error:
            failure = describe(error, traceback.format_exc(), rank, state.step)
            when = "before training" if state.step is None else f"after step {state.step}"
            logger.error("failed %s: %s\n%s", when, failure.error, failure.trace)
            reporter.send(failure)
            return exits.BAD_INPUT if failure.user_error else exits.FAILED
        return exits.COMPLETE

    def _export(self, rank: int, local_rank: int, address: str) -> None:
        """The variables that torch and user code expect: RANK is the rank in torch's process group."""
        os.environ.update(
            RANK=str(position_of(self._plan, rank)),
            LOCAL_RANK=str(local_rank),
            WORLD_SIZE=str(self._plan.world_size),
            LOCAL_WORLD_SIZE=str(self._plan.members[self._settings.member].ranks),
            MASTER_ADDR=address,
            MASTER_PORT=str(RENDEZVOUS_PORT),
        )
