"""One small model of each architecture, for the properties that all of them have."""

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from reference import angpt, basics, dyt, gpt, lnscaling, ngpt, normformer, rezero
from reference.basics import Scale, Tensors

V, D, D_F, T_MAX = 11, 8, 12, 9
TOKENS = torch.tensor([[1, 5, 9, 2, 7], [3, 3, 0, 10, 4]])
TARGETS = torch.tensor([[5, 9, 2, 7, 1], [3, 0, 10, -100, 8]])
SOURCE = torch.tensor([[8, 2, 6, 4], [10, 1, 1, 5]])
REAL = torch.tensor([[True, True, True, False], [True, True, False, False]])
PADDED = SOURCE.masked_fill(~REAL, 0)
AROUND_ONE = ("gain_A", "gain_X", "gain_M", "gain_final", "gain_encoder", "gain", "gamma")
AROUND_ONE += ("alpha", "alpha_A", "alpha_X", "alpha_M", "s_qk", "s_u", "s_nu", "s_z", "g")
AROUND_ONE += ("lambda", "a", "embed_scale")


@dataclass(frozen=True)
class Case:
    """An oracle with settings; `relative`: positions enter through rotations alone."""

    oracle: ModuleType
    settings: Any
    relative: bool = True

    def but(self, **changes: object) -> "Case":
        """The same with other settings."""
        return replace(self, settings=replace(self.settings, **changes))

    def tensors(self, seed: int = 0, vocabulary: int = V) -> Tensors:
        """Random tensors; matrices of nGPT have unit norm."""
        sizes = (vocabulary, D, D_F)
        sizes = (*sizes, T_MAX) if self.oracle is normformer else sizes
        shapes = self.oracle.shapes(self.settings, *sizes)
        raw = basics.random_tensors(shapes, seed, AROUND_ONE)
        if self.oracle is ngpt:
            return {n: t.detach().requires_grad_() for n, t in ngpt.normalized(raw).items()}
        return raw

    def logits(self, tensors: Tensors, tokens: Tensor = TOKENS, **where: Tensor | None) -> Tensor:
        """`forward`."""
        return self.oracle.forward(tensors, self.settings, tokens, **where)

    def translate(
        self,
        tensors: Tensors,
        source: Tensor = SOURCE,
        source_mask: Tensor | None = None,
        tokens: Tensor = TOKENS,
    ) -> Tensor:
        """`encode`, then `forward`."""
        memory = self.oracle.encode(tensors, self.settings, source, source_mask)
        return self.logits(tensors, tokens, memory=memory, source_mask=source_mask)

    def loss(self, tensors: Tensors, **where: Any) -> Tensor:
        """`loss` on TOKENS and TARGETS."""
        return self.oracle.loss(tensors, self.settings, TOKENS, TARGETS, **where)


ALPHA = Scale(init=0.3, scale=1.0)
NORMFORMER = normformer.Settings(2, 2)
PRE_LN = replace(NORMFORMER, **normformer.PRE_LN)  # type: ignore[arg-type]
POST_LN = replace(NORMFORMER, **normformer.POST_LN)  # type: ignore[arg-type]
CASES = {
    "gpt": Case(gpt, gpt.Settings(2, 2)),
    "gpt-plus": Case(gpt, gpt.Settings(2, 2, qk_norm=True, rotary_fraction=0.5)),
    "ngpt": Case(ngpt, ngpt.paper(D, 2, 2, alpha=ALPHA)),
    "ngpt-slerp": Case(ngpt, ngpt.paper(D, 2, 2, residual="slerp", normalize_in_forward=True)),
    "angpt": Case(angpt, angpt.Settings(2, 2, alpha=ALPHA)),
    "angpt-row": Case(angpt, angpt.Settings(2, 2, alpha=ALPHA, attention_factor=True)),
    "normformer": Case(normformer, NORMFORMER, relative=False),
    "normformer-rotary": Case(normformer, replace(NORMFORMER, positions="rotary", qkv_ln="width")),
    "pre-ln": Case(normformer, PRE_LN, relative=False),
    "post-ln": Case(normformer, replace(POST_LN, positions="learned"), relative=False),
    "rezero": Case(rezero, rezero.Settings(2, 2)),
    "lnscaling": Case(lnscaling, lnscaling.Settings(2, 2)),
    "dyt": Case(dyt, dyt.Settings(2, 2)),
    "dyt-no-bias": Case(dyt, dyt.Settings(2, 2, bias=False)),
}
ENCODERS = {name: case.but(causal=False) for name, case in CASES.items()}
TRANSLATORS = {name: case.but(seq2seq=True) for name, case in CASES.items()}


def close(a: Tensor, b: Tensor) -> None:
    """Equal but for rounding."""
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def differ(a: Tensor, b: Tensor) -> bool:
    """Whether they differ by more than rounding."""
    return not torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def count(case: Case, V: int, d: int, d_f: int) -> int:
    """How many parameters `case` has at that size."""
    sizes = (V, d, d_f, 1024) if case.oracle is normformer else (V, d, d_f)
    shapes = case.oracle.shapes(case.settings, *sizes)
    return sum(math.prod(shape) for shape in shapes.values())
