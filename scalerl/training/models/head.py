"""Log-probabilities and entropies of tokens from hidden states, chunked over the vocabulary; sampling from logits.

The trainer never holds a tensor of tokens x vocabulary: the forward pass keeps a running log-sum-exp, and the backward
pass recomputes each chunk. With `fp32` the result of the product is FP32: a bf16 result rounds logits to three digits,
which causes most of the mismatch between trainer and generator (ScaleRL sec. 3.2). GPUs multiply bf16 factors exactly
on tensor cores; elsewhere the factors are cast to FP32 first. Both give the same product within rounding.

Legend: N tokens, D hidden size, V vocabulary, B rows of logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from scalerl.training.models.torch_compile import compiled

CHUNK_ELEMENTS = 1 << 24
"""Entries of one [N, chunk] block of logits, 64 MiB in FP32; on a GPU with much free memory more (`chunk_elements`)."""

EXCLUDED = -1e30
"""Logit of a token outside a nucleus: exp gives 0, and products with 0 and sums over a vocabulary stay finite."""


@dataclass(frozen=True, slots=True)
class HeadRule:
    """Rule by which an architecture computes logits from hidden @ weight.T; plain models use the defaults.

    Example (Gemma 2): HeadRule(fp32=True, softcap=30.0, scale=1.0)
    """

    fp32: bool = True
    """Multiply in FP32; otherwise in the type of the weights, with the result cast to FP32."""
    softcap: float | None = None
    """Logits become softcap * tanh(logits / softcap)."""
    scale: float = 1.0
    """Factor of the logits."""
    compiled: bool = False
    """Compile what is computed for each entry of a block, which then reads the block once instead of ten times."""

    def logits(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
        """Return FP32 logits [N, V] for a block of the vocabulary."""
        if self.fp32:
            bias_V = None if bias_V is None else bias_V.float()
        if self.fp32 and on_tensor_cores(hidden_ND, weight_VD):
            logits_NV = wide_product(hidden_ND, weight_VD.t())
            logits_NV = logits_NV if bias_V is None else logits_NV.add_(bias_V)
        else:
            if self.fp32:
                hidden_ND, weight_VD = hidden_ND.float(), weight_VD.float()
            logits_NV = self.product(hidden_ND, weight_VD, bias_V).float()
        if self.scale != 1.0:
            logits_NV = logits_NV * self.scale
        if self.softcap is not None:
            logits_NV = self.softcap * torch.tanh(logits_NV / self.softcap)
        return logits_NV

    def backward(self, grad_NV: Tensor, logits_NV: Tensor) -> Tensor:
        """Return the gradient with respect to the plain product, given the gradient with respect to the logits."""
        if self.softcap is not None:
            grad_NV = grad_NV * (1 - (logits_NV / self.softcap) ** 2)
        return grad_NV * self.scale if self.scale != 1.0 else grad_NV

    def product(self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None = None) -> Tensor:
        """Return hidden @ weight.T + bias."""
        if hidden_ND.device.type == "cpu":
            from scalerl.training.models.cpu.onednn import linear

            return linear(hidden_ND, weight_VD, bias_V)
        return nn.functional.linear(hidden_ND, weight_VD, bias_V)


def on_tensor_cores(hidden_ND: Tensor, weight_VD: Tensor) -> bool:
    """Return whether tensor cores compute the FP32 products of these factors."""
    return hidden_ND.is_cuda and hidden_ND.dtype == weight_VD.dtype == torch.bfloat16


def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the FP32 product of bf16 matrices, whose single products are exact in FP32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def chunk_elements(device: torch.device) -> int:
    """Return the entries of one block of logits: on a GPU, at least those that take 1/32 of the free memory."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return CHUNK_ELEMENTS
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(CHUNK_ELEMENTS, (torch.cuda.mem_get_info(device)[0] + cached) // (32 * 4))


def token_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    temperature: float = 1.0,
    rule: HeadRule | None = None,
    chunk: int = 0,
    nucleus: tuple[Tensor, Tensor] | None = None,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log softmax(logits / temperature) at the targets, and the entropy of that distribution.

    Args:
        hidden_ND: Final hidden states, in the type of the weights.
        weight_VD: Weights of the LM head.
        bias_V: Bias of the LM head, or None.
        targets_N: Token ids.
        temperature: Divisor of the logits.
        rule: The architecture's head; None for the plain FP32 head.
        chunk: Vocabulary entries per chunk; 0 to choose by `chunk_elements`.
        nucleus: (number of the token, id) of every kept id; a softmax is then over the kept ids, among which the target
            must be. None: over the whole vocabulary.
        entropy_gradient: Whether the entropy has a gradient, which the backward pass then computes too.

    Returns:
        logp_N with gradient and entropy_N (nats), both FP32.
    """
    assert hidden_ND.ndim == 2 and weight_VD.ndim == 2 and hidden_ND.shape[1] == weight_VD.shape[1]
    assert targets_N.shape == hidden_ND.shape[:1], (targets_N.shape, hidden_ND.shape)
    # rows of a block that do not start at a multiple of 16 bytes would get kernels without Hopper's matrix unit
    chunk = chunk or max(256, chunk_elements(hidden_ND.device) // max(len(hidden_ND), 1) // 256 * 256)
    out = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, targets_N, (temperature, rule or HeadRule(), chunk, nucleus, entropy_gradient)
    )
    return cast(tuple[Tensor, Tensor], out)


Sums = tuple[Tensor, Tensor, Tensor]
"""Of each token over the blocks so far, with u = logit / temperature: max u, sum exp(u - max), sum u exp(u - max)."""


def add_block(scaled_NV: Tensor, sums: Sums) -> Sums:
    """Return the sums with a block of logits that are divided by the temperature."""
    high_N, total_N, weighted_N = sums
    new_high_N = torch.maximum(high_N, scaled_NV.amax(dim=1))
    shrink_N = (high_N - new_high_N).exp()
    exp_NV = (scaled_NV - new_high_N[:, None]).exp_()
    total_N = total_N * shrink_N + exp_NV.sum(dim=1)
    weighted_N = weighted_N * shrink_N + exp_NV.mul_(scaled_NV).sum(dim=1)
    return new_high_N, total_N, weighted_N


def product_gradient(
    logits_NV: Tensor,
    logsum_N: Tensor,
    grad_N: Tensor,
    target: tuple[Tensor, Tensor],
    outside_NV: Tensor | None,
    temperature: float,
    rule: HeadRule,
    dtype: torch.dtype,
    of_entropy: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the gradient with respect to a block of the plain product.

    d logp / d logit_v = (1[v is the target] - p_v) / temperature, and for the entropy H = -sum_v p_v log p_v,
    d H / d logit_v = -p_v (log p_v + H) / temperature.

    Args:
        logits_NV: Logits of the block, not divided by the temperature; may be overwritten.
        logsum_N: Log of the sum of exp(logit / temperature) over the vocabulary.
        grad_N: Gradient with respect to the log-probabilities.
        target: (whether the target is in the block, its column there), as from `_columns`.
        outside_NV: Entries outside a nucleus, if there is one.
        temperature: Divisor of the logits.
        rule: The architecture's head.
        dtype: Type of the result. Rounding it to bf16 adds 0.17% to the gradients of weights and hidden states, as much
            as their own rounding to bf16; a whole update in bf16 is 0.9% from float64 with or without it.
        of_entropy: (entropy_N, gradient with respect to it), if it has one.
    """
    inside_N, column_N = target
    # a compiler needs no copy; without one the block itself is overwritten, unless it is read again
    copied = torch.compiler.is_compiling() or rule.softcap is not None
    grad_NV = logits_NV / temperature if copied else logits_NV.div_(temperature)
    grad_NV = grad_NV.sub_(logsum_N[:, None])
    if of_entropy is None:
        grad_NV = grad_NV.exp_().mul_(-grad_N[:, None])
    else:
        entropy_N, grad_entropy_N = of_entropy
        factor_NV = (grad_NV + entropy_N[:, None]).mul_(-grad_entropy_N[:, None]).sub_(grad_N[:, None])
        grad_NV = grad_NV.exp_().mul_(factor_NV)
    if outside_NV is not None:
        grad_NV.masked_fill_(outside_NV, 0.0)
    added_N = grad_N * inside_N
    if torch.compiler.is_compiling():  # in the same pass; a scatter would be a second one
        hit_NV = torch.arange(grad_NV.shape[1], device=grad_NV.device) == column_N[:, None]
        grad_NV = torch.where(hit_NV, grad_NV + added_N[:, None], grad_NV)
    else:
        grad_NV.scatter_add_(1, column_N[:, None], added_N[:, None])
    return rule.backward(grad_NV.div_(temperature), logits_NV).to(dtype)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        settings: tuple[float, HeadRule, int, tuple[Tensor, Tensor] | None, bool],
    ) -> tuple[Tensor, Tensor]:
        n, (temperature, rule, chunk, nucleus, entropy_gradient) = len(hidden_ND), settings
        high_N = torch.full((n,), -torch.inf, device=hidden_ND.device)
        total_N, weighted_N, target_N = (torch.zeros(n, device=hidden_ND.device) for _ in range(3))
        cast = rule.fp32 and not on_tensor_cores(hidden_ND, weight_VD)
        operand_ND = hidden_ND.float() if cast else hidden_ND  # once, not once per chunk
        add = compiled(add_block) if rule.compiled else add_block
        for start in range(0, len(weight_VD), chunk):
            scaled_NV = _block(rule, operand_ND, weight_VD, bias_V, start, chunk)
            if temperature != 1.0:
                scaled_NV.div_(temperature)
            if nucleus is not None:
                scaled_NV.masked_fill_(_outside(nucleus, scaled_NV, start), EXCLUDED)
            high_N, total_N, weighted_N = add(scaled_NV, (high_N, total_N, weighted_N))
            inside_N, column_N = _columns(targets_N, start, scaled_NV.shape[1])
            target_N = torch.where(inside_N, scaled_NV.gather(1, column_N[:, None])[:, 0], target_N)
        logsum_N = high_N + total_N.log()
        entropy_N = logsum_N - weighted_N / total_N
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, logsum_N, entropy_N)
        ctx.settings = settings
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return target_N - logsum_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, logsum_N, entropy_N = ctx.saved_tensors
        temperature, rule, chunk, nucleus, entropy_gradient = ctx.settings
        of_entropy = (entropy_N, grads[1]) if entropy_gradient else None
        on_cores = rule.fp32 and on_tensor_cores(hidden_ND, weight_VD)
        product_dtype = torch.float32 if rule.fp32 and not on_cores else hidden_ND.dtype
        operand_ND = hidden_ND.to(product_dtype)
        gradient = compiled(product_gradient) if rule.compiled else product_gradient
        grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=torch.float32)
        # adapters freeze the head, which saves one of three products and a tensor of the size of the head
        grad_weight_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        grad_bias_V = torch.empty_like(bias_V) if bias_V is not None and ctx.needs_input_grad[2] else None

        def product(left: Tensor, right: Tensor) -> Tensor:
            return wide_product(left, right) if on_cores else rule.product(left, right.t())

        for start in range(0, len(weight_VD), chunk):
            logits_NV = _block(rule, operand_ND, weight_VD, bias_V, start, chunk)
            end = start + logits_NV.shape[1]
            outside_NV = None if nucleus is None else _outside(nucleus, logits_NV, start)
            target = _columns(targets_N, start, end - start)
            facts = (logits_NV, logsum_N, grads[0], target, outside_NV, temperature, rule, product_dtype, of_entropy)
            grad_NV = gradient(*facts)
            block_VD = weight_VD[start:end].to(product_dtype)
            grad_hidden_ND += product(grad_NV, block_VD)
            if grad_weight_VD is not None:
                grad_weight_VD[start:end] = product(grad_NV.t(), operand_ND).to(weight_VD.dtype)
            if grad_bias_V is not None:
                grad_bias_V[start:end] = grad_NV.float().sum(dim=0)
        return grad_hidden_ND.to(hidden_ND.dtype), grad_weight_VD, grad_bias_V, None, None


def _block(
    rule: HeadRule, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, start: int, chunk: int
) -> Tensor:
    bias = None if bias_V is None else bias_V[start : start + chunk]
    return rule.logits(hidden_ND, weight_VD[start : start + chunk], bias)


def _columns(targets_N: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Return which targets lie in a block, and their columns in it (0 for the others)."""
    inside_N = (targets_N >= start) & (targets_N < start + width)
    return inside_N, torch.where(inside_N, targets_N - start, 0)


def _outside(nucleus: tuple[Tensor, Tensor], block_NV: Tensor, start: int) -> Tensor:
    """Return which entries of a block of logits are in no nucleus."""
    (number_M, id_M), (n, width) = nucleus, block_NV.shape
    inside_M, column_M = _columns(id_M, start, width)
    outside_NV = torch.ones(n, width + 1, dtype=torch.bool, device=block_NV.device)
    outside_NV[number_M, torch.where(inside_M, column_M, width)] = False  # the last column takes ids of other blocks
    return outside_NV[:, :width]


def draw(logits_BV: Tensor, uniforms_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw a token for each row by inverting the cumulative distribution.

    Args:
        logits_BV: Logits in FP32.
        uniforms_B: Uniform numbers in [0, 1), float64.
        temperature: Divisor of the logits; 0 is greedy.

    Returns:
        tokens_B, and their log-probabilities under the tempered distribution.
    """
    assert logits_BV.ndim == 2 and uniforms_B.shape == logits_BV.shape[:1], (logits_BV.shape, uniforms_B.shape)
    if temperature == 0:
        logps_BV = logits_BV.log_softmax(dim=1)
        tokens_B1 = logits_BV.argmax(dim=1, keepdim=True)
    else:
        logps_BV = (logits_BV if temperature == 1 else logits_BV / temperature).log_softmax(dim=1)
        tokens_B1 = _invert(logps_BV, uniforms_B)
    return tokens_B1[:, 0], logps_BV.gather(1, tokens_B1)[:, 0]


def _invert(logps_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    # float64, because a float32 running sum over 150,000 tokens has rounding errors larger than most probabilities
    cumulative_BV = logps_BV.exp().double().cumsum(dim=1)
    threshold_B1 = (uniforms_B * cumulative_BV[:, -1])[:, None]
    return torch.searchsorted(cumulative_BV, threshold_B1, right=True).clamp(max=logps_BV.shape[1] - 1)


def nucleus_of(logits_BV: Tensor, temperature: float, top_p: float) -> Tensor:
    """Return inside_BV, the smallest sets of the most likely tokens whose probabilities reach top_p together.

    This is nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751, section 3.1).
    """
    sorted_BV, order_BV = (logits_BV / temperature).log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    probability_BV = sorted_BV.exp().double()
    before_BV = probability_BV.cumsum(dim=1) - probability_BV
    return torch.zeros_like(order_BV, dtype=torch.bool).scatter_(1, order_BV, before_BV < top_p)
