"""What a member is given: its environment and the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kronos.api.plan import PLAN_MOUNT, Plan
from kronos_trainer.exits import InputError

BYTE_VALUES = 256


@dataclass(frozen=True)
class Settings:
    """The environment of one member."""

    plan_path: Path
    member: int
    """Index into the plan's members."""
    master: str
    """Host name or address of member 0."""
    pod_ip: str | None
    """Address to bind to; None binds to all."""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the `KRONOS_*` variables; InputError when one is wrong."""
    member = environ.get("KRONOS_MEMBER", "0")
    if not member.isdecimal():
        raise InputError(f"KRONOS_MEMBER must be the index of a member in the plan, not {member!r}.")
    pod_ip = environ.get("KRONOS_POD_IP") or None
    return Settings(
        plan_path=Path(environ.get("KRONOS_PLAN") or f"{PLAN_MOUNT}/plan.json"),
        member=int(member),
        master=environ.get("KRONOS_MASTER") or pod_ip or "localhost",
        pod_ip=pod_ip,
    )


def termination_log(environ: Mapping[str, str]) -> Path:
    """Where the last words go."""
    return Path(environ.get("KRONOS_TERMINATION_LOG") or "/dev/termination-log")


def read_plan(settings: Settings) -> Plan:
    """Read the plan and check that this trainer can run it; InputError with one sentence otherwise."""
    try:
        text = settings.plan_path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The plan at {settings.plan_path} can't be read: {error}.") from error
    try:
        plan = Plan.model_validate_json(text)
    except ValidationError as error:
        raise InputError(
            f"The plan at {settings.plan_path} is not valid: {_first_problems(error)}."
        ) from error
    if settings.member >= len(plan.members):
        raise InputError(f"KRONOS_MEMBER is {settings.member} but the plan has {len(plan.members)} members.")
    check_supported(plan)
    return plan


def ranks_of_member(plan: Plan, member: int) -> range:
    """Global ranks of one member: ranks are numbered through the members in order."""
    first = sum(other.ranks for other in plan.members[:member])
    return range(first, first + plan.members[member].ranks)


def check_supported(plan: Plan) -> None:
    """InputError when the plan is consistent but asks for a combination that this trainer doesn't run."""
    model, degrees = plan.model, plan.degrees
    tensor, stages = degrees.tensor_parallel, degrees.pipeline_parallel
    for name, value, known in (
        ("model.architecture", model.architecture, ("decoder",)),
        ("model.feedForward", model.feed_forward, ("Gated",)),
        ("model.normalization", model.normalization, ("RMSNorm",)),
        ("model.positions", model.positions, ("Rotary",)),
        ("model.biases", model.biases, (False,)),
        ("model.experts.count", model.experts.count if model.experts else 0, (0,)),
        ("optimization.optimizer", plan.optimization.optimizer, ("AdamW",)),
        ("reproducibility.mode", plan.reproducibility.mode, ("Off", "Deterministic")),
        ("schedule", plan.schedule, ("None", "GPipe", "1F1B")),
        ("contextParallel", degrees.context_parallel, (1,)),
        ("expertParallel", degrees.expert_parallel, (1,)),
    ):
        if value not in known:
            choices = " or ".join(str(choice) for choice in known)
            raise InputError(f"This trainer can't run {name} {value}; use {choices}.")
    for name, size in (
        ("attentionHeads", model.attention_heads),
        ("keyValueHeads", model.kv_heads),
        ("feedForwardSize", model.ffn_size),
    ):
        if size % tensor:
            raise InputError(
                f"tensorParallel is {tensor} but {name} {size} is no multiple of it; change one of them."
            )
    if model.tied_embeddings and stages > 1:
        raise InputError(
            f"tiedEmbeddings needs the embedding and the head on one pipeline stage, but pipelineParallel is {stages}; "
            "set tiedEmbeddings to false or pipelineParallel to 1."
        )
    if min(plan.stage_layers) < 1:
        raise InputError(f"stageLayers {list(plan.stage_layers)} leaves a pipeline stage without layers.")
    if plan.schedule == "1F1B" and plan.microbatches < stages:
        raise InputError(
            f"The 1F1B schedule needs at least as many microbatches as the {stages} pipeline stages, but the plan has "
            f"{plan.microbatches}; use more microbatches or the GPipe schedule."
        )
    if model.vocabulary_size < BYTE_VALUES:
        raise InputError(
            f"vocabularySize is {model.vocabulary_size} but text is read as bytes, which takes {BYTE_VALUES}; raise it."
        )


def _first_problems(error: ValidationError) -> str:
    problems = []
    for detail in error.errors()[:3]:
        where = ".".join(str(part) for part in detail["loc"])
        message = detail["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {message}" if where else message)
    more = len(error.errors()) - len(problems)
    return "; ".join(problems) + (f"; and {more} more" if more else "")
