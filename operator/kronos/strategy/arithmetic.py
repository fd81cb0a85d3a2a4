"""Seconds that the operations of a model take on one accelerator.

Every operation is charged for its arithmetic, at a share of the accelerator's peak, and for the bytes that it moves through
memory, at a share of its bandwidth. That makes the efficiency of a matrix product a curve over its shape: a product with few
rows or columns moves more bytes per FLOP.
"""

from __future__ import annotations

from functools import cached_property

from kronos.strategy.blocks import FP32_BYTES
from kronos.strategy.layout import Workload
from kronos.strategy.optimizers import TRAFFIC

LAUNCH_SECONDS = 5e-6
"""Time that the host takes to launch one kernel, however small its work."""
BLOCK_KERNELS = 20
"""Kernels in a block's forward pass."""
LOSS_PASSES = 6
"""Times that the loss and its gradient read or write the logits in fp32, besides the product's own output."""
ERROR_PASSES = 5
"""The same of a forecaster's squared error: target and error forward, error and gradient backward, and a cast of it."""


class Arithmetic:
    """What the operations of a workload cost on one accelerator; for all layouts of a search."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._rate = workload.peak_flops * workload.matmul_efficiency
        self._known: dict[tuple[float, int, int, bool], tuple[float, float, float, float]] = {}

    def matmul(self, rows: float, inner: float, outer: float, weights: float | None = None) -> float:
        """Seconds of a product of (rows x inner) with (inner x outer); `weights` scalars are read if not inner x outer."""
        narrow = self.workload.compute_bytes
        held = inner * outer if weights is None else weights
        moved = narrow * (rows * inner + held + rows * outer)
        return 2 * rows * inner * outer / self._rate + moved / self.workload.bytes_per_second

    def stream(self, size: float) -> float:
        """Seconds to read and write so many bytes."""
        return size / self.workload.bytes_per_second

    def block(
        self, tokens: float, tensor: int, experts: int, sequence_parallel: bool
    ) -> tuple[float, float, float, float]:
        """Seconds of a block for `tokens` of a microbatch on this rank, in tensor and expert groups of these sizes.

        Returns: forward; backward without recomputing; gradients of weights, a part of that; and what selective
        checkpointing computes again.
        """
        key = (tokens, tensor, experts, sequence_parallel)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._block(tokens, tensor, experts, sequence_parallel)
        return found

    def _block(
        self, tokens: float, tensor: int, experts: int, sequence_parallel: bool
    ) -> tuple[float, float, float, float]:
        workload = self.workload
        block = workload.block
        products = again = 0.0
        custom = workload.shape.custom
        if custom is not None:
            products = again = tokens * block.flops / self._rate
            products += self.stream(custom.parameters_per_layer * workload.compute_bytes)
        for matmul in block.matmuls:
            inner: float = matmul.inner / (tensor if matmul.split == "columns" else 1)
            outer: float = matmul.outer / (tensor if matmul.split == "rows" else 1)
            held = inner * outer * matmul.groups / (experts if matmul.groups > 1 else 1)
            seconds = self.matmul(tokens * matmul.passes, inner, outer, held)
            products += seconds
            again += seconds if matmul.recomputed else 0.0
        attention_forward = attention_backward = 0.0
        fused = workload.recipe.fused_attention
        if block.attention is not None:
            attention = block.attention
            attention_forward = tokens * attention.flops / tensor / self._rate
            moved = 4 * attention.heads * attention.head_size
            if not fused:
                moved += 2 * attention.heads * attention.length
            attention_forward += self.stream(tokens * moved * workload.compute_bytes / tensor)
            # Fused kernels compute the scores once more: Dao et al. 2022, section 3.1.
            attention_backward = attention_forward * (2.5 if fused else 2.0)
        forward_streams = backward_streams = scores = 0.0
        for stream in block.streams:
            split = stream.spread == "tensor" or (stream.spread == "sequence" and sequence_parallel)
            ways = tensor if split else 1
            forward_streams += self.stream(tokens * stream.forward / ways)
            backward_streams += self.stream(tokens * stream.backward / ways)
            scores += self.stream(tokens * stream.forward / ways) if stream.scores else 0.0
        launches = BLOCK_KERNELS * LAUNCH_SECONDS
        recomputed = again + forward_streams if fused else attention_forward + scores
        return (
            max(products + attention_forward + forward_streams, launches),
            max(2 * products + attention_backward + backward_streams, 2 * launches),
            products,
            recomputed,
        )

    @cached_property
    def least_per_sequence(self) -> float:
        """No layout computes a sequence in fewer accelerator-seconds."""
        return self.workload.model_flops / self._rate

    def head(self, tokens: float, tensor: int) -> float:
        """Seconds of the head and the loss, forward and backward."""
        workload = self.workload
        outputs = workload.output_size / workload.vocabulary_ways(tensor)
        if not outputs:
            return 0.0
        passes = ERROR_PASSES if workload.shape.patches else LOSS_PASSES
        return 3 * self.matmul(tokens, workload.shape.hidden_size, outputs) + self.stream(
            tokens * outputs * (workload.compute_bytes + passes * FP32_BYTES)
        )

    def embedding(self, tokens: float) -> float:
        """Seconds of a forecaster's embedding, forward and backward; looking tokens up is a read that is left out."""
        workload = self.workload
        if not workload.input_size:
            return 0.0
        return 2 * self.matmul(tokens, workload.input_size, workload.shape.hidden_size)

    def update(self, elements: int) -> float:
        """Seconds to update so many weights: the gradient is cleared, measured and read; weights, masters, state pass by."""
        recipe = self.workload.recipe
        moved = 3 * recipe.gradient_bytes + 2 * (recipe.weight_bytes + recipe.master_bytes)
        return self.stream(elements * (moved + TRAFFIC[self.workload.optimizer]))
