"""Probes: alive as soon as there is a process, ready once it knows the cluster."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kronos.controller import wiring
from kronos.controller.__main__ import EXIT_NO_CLUSTER, EXIT_NO_PORT, main
from kronos.controller.api import Api
from kronos.controller.health import answering, listen
from kronos.controller.reconciler import Reconciler
from kronos.controller.wiring import Operator
from support.health import answer_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_it_is_alive_before_it_is_ready(host: str):
    reasons = ["the first full list is under way"]
    with listen(0) as listener:
        port = listener.getsockname()[1]
        async with answering(listener, lambda: "".join(reasons)):
            assert await asyncio.to_thread(answer_of, port, "/healthz", host) == (200, "ok")
            assert await asyncio.to_thread(answer_of, port, "/readyz", host) == (503, reasons[0])
            reasons.clear()
            assert await asyncio.to_thread(answer_of, port, "/readyz", host) == (200, "ok")


@pytest.mark.parametrize(
    ("list_age", "decided", "reason"),
    [
        pytest.param(None, False, "first full list", id="nothing listed yet"),
        pytest.param(0.0, False, "first round", id="nothing decided yet"),
        pytest.param(wiring._BLIND + 1, True, "no full list for more than 900 s", id="blind for long"),
        pytest.param(wiring._BLIND - 60, True, "", id="ready"),
    ],
)
def test_it_says_why_it_is_not_ready(list_age: float | None, decided: bool, reason: str):
    operator = Operator(progress_interval=1.0)
    if list_age is not None:
        operator.listed = time.monotonic() - list_age
        operator.reconciler = Reconciler(Api(None, None), operator.cache)
        operator.reconciler.last_round = datetime.now(UTC) if decided else None
    assert reason in operator.not_ready()
    assert bool(operator.not_ready()) == bool(reason)


def test_a_port_that_is_taken_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]):
    with listen(0) as taken:
        port = taken.getsockname()[1]
        assert main([f"--health-port={port}"]) == EXIT_NO_PORT
    assert capsys.readouterr().err.startswith(f"can't answer probes on port {port}: ")


def test_without_a_cluster_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main([]) == EXIT_NO_CLUSTER
    assert "no cluster to talk to" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "Forge", "-forge", "forge/x", "f" * 64])
def test_a_namespace_must_be_one(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([f"--namespace={name}"])
    assert "is no name of a namespace" in capsys.readouterr().err
