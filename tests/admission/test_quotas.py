"""The arithmetic of queues, written out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kronos.admission import Queue, Quota, RunningJob
from kronos.admission.quotas import Ledger

GPU = "nvidia.com/gpu"


def queue(
    name: str, nominal: int, borrowing: int | None = None, lending: int | None = None, **fields
) -> Queue:
    return Queue(name, quotas={GPU: Quota(nominal, borrowing, lending)}, **{"cohort": "lab", **fields})


def holding(name: str, accelerators: int, **fields) -> RunningJob:
    return RunningJob(("forge", f"in-{name}"), GPU, accelerators, queue=name, **fields)


def ledger(queues: list[Queue], **used: int) -> Ledger:
    return Ledger(
        {item.name: item for item in queues}, [holding(name, amount) for name, amount in used.items()]
    )


A64, B32 = queue("a", 64), queue("b", 32)


@pytest.mark.parametrize(
    ("queues", "used", "amount", "code", "missing"),
    [
        pytest.param([queue("a", 64, cohort="")], {"a": 56}, 8, None, 0, id="56 + 8 = 64"),
        pytest.param([queue("a", 64, cohort="")], {"a": 56}, 16, "QuotaExceeded", 8, id="56 + 16 = 64 + 8"),
        pytest.param([queue("a", 64, cohort="")], {}, 65, "ExceedsQuota", 1, id="65 > 64, whoever ends"),
        pytest.param([A64, B32], {"a": 64}, 32, None, 0, id="64 + 32 = 64 of its own + 32 borrowed"),
        pytest.param([A64, B32], {"a": 64}, 33, "CohortExhausted", 1, id="33 > 32 lent"),
        pytest.param([A64, B32], {"a": 0}, 97, "ExceedsQuota", 1, id="97 > 64 + 32"),
        pytest.param([queue("a", 64, borrowing=8), B32], {"a": 64}, 8, None, 0, id="64 + 8 <= 64 + 8"),
        pytest.param(
            [queue("a", 64, borrowing=8), B32],
            {"a": 64},
            9,
            "QuotaExceeded",
            1,
            id="64 + 9 > 64 + 8 it may borrow",
        ),
        pytest.param(
            [A64, queue("b", 32, lending=8)],
            {"a": 64},
            8,
            None,
            0,
            id="8 of b's 32 are lent, 8 are asked for",
        ),
        pytest.param(
            [A64, queue("b", 32, lending=8)],
            {"a": 64},
            9,
            "CohortExhausted",
            1,
            id="8 of b's 32 are lent, 9 asked for",
        ),
        pytest.param(
            [A64, B32], {"a": 64, "b": 24}, 8, None, 0, id="24 of 32 are used, the other 8 can be borrowed"
        ),
        pytest.param(
            [A64, B32], {"a": 64, "b": 24}, 16, "CohortExhausted", 8, id="24 of 32 are used: 8 are missing"
        ),
        pytest.param(
            [A64, B32], {"b": 64}, 32, None, 0, id="b has borrowed 32 of a's 64, the other 32 are left"
        ),
        pytest.param(
            [A64, B32],
            {"a": 40, "b": 56},
            8,
            "CohortExhausted",
            8,
            id="40 + 8 are its own, but 24 are borrowed by b",
        ),
        pytest.param(
            [A64, queue("b", 32, lending=8)],
            {"a": 64, "b": 24},
            8,
            None,
            0,
            id="b keeps 24 for itself and uses no more, so its 8 are free",
        ),
        pytest.param([Queue("a")], {"a": 1000}, 1000, None, 0, id="no quotas, no limits"),
        pytest.param([], {"a": 1000}, 1000, None, 0, id="not described, no limits"),
        pytest.param(
            [Queue("a", quotas={"example.com/other": Quota(8)})],
            {},
            1,
            "NoQuota",
            1,
            id="a quota for others only",
        ),
    ],
)
def test_over_quota(queues, used, amount, code, missing):
    found = ledger(queues, **used).over("a", GPU, amount)
    assert (found.reason if found else None) == code
    if found:
        assert found.missing == missing
        assert found.possible == (code in ("QuotaExceeded", "CohortExhausted"))


@pytest.mark.parametrize(
    ("used", "amount", "share"),
    [
        pytest.param({"a": 32}, 32, 0.0, id="within its 64"),
        pytest.param({"a": 64}, 24, 24 / 96, id="24 of a pool of 96"),
        pytest.param({"a": 72}, 16, 24 / 96, id="8 + 16 of a pool of 96"),
    ],
)
def test_share(used, amount, share):
    assert ledger([A64, B32], **used).share("a", GPU, amount) == share
    heavy = Queue("a", "lab", A64.quotas, weight=2.0)
    assert ledger([heavy, B32], **used).share("a", GPU, amount) == share / 2


@pytest.mark.parametrize(
    ("queues", "used", "amount", "message", "change"),
    [
        pytest.param(
            [queue("a", 64, cohort="")],
            {"a": 56},
            16,
            "needs 16 nvidia.com/gpu; the queue a would be 8 over its quota, since it uses 56 of 64",
            "the queue a to use 8 nvidia.com/gpu less",
            id="over its own",
        ),
        pytest.param(
            [A64, B32],
            {"a": 40, "b": 56},
            16,
            "needs 16 nvidia.com/gpu; the queue a has left 24 of its own quota, but others of the cohort lab have borrowed them",
            "the cohort lab to use 16 nvidia.com/gpu less",
            id="lent out",
        ),
        pytest.param(
            [A64, B32],
            {"a": 60, "b": 24},
            16,
            "needs 16 nvidia.com/gpu; the queue a has left 4 of its own quota and 8 to borrow in the cohort lab",
            "the cohort lab to use 4 nvidia.com/gpu less",
            id="nothing left to borrow",
        ),
        pytest.param(
            [queue("a", 64, cohort="")],
            {},
            80,
            "needs 80 nvidia.com/gpu, and the queue a may never use more than 64",
            "16 more nvidia.com/gpu in the quota of the queue a",
            id="never",
        ),
    ],
)
def test_what_is_said(queues, used, amount, message, change):
    found = ledger(queues, **used).over("a", GPU, amount)
    assert found is not None
    assert (found.message, found.change) == (message, change)


def test_a_job_that_stops_uses_no_quota_any_more():
    book = Ledger({"a": A64}, [holding("a", 64, stopping=True)])
    assert book.over("a", GPU, 64) is None


limit = st.none() | st.integers(0, 12)
queues = st.lists(
    st.tuples(st.integers(0, 12), limit, limit, st.sampled_from(["", "lab"])),
    min_size=1,
    max_size=4,
)


@given(queues, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), max_size=40))
@settings(deadline=None, max_examples=300)
def test_no_queue_is_ever_over_its_limits(shapes, steps):
    described = [
        queue(f"q{at}", nominal, borrowing, lending, cohort=cohort)
        for at, (nominal, borrowing, lending, cohort) in enumerate(shapes)
    ]
    book = ledger(described)
    running: list[tuple[str, int]] = []
    for which, amount, ends in steps:
        if ends and running:
            name, held = running.pop(0)
            book.take(name, GPU, -held)
            continue
        name = described[which % len(described)].name
        if book.over(name, GPU, amount) is None:
            book.take(name, GPU, amount)
            running.append((name, amount))
        drawn = pool = 0
        for item in described:
            quota, used = item.quotas[GPU], book.used(item.name, GPU)
            if not item.cohort:
                assert used <= quota.nominal
                continue
            if quota.borrowing is not None:
                assert used <= quota.nominal + quota.borrowing
            lent = quota.nominal if quota.lending is None else min(quota.lending, quota.nominal)
            pool += lent
            drawn += max(0, used - (quota.nominal - lent))
        assert drawn <= pool
