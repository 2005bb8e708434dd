"""Continuous batching on Hugging Face causal LMs, on CPU or one GPU, through the cache interface of transformers.

The layers of the cache hold [slots, heads, capacity, head size]; the new key and value of each row are written at the
position of that row. On CPU the kernel provides their memory page by page, as sequences grow
(training/models/cpu/pages.py); on a GPU all of it is taken at the start, so that a run cannot lack it later. This
module passes masks and position ids to the model, so that no architecture needs separate code. `check_cached_logps`
finds architectures that compute wrong values this way before a run starts.

Legend: S slots, R leading rows that are decoded, N rows that are prefilled, B rows that are sampled, K span of the
cache that is attended to, C cached tokens of all sequences, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from scalerl.core.errors import ConfigError
from scalerl.training.engines.engine import PASS_BYTES, Request, RoutingShape, Sampling, step
from scalerl.training.engines.interrupt import NEVER, Ints, LengthRule
from scalerl.training.engines.local.slot_engine import Loan, Receive, SlotEngine
from scalerl.training.models.head import draw, nucleus_of
from scalerl.training.models.loading import ALLOWED_WEIGHTS
from scalerl.training.models.policy import Policy, rounding
from scalerl.training.models.routing import can_record, routing_of

SAMPLE_ENTRY = 28
"""Bytes per entry of the logits while tokens are drawn: three times FP32 and twice FP64 (training/models/head.py)."""

SHORT = 64
"""Prompts of up to so many tokens are computed together; of longer ones, those within a factor of 2."""


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer for all slots. The fields of `owner` describe the current forward pass."""

    is_sliding = False

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        slots, capacity = self.owner.slots, self.owner.capacity
        self.dtype, self.device = key_states.dtype, key_states.device
        self.rows_of_positions, self.pages = None, []
        if key_states.device.type == "cpu":
            from scalerl.training.models.cpu.loops import positions_first
            from scalerl.training.models.cpu.pages import TensorPages

            shapes = [(slots, capacity, x.shape[1], x.shape[3]) for x in (key_states, value_states)]
            self.pages = [TensorPages(shape, self.dtype) for shape in shapes]
            self.keys, self.values = (pages.tensor.transpose(1, 2) for pages in self.pages)
            self.rows_of_positions = positions_first(self.keys), positions_first(self.values)
        else:
            shapes = [(slots, x.shape[1], capacity, x.shape[3]) for x in (key_states, value_states)]
            self.keys, self.values = (key_states.new_zeros(shape) for shape in shapes)
        self.is_initialized = True

    def taken(self, row_C: Tensor, position_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of keys and values [C, heads, size] of some tokens, in host memory."""
        assert self.keys is not None and self.values is not None
        return self.keys[row_C, :, position_C].cpu(), self.values[row_C, :, position_C].cpu()

    def put(self, row_C: Tensor, position_C: Tensor, keys_CHD: Tensor, values_CHD: Tensor) -> None:
        """Write what `taken` returned, on the device of its tensors."""
        if not self.is_initialized:
            self.lazy_initialization(keys_CHD[:1, :, None], values_CHD[:1, :, None])
        assert self.keys is not None and self.values is not None
        self.keys[row_C, :, position_C], self.values[row_C, :, position_C] = keys_CHD, values_CHD

    def clear(self) -> None:
        """Give back the memory of all sequences; on a GPU it stays taken."""
        for pages in self.pages if self.is_initialized else ():
            pages.clear()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        owner = self.owner
        if owner.source_N is not None:  # prefill: computed rows are copied to all slots that hold their prompt
            length = key_states.shape[2]
            self.keys[owner.rows, :, :length] = key_states[owner.source_N]
            self.values[owner.rows, :, :length] = value_states[owner.source_N]
            return key_states, value_states
        rows = len(owner.rows)
        if self.rows_of_positions is None:
            self.keys[owner.rows, :, owner.positions_R] = key_states[:, :, 0]
            self.values[owner.rows, :, owner.positions_R] = value_states[:, :, 0]
        else:  # one index over whole rows takes a tenth of the time
            for stored, new in zip(self.rows_of_positions, (key_states, value_states), strict=True):
                stored[owner.flat_R] = new.reshape(rows, -1)
        return self.keys[:rows, :, : owner.span], self.values[:rows, :, : owner.span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.span, 0

    def get_seq_length(self) -> int:
        return self.owner.past

    def get_max_length(self) -> int:
        return self.owner.capacity

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of all slots, with a description of the current forward pass.

    Two decoders may use one cache in turn.
    """

    def __init__(self, layers: int, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self.rows: Tensor = torch.empty(0, dtype=torch.long)
        self.positions_R: Tensor = self.rows
        self.flat_R: Tensor = self.rows
        self.source_N: Tensor | None = None
        self.span = self.past = 0
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])


class TorchDecoder:
    """The decoder of a slot engine over a policy."""

    def __init__(
        self, policy: Policy, slots: int, capacity: int, sampling: Sampling, cache: SlotCache | None = None
    ) -> None:
        """Make a decoder.

        Args:
            policy: The model; several decoders may share one.
            slots: Number of rows in the cache.
            capacity: Number of positions per row, for prompt and completion.
            sampling: Temperature and top-p.
            cache: Cache of another decoder that has not decoded yet, to use it in turn; None: its own.
        """
        self.policy, self.sampling = policy, sampling
        self.nuclei: Sequence[Ints] = []
        self.cache = cache or SlotCache(policy.config.num_hidden_layers, slots, capacity)
        assert self.cache.capacity == capacity, (self.cache.capacity, capacity)
        self.cache.slots = max(self.cache.slots, slots)
        self._prefill_tokens = max(1, int(PASS_BYTES // policy.sizes.pass_bytes(policy.head_weight.element_size())))
        self._sampled_rows = max(1, PASS_BYTES // (SAMPLE_ENTRY * policy.vocab_size))
        self._hidden_SD = torch.zeros(slots, policy.config.hidden_size, dtype=policy.head_weight.dtype).to(
            policy.device
        )
        if policy.device.type == "cpu":
            from scalerl.training.models.cpu.loops import install_attention

            install_attention(policy.model)
        self._masks = _MaskMaker(policy.model, policy.head_weight)
        self._routing = routing_of(policy) if can_record(policy) else None
        self.routing_shape: RoutingShape | None = None
        """Shape of the recorded experts; None for dense models and for mixtures whose routers cannot be recorded."""
        self._experts_SLK: Tensor | None = None
        if self._routing is not None:
            self.routing_shape = RoutingShape(self._routing.layers, self._routing.active, policy.sizes.experts)
            shape = (slots, self._routing.layers, self._routing.active)
            self._experts_SLK = torch.zeros(shape, dtype=torch.long, device=policy.device)

    @torch.inference_mode()
    def decode(self, rows: int, tokens_R: Ints, lengths_R: Ints) -> float:
        """Feed one token to each of the first `rows` rows, at cache position lengths_R - 1; return the FLOPs spent."""
        device, cache = self.policy.device, self.cache
        positions_R = torch.from_numpy(lengths_R - 1).to(device)
        cache.rows, cache.positions_R = torch.arange(rows, device=device), positions_R
        cache.flat_R = cache.rows * cache.capacity + positions_R
        cache.source_N, cache.span = None, int(lengths_R.max())
        cache.past = cache.span - 1 if self._masks.own else 0  # the causal mask then hides nothing
        visible_RK = torch.arange(cache.span, device=device)[None] <= positions_R[:, None]
        hidden_R1D = self.policy.hidden(
            torch.from_numpy(tokens_R).to(device)[:, None],
            position_ids=positions_R[:, None],
            attention_mask=self._masks.decode(visible_RK, positions_R),
            past_key_values=cache,
        )
        self._hidden_SD[:rows] = hidden_R1D[:, 0]
        if self._experts_SLK is not None:
            self._experts_SLK[:rows] = self._chosen_NLK()
        return self.policy.sizes.decode_flops(lengths_R[lengths_R > 1])  # empty rows are padding

    @torch.inference_mode()
    def prefill(self, slots_N: Ints, prompts: Sequence[tuple[int, ...]]) -> float:
        """Fill rows with prompts and return the FLOPs spent; equal prompts are computed once."""
        unique = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        source_N = np.asarray([unique[prompt] for prompt in prompts])
        for some in prompt_batches([len(prompt) for prompt in unique], self._prefill_tokens):
            place_U = np.full(len(unique), -1)
            place_U[some] = np.arange(len(some))
            inside_N = place_U[source_N] >= 0
            texts = list(unique)
            self._prefill(slots_N[inside_N], [texts[i] for i in some], place_U[source_N[inside_N]])
        sizes = self.policy.sizes  # the head runs once per row, also for equal prompts
        return sizes.forward_flops(0, [len(prompt) for prompt in unique], predicted=len(prompts))

    def _prefill(self, slots_N: Ints, prompts: Sequence[tuple[int, ...]], source_N: Ints) -> None:
        """Compute different prompts in one pass, and copy each to all rows that hold it."""
        device, cache = self.policy.device, self.cache
        lengths_U = torch.tensor([len(p) for p in prompts], device=device)
        longest = int(lengths_U.max())
        tokens_UT = torch.zeros(len(prompts), longest, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            tokens_UT[i, : len(prompt)] = torch.tensor(prompt)
        cache.rows, cache.source_N = (torch.from_numpy(index).to(device) for index in (slots_N, source_N))
        cache.span, cache.past = longest, 0
        hidden_UTD = self.policy.hidden(
            tokens_UT.to(device),
            position_ids=torch.arange(longest, device=device).expand(len(prompts), longest),
            attention_mask=self._masks.prefill(longest, device),
            past_key_values=cache,
        )
        last_UD = hidden_UTD[torch.arange(len(prompts), device=device), lengths_U - 1]
        self._hidden_SD[cache.rows] = last_UD[cache.source_N]
        if self._experts_SLK is not None:
            last_U = torch.arange(len(prompts), device=device) * longest + lengths_U - 1
            last_ULK = self._chosen_NLK()[last_U]
            self._experts_SLK[cache.rows] = last_ULK[cache.source_N]

    @torch.inference_mode()
    def sample(self, slots_B: Ints, uniforms_B: Any) -> tuple[Ints, Any]:
        """Draw the next token of each given row from its latest hidden state; return tokens and log-probabilities.

        With top-p, `nuclei` are then the ids that each was drawn from, and log-probabilities are normalized over them.
        """
        self.nuclei, parts = [], []
        for start in range(0, len(slots_B), self._sampled_rows):
            some = slice(start, start + self._sampled_rows)
            parts.append(self._sample(slots_B[some], uniforms_B[some]))
        tokens_B, logps_B = (np.concatenate(column) for column in zip(*parts, strict=True))
        return tokens_B, logps_B

    def _sample(self, slots_B: Ints, uniforms_B: Any) -> tuple[Ints, Any]:
        device, sampling = self.policy.device, self.sampling
        logits_BV = self.policy.logits(self._hidden_SD[torch.from_numpy(slots_B).to(device)])
        uniforms = torch.from_numpy(uniforms_B).to(device)
        if sampling.top_p < 1 and sampling.temperature > 0:
            inside_BV = nucleus_of(logits_BV, sampling.temperature, sampling.top_p)
            logits_BV = logits_BV.masked_fill(~inside_BV, -torch.inf)
            ids_M, sizes_B = inside_BV.nonzero()[:, 1].int().cpu().numpy(), inside_BV.sum(dim=1).cpu().numpy()
            self.nuclei = [*self.nuclei, *np.split(ids_M, np.cumsum(sizes_B)[:-1])]
        tokens_B, logps_B = draw(logits_BV, uniforms, sampling.temperature)
        return tokens_B.cpu().numpy(), logps_B.cpu().numpy()

    def experts(self, slots_B: Ints) -> Any:
        """Return [B, L, K] of each given row: the experts of its latest token."""
        assert self._experts_SLK is not None
        return self._experts_SLK[torch.from_numpy(slots_B).to(self.policy.device)].cpu().numpy()

    def _chosen_NLK(self) -> Tensor:
        assert self._routing is not None
        return torch.stack([cast(Tensor, chosen_NK) for chosen_NK in self._routing.experts], dim=1)

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy one row's cache onto another."""
        for layer in self._layers():
            if layer.is_initialized:
                layer.keys[target], layer.values[target] = layer.keys[source], layer.values[source]

    @property
    def version(self) -> int:
        """Version of the policy's weights."""
        return self.policy.version

    def load_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Swap the weights, keep the cache."""
        self.policy.load_weights(version, weights)

    def state(self, lengths_S: Ints, *, clear: bool = False) -> dict[str, Any]:
        """Return the cached tokens of all rows, one row after the other, in host memory.

        Args:
            lengths_S: Cached tokens of each row.
            clear: Whether to give back the memory of all rows, layer by layer.
        """
        tensors: dict[str, Tensor] = {}
        row_C, position_C = _places(lengths_S)
        for i, layer in enumerate(self._layers()):
            if layer.is_initialized:
                tensors[f"keys.{i}"], tensors[f"values.{i}"] = layer.taken(row_C, position_C)
                if clear:
                    layer.clear()
        return {"lengths": lengths_S, "tensors": tensors}

    @torch.inference_mode()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all rows with what `state` returned."""
        row_C, position_C = _places(np.asarray(state["lengths"]))
        for i, layer in enumerate(self._layers()):
            layer.clear()
            if f"keys.{i}" in state["tensors"] and len(row_C):
                keys, values = (state["tensors"][f"{name}.{i}"].to(self.policy.device) for name in ("keys", "values"))
                layer.put(row_C, position_C, keys, values)

    @property
    def cache_in_host(self) -> bool:
        """Whether the cache is in the memory to which `state` copies it."""
        return self.policy.device.type == "cpu"

    def _layers(self) -> list[Any]:
        return cast("list[Any]", self.cache.layers)


class _MaskMaker:
    """Attention masks in the form of an architecture: boolean or additive, one mask or one per kind of layer.

    Architectures with their own attention code make their masks from the visible positions, as in `generate`.
    """

    def __init__(self, model: Any, like: Tensor) -> None:
        """Read the kinds of layers; `like` is a tensor with the type and device of the model."""
        config, self.own = model.config, not model._supports_attention_backend
        self.window = getattr(config, "sliding_window", None)
        self.kinds = sorted(set(getattr(config, "layer_types", None) or ()))
        # eager attention adds its mask; with a boolean mask it would silently attend to all positions
        self.additive = getattr(config, "_attn_implementation", "sdpa") == "eager"
        self.dtype, self.adds = like.dtype, like.device.type == "cpu" and not self.additive

    def decode(self, visible_RK: Tensor, positions_R: Tensor) -> Any:
        """Return masks [R, 1, 1, K] for one new token per row, or [R, K] for an architecture that makes its own."""
        if self.own:
            return visible_RK
        first_R = positions_R - (self.window or 0) + 1
        recent_RK = torch.arange(visible_RK.shape[1], device=visible_RK.device)[None] >= first_R[:, None]
        full, sliding = visible_RK[:, None, None], (visible_RK & recent_RK)[:, None, None]
        if self.adds:  # once per step instead of once per layer
            unseen = torch.tensor(-torch.inf, dtype=self.dtype)
            full, sliding = (torch.where(mask, 0.0, unseen) for mask in (full, sliding))
        return self._by_kind(full, sliding)

    def prefill(self, length: int, device: torch.device) -> Any:
        """Return masks [1, 1, T, T] for whole prompts, padded at the end; the causal mask hides the padding.

        None for long ones that the causal kernel computes without a mask, whose memory would grow with T squared.
        """
        if self.own or (length > SHORT and not self.additive and length <= (self.window or length)):
            return None
        causal_TT = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        recent_TT = causal_TT & ~causal_TT.tril(-(self.window or length))
        return self._by_kind(causal_TT[None, None], recent_TT[None, None])

    def _by_kind(self, full: Tensor, sliding: Tensor) -> Any:
        if self.additive:
            full, sliding = (torch.where(m, 0.0, torch.finfo(torch.float32).min) for m in (full, sliding))
        if "sliding_attention" in self.kinds:
            return {"full_attention": full, "sliding_attention": sliding}
        return sliding if self.window and not self.kinds else full


def _places(lengths_S: Ints) -> tuple[Tensor, Tensor]:
    """Return row and position of every cached token, one row after the other.

    Example: lengths [2, 0, 1] give rows [0, 0, 2] and positions [0, 1, 0]
    """
    row_C = np.repeat(np.arange(len(lengths_S)), lengths_S)
    position_C = np.arange(len(row_C)) - np.repeat(np.cumsum(lengths_S) - lengths_S, lengths_S)
    return torch.from_numpy(row_C), torch.from_numpy(position_C)


def prompt_batches(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Return which prompts are computed in one pass, so that padding at most doubles the cost of a long prompt.

    Prompts of up to SHORT tokens share passes, as do those between two powers of 2.

    Args:
        lengths: Tokens of each prompt.
        most: Tokens of a pass, with padding; a longer prompt has a pass of its own.
    """
    buckets: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        buckets.setdefault(max(SHORT, 1 << (length - 1).bit_length()), []).append(i)
    batches = []
    for bucket in buckets.values():
        count = max(1, most // max(lengths[i] for i in bucket))
        batches += [bucket[start : start + count] for start in range(0, len(bucket), count)]
    return batches


def torch_engine(
    policy: Policy,
    *,
    slots: int,
    prompt_tokens: int,
    rule: LengthRule,
    sampling: Sampling,
    refill: int = 0,
    receive: Receive | None = None,
    lender: SlotEngine | None = None,
    spare_rows: int = 0,
) -> SlotEngine:
    """Make an engine over a policy.

    Args:
        policy: The model; engines over the same policy share its weights.
        slots: Sequences decoded together.
        prompt_tokens: Length of the longest prompt.
        rule: Length limits of completions.
        sampling: Temperature, top-p and stop tokens.
        refill: See SlotEngine.
        receive: See SlotEngine.
        lender: Engine with equal lengths, which has not sampled yet and pauses while this one has work. This one then
            uses its cache, and the sequences of the lender wait in host memory.
        spare_rows: Rows by which the memory of a shared cache may grow for this engine.
    """
    capacity = prompt_tokens + rule.capacity
    cache = None if lender is None else cast(TorchDecoder, lender.decoder).cache
    decoder = TorchDecoder(policy, slots, capacity, sampling, cache)
    loan = None if lender is None else Loan(lender, capacity, spare_rows)
    return SlotEngine(decoder, slots, rule, sampling.stop, refill, receive, loan)


@torch.no_grad()
def check_cached_logps(policy: Policy, tokens: int = 6) -> None:
    """Refuse an architecture whose log-probabilities through the slot cache differ from those without a cache.

    Raises:
        ConfigError: The architecture does not work with the cache, or the log-probabilities differ and training would
            silently be off policy.
    """
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=tokens)
    decoder = TorchDecoder(policy, 2, 4 + tokens, Sampling())
    prompts = [(1 % policy.vocab_size, 0), (0, 1 % policy.vocab_size, 2 % policy.vocab_size)]
    engine = SlotEngine(decoder, 2, rule, ())
    engine.submit([Request((i, 0), prompt, key=i) for i, prompt in enumerate(prompts)])
    try:
        finished = [done for _ in range(tokens) for done in step(engine)]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # raised by the code of the architecture
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"model.path: {type(policy.model).__name__} does not work with the generation cache ({reason}); "
            f"{ALLOWED_WEIGHTS}"
        ) from error
    parts = []
    for done in finished:
        prompt = prompts[done.id[0]]
        full = torch.tensor([*prompt, *done.rollout.tokens.tolist()], device=policy.device)
        logps_NV = policy.logits(policy.hidden(full[None])[0]).log_softmax(-1)
        expected_logps = logps_NV[len(prompt) - 1 : -1].gather(1, full[len(prompt) :, None])[:, 0].cpu()
        parts.append((expected_logps - torch.from_numpy(done.rollout.logps)).abs())
    mean, limit = float(torch.cat(parts).double().mean()), rounding(policy.dtype)
    if not mean <= limit:
        raise ConfigError(
            f"model.path: {type(policy.model).__name__} gives other log-probabilities through the generation cache "
            f"than without it (mean difference {mean:.2g}, allowed {limit:g}); this architecture cannot be trained here"
        )
