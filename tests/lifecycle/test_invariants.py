"""The design's invariants under random histories: faults, foreign tenants, and an operator that dies anywhere."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kronos.api.job import TrainingJobSpec
from kronos.api.plan import LastWords
from kronos.lifecycle import Decision, PodView, decide, run_admission
from support.worlds import SLOT, World, job

NODES = ("a0", "a1", "b0", "b1")
JOBS = tuple(f"job{index}" for index in range(4))
SIZES = st.sampled_from([1, 4, 6, 9, 12])


class Lives(RuleBasedStateMachine):
    """Jobs of all sizes on sixteen slots, with everything going wrong that can."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.finished: dict[str, str] = {}

    # --- what people and other tenants do

    @initialize(sizes=st.lists(SIZES, min_size=3, max_size=3), limit=st.integers(0, 2))
    def some_jobs_are_there(self, sizes: list[int], limit: int) -> None:
        for name, ranks in zip(JOBS, sizes, strict=False):
            self.submit(name, ranks, limit)

    @rule(name=st.sampled_from(JOBS), ranks=SIZES, limit=st.integers(0, 2))
    def submit_another(self, name: str, ranks: int, limit: int) -> None:
        self.submit(name, ranks, limit)

    def submit(self, name: str, ranks: int, limit: int) -> None:
        if ("forge", name) not in self.world.jobs:
            item = job(
                name,
                created=len(self.world.jobs),
                accelerators={"resource": SLOT, "min": ranks, "max": ranks},
                restart={"backoffLimit": limit},
                scheduling={"startTimeout": "1m"},
            )
            self.world.jobs[item.key] = item

    @rule(name=st.sampled_from(JOBS), suspend=st.booleans())
    def suspend(self, name: str, suspend: bool) -> None:
        self.set_suspend(name, suspend=suspend)

    @rule(name=st.sampled_from(JOBS[:1]))
    def delete_job(self, name: str) -> None:
        item = self.world.jobs.pop(("forge", name), None)
        if item is not None:
            # The garbage collector follows the owner references.
            self.world.pods = {k: pod for k, pod in self.world.pods.items() if pod.owner_uid != item.uid}
            self.finished.pop(name, None)

    @rule(node=st.sampled_from(NODES), slots=st.integers(1, 4))
    def a_foreign_pod_is_bound(self, node: str, slots: int) -> None:
        if self.bound(node) + slots <= 4:
            self.world.serial += 1
            name = f"foreign-{self.world.serial}"
            self.world.pods[name] = PodView("other", name, name, "Running", node, {SLOT: slots})

    @rule()
    def foreign_pods_leave(self) -> None:
        self.world.pods = {k: pod for k, pod in self.world.pods.items() if pod.owner_uid}

    # --- what Kubernetes does

    @rule()
    def scheduler_and_kubelets_work(self) -> None:
        self.bind()
        for name, pod in list(self.world.pods.items()):
            if pod.owner_uid and pod.node and pod.phase == "Pending":
                self.world.edit(name, phase="Running")

    @rule()
    def deleted_pods_go(self) -> None:
        self.world.reap()

    @rule(node=st.sampled_from(NODES), ready=st.booleans())
    def a_node_changes(self, node: str, ready: bool) -> None:
        self.world.nodes[node] = replace(self.world.nodes[node], ready=ready)

    @rule(seconds=st.sampled_from([1, 5, 30, 400]))
    def time_passes(self, seconds: int) -> None:
        self.world.later(seconds)

    # --- what training does

    @rule(name=st.sampled_from(JOBS))
    def a_gang_finishes(self, name: str) -> None:
        trains = self.holds(name) and self.world.status(name).phase == "Running"
        if trains and all(pod.phase == "Running" and not pod.deleting for pod in self.world.gang(name)):
            self.world.finish(name, step=100)

    @rule(name=st.sampled_from(JOBS), member=st.integers(0, 3), secondary=st.booleans())
    def a_pod_fails(self, name: str, member: int, secondary: bool) -> None:
        pods = [pod for pod in self.live(name) if pod.member == member and pod.phase == "Running"]
        for pod in pods:
            words = LastWords(outcome="Failed", rank=0, error="boom", secondary=secondary)
            self.world.edit(pod.name, phase="Failed", exit_code=1, finished=self.world.now, last_words=words)

    @rule(name=st.sampled_from(JOBS), member=st.integers(0, 3))
    def a_pod_is_deleted_by_somebody(self, name: str, member: int) -> None:
        for pod in self.live(name):
            if pod.member == member:
                self.world.edit(pod.name, deleting=True)

    @rule(name=st.sampled_from(JOBS), member=st.integers(0, 3))
    def a_pod_vanishes(self, name: str, member: int) -> None:
        """Deleted by force, or collected long after its end."""
        if ("forge", name) in self.world.jobs:
            for pod in self.world.gang(name):
                if pod.member == member:
                    del self.world.pods[pod.name]

    # --- what the operator does

    @rule()
    def operator_works(self) -> None:
        self.world.round()

    @rule(rounds=st.integers(1, 3), bind=st.booleans())
    def operator_and_kubernetes_work(self, rounds: int, bind: bool) -> None:
        for _ in range(rounds):
            self.world.round()
            if bind:
                self.scheduler_and_kubelets_work()

    @rule(statuses=st.integers(0, 4), actions=st.integers(0, 6))
    def operator_dies_in_a_round(self, statuses: int, actions: int) -> None:
        """Only the first writes of a round happen."""
        snapshot = self.world.snapshot()
        outcomes = run_admission(snapshot)
        for key, item in sorted(self.world.jobs.items())[:statuses]:
            decision = decide(item, snapshot, outcomes.get(key))
            done = decision.actions[:actions]
            actions -= len(done)
            self.world.apply(key, Decision(decision.status, done, decision.events))
            if len(done) < len(decision.actions):
                return

    # --- helpers

    def holds(self, name: str) -> bool:
        return ("forge", name) in self.world.jobs and self.world.status(name).placement is not None

    def live(self, name: str) -> list[PodView]:
        if ("forge", name) not in self.world.jobs:
            return []
        uid = self.world.jobs["forge", name].uid
        return [pod for pod in self.world.pods.values() if pod.owner_uid == uid and not pod.terminal]

    def bound(self, node: str) -> int:
        return sum(
            pod.requests[SLOT] for pod in self.world.pods.values() if pod.node == node and not pod.terminal
        )

    def bind(self) -> None:
        """As kube-scheduler does for pinned pods: bind where there is room, else say so."""
        for name, pod in list(self.world.pods.items()):
            if not pod.owner_uid or pod.node or pod.phase != "Pending" or pod.deleting:
                continue
            (status,) = [item.status for item in self.world.jobs.values() if item.uid == pod.owner_uid]
            if status.placement is None or pod.attempt != status.attempt:
                continue
            node = status.placement.members[pod.member].node
            if self.bound(node) + pod.requests[SLOT] <= 4 and self.world.nodes[node].ready:
                self.world.edit(name, node=node, unschedulable="", unschedulable_since=None)
            elif pod.unschedulable_since is None:
                self.world.edit(name, unschedulable="no room", unschedulable_since=self.world.now)

    def set_suspend(self, name: str, *, suspend: bool) -> None:
        item = self.world.jobs.get(("forge", name))
        if item is not None and item.spec is not None:
            scheduling = {"startTimeout": "1m", "suspend": suspend}
            spec = TrainingJobSpec.model_validate(item.spec.wire() | {"scheduling": scheduling})
            self.world.jobs["forge", name] = replace(item, spec=spec)

    # --- invariants

    @invariant()
    def no_slot_is_promised_twice(self) -> None:
        for node in NODES:
            ours = 0
            for item in self.world.jobs.values():
                pods = [pod for pod in self.world.pods.values() if pod.owner_uid == item.uid]
                ours += sum(pod.requests[SLOT] for pod in pods if pod.node == node and not pod.terminal)
                if item.status.placement is None or item.status.phase in ("Complete", "Failed"):
                    continue
                current = {pod.member: pod for pod in pods if pod.attempt == item.status.attempt}
                for index, member in enumerate(item.status.placement.members):
                    pod = current.get(index)
                    if member.node == node and (pod is None or (not pod.node and not pod.terminal)):
                        ours += member.ranks
            assert ours <= 4, f"{ours} slots of {node} are promised"

    @invariant()
    def a_place_is_whole(self) -> None:
        for item in self.world.jobs.values():
            placement, strategy = item.status.placement, item.status.strategy
            if placement is not None:
                assert strategy is not None
                assert sum(member.ranks for member in placement.members) == strategy.world_size

    @invariant()
    def pods_exist_only_for_places_on_record(self) -> None:
        for item in self.world.jobs.values():
            for pod in self.world.pods.values():
                if pod.owner_uid == item.uid:
                    assert pod.attempt <= item.status.attempt

    @invariant()
    def a_finished_job_stays_finished(self) -> None:
        for name, phase in self.finished.items():
            assert self.world.status(name).phase == phase
        for key, item in self.world.jobs.items():
            if item.status.phase in ("Complete", "Failed"):
                self.finished[key[1]] = item.status.phase

    @invariant()
    def a_job_that_does_not_run_says_why(self) -> None:
        for item in self.world.jobs.values():
            if item.status.observed_generation and item.status.phase not in ("Running", "Complete"):
                assert item.status.reason, f"{item.name} is {item.status.phase} without a reason"

    def teardown(self) -> None:
        """Liveness: from any state, a healthy cluster leads every job to its end and holds nothing after."""
        for node in NODES:
            self.world.nodes[node] = replace(self.world.nodes[node], ready=True)
        self.foreign_pods_leave()
        for name in JOBS:
            self.set_suspend(name, suspend=False)
        for _ in range(80):
            self.world.round()
            self.scheduler_and_kubelets_work()
            self.world.reap()
            self.world.round()
            self.no_slot_is_promised_twice()
            for name in JOBS:
                self.a_gang_finishes(name)
            self.world.later(30)
            if all(item.status.phase in ("Complete", "Failed") for item in self.world.jobs.values()):
                break
        else:
            raise AssertionError({item.name: item.status.reason for item in self.world.jobs.values()})
        self.world.settle()
        self.world.reap()
        assert all(pod.terminal for pod in self.world.pods.values())


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
