"""Which sequence goes where: a keyed permutation per epoch, a pure function of (seed, step, slot)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

_ROUNDS = 4


@dataclass(frozen=True)
class Sampler:
    """The order in which the sequences of a data set are visited.

    Slots of all steps form one endless row; each run of `sequences` slots is an epoch that visits every sequence
    once. Nothing is stored per sequence, and nothing depends on the layout or on earlier steps.
    """

    sequences: int
    """Sequences in the data set."""
    batch: int
    """Slots per step: the global batch size."""
    seed: int

    def sequence(self, step: int, slot: int) -> int:
        """Index of the sequence for a slot (0 <= slot < batch) of a step (from 0)."""
        assert 0 <= slot < self.batch
        epoch, position = divmod(step * self.batch + slot, self.sequences)
        return permute(position, self.sequences, f"{self.seed}/{epoch}".encode())


def permute(position: int, size: int, key: bytes) -> int:
    """The image of `position` under the permutation of range(size) that `key` names.

    A balanced Feistel network permutes the next even power of two; values outside the range walk on until they fall
    inside, which takes fewer than four rounds on average.
    """
    assert 0 <= position < size
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    value = position
    while True:
        left, right = value >> half_bits, value & mask
        for index in range(_ROUNDS):
            mixed = blake2b(b"%d/%d" % (index, right), key=key[:64], digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "little") & mask)
        value = left << half_bits | right
        if value < size:
            return value
