"""Which pods are asked about, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kronos.controller.api import ApiError
from kronos.controller.cache import Cache
from kronos.controller.warnings import WarningPoller, is_late, latest
from kronos.lifecycle import PodView, PodWarning

LATE = PodView("forge", "burner-1-0", "uid", "Pending", "node-a", {}, "job", 1, 0)
MOUNT = {"reason": "FailedMount", "message": "no volume", "lastTimestamp": "2026-03-01T12:00:05Z"}


class Events:
    """An API server that holds events only."""

    def __init__(self, *answers: Sequence[dict] | ApiError) -> None:
        self.answers, self.asked = list(answers), 0

    async def warnings_about(self, namespace: str, uid: str) -> Sequence[dict]:
        assert (namespace, uid) == ("forge", "uid")
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def poller(events: Events) -> tuple[WarningPoller, Cache, list[None]]:
    cache, news = Cache(), []
    cache.pods.views["forge", "burner-1-0"] = LATE
    return WarningPoller(events, cache, lambda: news.append(None)), cache, news  # type: ignore[arg-type]


async def test_only_pods_that_are_late_twice_are_asked_about_and_only_news_is_told():
    events = Events([MOUNT], [MOUNT])
    watch, cache, news = poller(events)
    await watch.look()
    assert events.asked == 0
    await watch.look()
    await watch.look()
    assert (events.asked, len(news)) == (2, 1)
    assert cache.warnings == {"uid": PodWarning("FailedMount", "no volume")}


async def test_a_pod_that_begins_has_no_warning_any_more():
    watch, cache, _ = poller(Events([MOUNT]))
    await watch.look()
    await watch.look()
    cache.pods.views.clear()
    await watch.look()
    assert cache.warnings == {}


async def test_an_api_server_that_refuses_is_no_end():
    watch, cache, news = poller(Events(ApiError(403, "no"), [MOUNT]))
    for _ in range(3):
        await watch.look()
    assert (len(cache.warnings), len(news)) == (1, 1)


def test_only_members_on_a_node_that_say_nothing_are_late():
    assert is_late(LATE)
    for change in (
        {"member": -1},
        {"node": ""},
        {"phase": "Running"},
        {"waiting": "ErrImagePull"},
        {"deleting": True},
    ):
        assert not is_late(replace(LATE, **change)), change


def test_the_latest_warning_counts_whatever_kind_of_time_it_has():
    old = MOUNT | {"message": "old", "lastTimestamp": "2026-03-01T12:00:01Z"}
    series = {
        "reason": "Odd",
        "message": "new",
        "series": {"lastObservedTime": "2026-03-01T12:00:09.000001Z"},
    }
    scheduler = {"reason": "FailedScheduling", "message": "full", "eventTime": "2026-03-01T12:01:00.000001Z"}
    assert latest([old, MOUNT, scheduler]) == PodWarning("FailedMount", "no volume")
    assert latest([series, old, MOUNT]) == PodWarning("Odd", "new")
    assert latest([scheduler]) is None
    assert latest([]) is None
