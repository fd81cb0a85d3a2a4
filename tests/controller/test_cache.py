"""The cache never goes back to older knowledge and never keeps what is gone."""

from __future__ import annotations

from typing import Any

from kronos.controller.cache import Store


def raw(name: str, version: int, uid: str = "1") -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}}


def version_of(document: Any) -> int:
    return int(document["metadata"]["resourceVersion"])


def test_an_older_version_never_replaces_a_newer_one():
    store = Store(version_of)
    assert store.put(raw("a", 10))
    assert not store.put(raw("a", 9))
    assert store.views["n", "a"] == 10


def test_versions_compare_as_numbers():
    store = Store(version_of)
    store.put(raw("a", 99))
    assert store.put(raw("a", 100))


def test_the_late_deletion_of_a_predecessor_does_not_remove_its_successor():
    store = Store(version_of)
    store.put(raw("a", 10, uid="2"))
    assert not store.remove(raw("a", 9, uid="1"))
    assert store.remove(raw("a", 11, uid="2"))
    assert store.views == {}


def test_an_answer_that_is_slower_than_the_watch_does_not_bring_back_what_is_gone():
    store = Store(version_of)
    store.put(raw("a", 10))
    store.remove(raw("a", 12))
    assert not store.put(raw("a", 11))
    assert not store.put(raw("a", 12))
    assert store.views == {}
    assert store.put(raw("a", 13, uid="2")), "another object of the same name"


def test_what_a_full_list_has_dropped_does_not_come_back_either():
    store = Store(version_of)
    store.put(raw("a", 10))
    store.replace([], version=20)
    assert not store.put(raw("a", 11))


def test_a_full_list_drops_what_is_gone_and_keeps_what_is_newer_than_the_list():
    store = Store(version_of)
    for name, version in (("gone", 5), ("kept", 6), ("newer", 30)):
        store.put(raw(name, version, uid=name))
    assert store.replace([raw("kept", 6, uid="kept"), raw("new", 7, uid="new")], version=20)
    assert sorted(name for _, name in store.views) == ["kept", "new", "newer"]


def test_an_object_that_makes_no_sense_is_left_out_and_the_others_stay():
    def fussy(document: Any) -> int:
        if document["metadata"]["name"] == "bad":
            raise ValueError("no sense")
        return version_of(document)

    store = Store(fussy)
    store.put(raw("bad", 1, uid="bad"))
    store.put(raw("good", 2, uid="good"))
    assert list(store.views) == [("n", "good")]


def spec_of(document: Any) -> Any:
    return document.get("spec")


def test_a_newer_version_in_which_decisions_see_nothing_new_is_no_news():
    store = Store(spec_of)
    assert store.put({**raw("a", 10), "spec": 1})
    assert not store.put({**raw("a", 11), "spec": 1})
    assert store.raw["n", "a"]["metadata"]["resourceVersion"] == "11", "writes need the version"
    assert store.put({**raw("a", 12), "spec": 2})


def test_what_we_wrote_is_completed_by_the_same_version_and_by_no_older_one():
    store = Store(spec_of)
    store.put({**raw("a", 10), "spec": "written"}, partial=True)
    assert not store.put({**raw("a", 9), "spec": "older"})
    assert store.put({**raw("a", 10), "spec": "completed"})
    assert not store.put({**raw("a", 10), "spec": "written"}, partial=True)
    assert store.views["n", "a"] == "completed"
