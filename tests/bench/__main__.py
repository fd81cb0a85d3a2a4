"""`make bench`: how long planning, placing and admitting take on one core, as JSON.

Machines differ, and so does one machine from minute to minute. Each case is therefore measured in turn with a fixed piece of
Python, and its time is also told as a multiple of that: the ratio is what to compare between two versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import process_time

from bench.admission import admission
from bench.placement import placement
from kronos.strategy import EVERYTHING, TRAINER, Abilities, search
from support.searches import LLAMA_2_7B, LLAMA_3_70B, fabric, job

TRILLION = {
    "layers": 128,
    "hidden_size": 25600,
    "attention_heads": 160,
    "vocabulary_size": 51200,
    "sequence_length": 2048,
}
"""Narayanan et al., SC21, table 1, last row."""
CASES = {
    "7B on up to 64": job(LLAMA_2_7B, batch=512, high=64),
    "7B on 64": job(LLAMA_2_7B, batch=512, low=64, high=64),
    "70B on up to 1024": job(LLAMA_3_70B, batch=1024, high=1024),
    "1T on 3072": job(TRILLION, batch=3072, low=3072, high=3072),
    "1T on up to 3072": job(TRILLION, batch=3072, high=3072),
}
ABILITIES: dict[str, Abilities] = {"trainer": TRAINER, "everything": EVERYTHING}
ROUNDS = 5


def yardstick() -> None:
    """A fixed piece of Python: some hundred thousand additions and look-ups."""
    known: dict[int, int] = {}
    for number in range(200_000):
        known[number % 1000] = known.get(number % 1000, 0) + number


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one run."""
    began = process_time()
    work()
    return process_time() - began


def measure(work: Callable[[], object]) -> dict[str, float]:
    """The best of a few rounds, in turn with the yardstick."""
    pairs = [(seconds(yardstick), seconds(work)) for _ in range(ROUNDS)]
    unit, best = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    return {"seconds": round(best, 4), "yardsticks": round(best / unit, 2)}


def main() -> None:
    """Measure everything."""
    found = {
        f"{case}, {name}": measure(lambda spec=spec, able=able: search(spec, fabric(), abilities=able))
        for case, spec in CASES.items()
        for name, able in ABILITIES.items()
    }
    print(json.dumps({"planning": found, "placement": placement(), "admission": admission()}, indent=2))


main()
