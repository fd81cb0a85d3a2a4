"""Small plans for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kronos.api.plan import Degrees, GangMember, Plan
from kronos.api.training import Data, ModelShape, Optimization, Reproducibility


def tiny_plan(
    data: Path,
    *,
    dp: int = 1,
    fsdp: int = 1,
    tp: int = 1,
    pp: int = 1,
    members: int = 1,
    steps: int = 20,
    batch: int = 8,
    microbatches: int | None = None,
    model: dict[str, Any] | None = None,
    optimization: dict[str, Any] | None = None,
    mode: str = "Off",
    seed: int = 7,
    **changes: Any,
) -> Plan:
    """A valid plan for a model of some 30,000 parameters that reads the text under `data`.

    The degrees multiply to the world size, which is dealt out evenly to `members`. `model` and `optimization` override
    fields of these sections, further keywords those of the plan (all by their Python names). Defaults: 20 steps of 8
    sequences, two microbatches per stage at most.
    """
    world = dp * fsdp * tp * pp
    share = batch // (dp * fsdp)
    microbatches = microbatches or max(count for count in range(1, 2 * pp + 1) if share % count == 0)
    shape = ModelShape(
        **{
            "layers": 4,
            "hidden_size": 32,
            "attention_heads": 4,
            "key_value_heads": 2,
            "feed_forward_size": 64,
            "sequence_length": 32,
            **(model or {}),
        }
    )
    per_stage, extra = divmod(shape.layers, pp)
    fields: dict[str, Any] = {
        "namespace": "default",
        "job": "tiny",
        "attempt": 1,
        "model": shape,
        "data": Data(path=str(data)),
        "optimization": Optimization(
            **{
                "global_batch_size": batch,
                "steps": steps,
                "learning_rate": 1e-2,
                "warmup_steps": min(3, steps),
                "gradient_clip_norm": 1.0,
                **(optimization or {}),
            }
        ),
        "reproducibility": Reproducibility(mode=mode, seed=seed),
        "degrees": Degrees(
            data_parallel=dp, sharded_data_parallel=fsdp, tensor_parallel=tp, pipeline_parallel=pp
        ),
        "schedule": "1F1B" if pp > 1 else "None",
        "microbatch_sequences": share // microbatches,
        "microbatches": microbatches,
        "activation_checkpointing": False,
        "stage_layers": tuple(per_stage + (stage < extra) for stage in range(pp)),
        "members": tuple(
            GangMember(node=f"node-{member}", ranks=world // members + (member < world % members))
            for member in range(members)
        ),
        "rank_map": tuple(range(world)),
        "rendezvous_timeout_seconds": 60,
        "collective_timeout_seconds": 60,
    }
    return Plan(**{**fields, **changes})
