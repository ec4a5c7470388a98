"""The Transformer that every architecture fills in: tokens -> embed -> blocks -> logits.

Positions, masks, the KV cache and the loss live here, once. What a paper writes (embedding,
block, head, initialisation, constraints) lives in that paper's file. An objective makes it

| objective | is | what a token sees |
|---|---|---|
| clm | a causal language model | itself and the tokens before it |
| mlm | a bidirectional encoder that predicts masked tokens | every token |
| seq2seq | an encoder, and a decoder whose blocks also look at the encoder's output | both |
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from unitsphere.errors import UserError
from unitsphere.kernels import loss_path
from unitsphere.models.constraint import declarations, normalize_
from unitsphere.models.context import Cache, CrossContext, Memory, SelfContext
from unitsphere.models.mixers import ATTENTION, Mixer, mixer_names
from unitsphere.models.mixers.attention import attention_flops
from unitsphere.models.parts import BigramEmbedding, reset
from unitsphere.ops.activations import soft_capped
from unitsphere.ops.attention import MaskRule, attention_mask, takes_blocks
from unitsphere.ops.linear import scaled_linear
from unitsphere.ops.loss import linear_cross_entropy, precondition
from unitsphere.ops.rope import rope_table
from unitsphere.ops.sharded_loss import gathered_linear, is_sharded

Objective = Literal["clm", "mlm", "seq2seq"]


class Head(NamedTuple):
    """Logits scale ⊙ (weight x) of x [..., d]: weight [V, d], scale [V], one for all, or none.

    With `softcap` c they are c·z/√(c² + z²) of these z.
    """

    weight: Tensor
    scale: Tensor | float | None = None
    softcap: float | None = None


class Transformer(nn.Module, ABC):
    """An architecture sets the attributes below and fills in `embed` and `head`."""

    blocks: nn.ModuleList
    encoder: nn.ModuleList | None  # the encoder's blocks, with seq2seq
    norm: nn.Module  # of the last h, before the head; none unless set
    norm_memory: nn.Module  # of the encoder's last h, before cross-attention; none unless set
    shift: nn.Module | None  # makes h of the embeddings of a token and of the one before it
    bigrams: BigramEmbedding | None  # adds to h what it has for the pair of the two
    compiled: bool = False  # by a run, and the loss with it
    d_k: int
    d_rot: int  # rotated dimensions of a head; 0 for none
    rope_base: float = 10000.0
    max_length: int | None = None  # the longest sequence that has positions; none: any
    attention_dropout: float = 0.0  # share of attention's weights that training drops

    def __init__(self, config: Any, objective: Objective) -> None:
        super().__init__()
        if config.window is not None and config.window < 1:
            raise UserError(
                f"model.window must be at least 1, which is the token itself: {config.window}; "
                "leave it out to see everything"
            )
        self.config = config
        self.objective: Objective = objective
        self.norm = self.norm_memory = nn.Identity()
        self.shift = self.bigrams = None

    def stacks(self, block: Callable[..., nn.Module]) -> tuple[nn.ModuleList, nn.ModuleList | None]:
        """`blocks` and `encoder` of n_layers each; with seq2seq the former look across.

        An encoder's tokens see those after them, so its layers have attention, whatever
        `model.mixers` says of the decoder's.
        """
        config, layers = self.config, range(self.config.n_layers)
        seq2seq = self.objective == "seq2seq"
        if self.objective == "mlm" and {*mixer_names(config)} != {ATTENTION}:
            raise UserError(
                "an encoder (objective mlm) sees whole texts: model.mixers must be attention"
            )
        blocks = nn.ModuleList(block(config, layer, cross=seq2seq) for layer in layers)
        values = getattr(config, "value_embeddings", False)
        if values and not any(name.endswith("E_v") for name, _ in blocks.named_modules()):
            raise UserError(
                "model.value_embeddings are in the last layer and every second before it, and "
                f"model.mixers {config.mixers!r} has attention in none of them"
            )
        if getattr(config, "key_offset", False) and ATTENTION not in mixer_names(config):
            raise UserError(
                f"model.key_offset is of attention, and model.mixers {config.mixers!r} has none"
            )
        plain = replace(config, mixers=ATTENTION)
        encoder = nn.ModuleList(block(plain, layer, cross=False) for layer in layers)
        return blocks, encoder if seq2seq else None

    def mixers(self) -> list[Mixer]:
        """The token mixers of `blocks`, in the order of the layers."""
        return [cast(Mixer, block.get_submodule("attention")) for block in self.blocks]

    @property
    def attends(self) -> bool:
        """Whether any of `blocks` has attention: other mixers need no mask."""
        return any(mixer.bidirectional for mixer in self.mixers())

    @abstractmethod
    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[batch, time] int64 -> h [batch, time, d]."""

    def start(
        self,
        tokens: Tensor,
        positions: Tensor,
        before: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """The first h, [batch, time, d]: `embed`, then `shift` and `bigrams` if there are any.

        before: the token [batch, 1] before these; None: there is none. A document's first token has
        none before it either, nor has what is at position 0, padding on the left.
        """
        if self.shift is None and self.bigrams is None:
            return self.embed(tokens, positions)
        known = torch.cat([tokens[:, :1] if before is None else before, tokens], dim=1)
        first = (positions == 0)[..., None]
        if documents is not None:
            first = first | (documents != documents.roll(1, dims=1))[..., None]
        pairs = None if self.bigrams is None else self.bigrams.rows(tokens, known[:, :-1])
        return self.mix(self.embed(known, positions), pairs, first)

    def mix(self, e: Tensor, pairs: Tensor | None, first: Tensor) -> Tensor:
        """The first h, of embeddings e [batch, 1 + time, d] and of the `rows` of pairs.

        It can be compiled. The look-ups are not in it: processes may share their weights.
        """
        h = e[:, 1:]
        if self.shift is not None:
            h = self.shift(h, e[:, :-1].masked_fill(first, 0.0))
        return h if self.bigrams is None else self.bigrams(h, pairs, first)

    @abstractmethod
    def head(self) -> Head:
        """What makes logits of `norm` of the last h."""

    def logit_scale(self) -> Tensor:
        """The head's scale of each logit, [V]; UserError for a model that has none."""
        scale = self.head().scale
        if not isinstance(scale, Tensor) or scale.dim() != 1:
            raise UserError(
                "optim.logit_power is for models with a learned scale of each logit (model.s_z of "
                "ngpt and angpt): leave it out"
            )
        return scale

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def forward(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        left_padding: Tensor | None = None,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Logits [batch, time, V] for tokens [batch, time] int64.

        With a cache the tokens come after those it holds. `left_padding` [batch] int64 counts
        the leading tokens of each row that are padding: masked, positions start after them.
        `mask` (bool, broadcast to [batch, 1, time, keys]) is true where a token may look, instead
        of what the objective says, but only within `model.window`: to hide padding at the end, for
        instance. Every token must see at least one. `memory` is what `encode` made of the
        source; seq2seq needs it. `documents` (int [batch, time]) numbers the document of each
        token: a token sees only its own document.
        """
        return self.logits(self.features(tokens, cache, left_padding, mask, memory, documents))

    def logits(self, h: Tensor) -> Tensor:
        """The head's logits of features [..., d]: [..., V]."""
        head = self.head()
        made = gathered_linear if is_sharded(head.weight) else scaled_linear
        return soft_capped(made(h, head.weight, head.scale), head.softcap)

    def features(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        left_padding: Tensor | None = None,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """What the head sees, [batch, time, d], for the arguments of `forward`."""
        if tokens.dim() != 2:
            raise UserError(f"tokens must be [batch, time], not of shape {list(tokens.shape)}")
        if (memory is None) != (self.encoder is None):
            raise UserError(
                f"a model with the objective {self.objective} "
                + ("needs" if memory is None else "takes no")
                + " memory: give seq2seq what encode(source) returns, and other objectives none"
            )
        if cache is not None and self.objective == "mlm":
            raise UserError("an encoder (objective mlm) sees whole texts: it has no cache")
        if documents is not None and (cache is not None or memory is not None):
            raise UserError(
                "documents work only with whole sequences of text, not with a cache or with seq2seq"
            )
        if documents is not None and documents.shape != tokens.shape:  # a longer one would not fail
            raise UserError(
                f"documents number each token: they must have its shape {list(tokens.shape)}, not "
                f"{list(documents.shape)}"
            )
        if mask is not None and not all(mixer.bidirectional for mixer in self.mixers()):
            raise UserError("a mask needs attention in every layer: see model.mixers")
        causal = self.objective != "mlm"
        context = self._context(tokens, cache, left_padding, mask, causal, documents)
        across = None if memory is None else CrossContext(memory)
        before = None if cache is None else cache.last
        h = self.start(tokens, context.positions, before, documents)
        for n, block in enumerate(self.blocks):
            if cache is not None:  # each layer has its own state
                context = context.of(cache.layers[n])
                across = None if memory is None else CrossContext(memory, cache.layers[n])
            h = block(h, context, across)
        if cache is not None:
            cache.length, cache.last = cache.length + tokens.shape[1], tokens[:, -1:]
        return self.norm(h)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        """What a seq2seq model's decoder looks at, for source [batch, time] int64.

        `source_mask` (bool [batch, time]) is true for real tokens, false for padding; every row
        needs a real one.
        """
        if self.encoder is None:
            raise UserError(
                f"a model with the objective {self.objective} has no separate encoder: build "
                "it with the objective seq2seq"
            )
        mask = None if source_mask is None else source_mask[:, None, None, :]
        context = self._context(source, None, None, mask, causal=False)
        context = replace(context, real=source_mask)  # padding is before no token
        h = self.start(source, context.positions, documents=source_mask)
        for block in self.encoder:
            h = block(h, context)
        return Memory(self.norm_memory(h), mask)

    def _context(
        self,
        tokens: Tensor,
        cache: Cache | None,
        left_padding: Tensor | None,
        mask: Tensor | None,
        causal: bool,
        documents: Tensor | None = None,
    ) -> SelfContext:
        past, new = 0 if cache is None else cache.before(tokens), tokens.shape[1]
        if self.max_length is not None and past + new > self.max_length:
            raise UserError(
                f"a sequence of {past + new} tokens, but the model has learned positions for "
                f"{self.max_length}: shorten it, or train with a larger model.max_positions"
            )
        positions, real = torch.arange(past, past + new, device=tokens.device), None
        if left_padding is not None:
            real = positions >= left_padding[:, None]
            positions = (positions - left_padding[:, None]).clamp(min=0)
        wide = torch.promote_types(next(self.parameters()).dtype, torch.float32)
        table = rope_table(positions, self.d_rot, self.rope_base, wide)
        if left_padding is not None:  # one table per row, the same for all heads
            table = (table[0][:, None], table[1][:, None])
        if causal and not self.attends:  # an encoder always does
            return SelfContext(positions, table, None, causal, past, real, documents)
        rule = MaskRule(causal, self._window(past + new), documents)
        drops = self.training and self.attention_dropout > 0  # FlexAttention cannot
        blocks = cache is None and not drops and takes_blocks(tokens.device, self.d_k, wide)
        see = attention_mask(rule, new, past + new, tokens.device, left_padding, mask, blocks)
        return SelfContext(positions, table, see, causal, past, real, documents, tokens=tokens)

    def _window(self, length: int) -> int | None:
        """The window, where a sequence of that length is longer, or may be: an exported one."""
        window = self.config.window
        return window if torch.compiler.is_exporting() or (window or length) < length else None

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        reduction: Literal["mean", "sum"] = "mean",
        mask: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        label_smoothing: float = 0.0,
        documents: Tensor | None = None,
        z_loss: float = 0.0,
        logit_power: float | None = None,
    ) -> Tensor:
        """Cross-entropy in nats of targets [batch, time]; a target of −100 is not scored.

        `mask` and `documents` are those of `forward`, `source` and `source_mask` of `encode`.
        `label_smoothing` ε takes (1 − ε) of the target and ε of the mean over the vocabulary;
        `z_loss` times (log Σ exp logits)² is added for each scored token (PaLM §5). `logit_power`
        is the q of `ops.loss.precondition`, for models whose logits have a scale each.
        """
        if targets.shape != tokens.shape:
            shapes = " and ".join(str(list(ids.shape)) for ids in (tokens, targets))
            raise UserError(f"tokens and targets must have one shape, not {shapes}")
        memory = None if source is None else self.encode(source, source_mask)
        h = self.features(tokens, mask=mask, memory=memory, documents=documents)
        head = self.head()
        scale, gradient = head.scale, None
        if logit_power is not None and torch.is_grad_enabled():
            scale, gradient = precondition(self.logit_scale(), logit_power)
        path = loss_path(h.device, self.compiled and torch.is_grad_enabled())
        numbers = reduction, label_smoothing, z_loss, path, head.softcap, gradient
        return linear_cross_entropy(h, head.weight, targets, scale, *numbers)

    def mixing_flops(self, context: int) -> float:
        """Operations per token, forward and backward, of mixers without those of their weights.

        In sequences of `context` tokens; with seq2seq a token of the target together with one of a
        source of the same length.
        """
        total = sum(mixer.flops(context, self.objective != "mlm") for mixer in self.mixers())
        for block in self.encoder or ():
            attention = cast(Mixer, block.get_submodule("attention"))
            across = attention_flops(self.config.d_model, context, causal=False)
            total += attention.flops(context, causal=False) + across
        return total

    def new_cache(self, batch: int, length: int) -> Cache:
        """An empty decoding state for `batch` rows of up to `length` tokens."""
        return Cache(self.mixers(), batch, length)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """Set every parameter to its start, then every constrained vector to its radius."""
        declarations(self)  # a parameter that is declared neither constrained nor free is an error
        for module in self.modules():
            reset(module, generator)
        normalize_(self)
