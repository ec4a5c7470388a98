"""The arms of benchmarks/designs.py: what they share, what each is, and the middle of its rates.

The middle rate is that of the quickstart's recipe if there is one, that of
docs/results/quickstart-ngpt-paper.md for nGPT with the paper's scales, GPT+'s for designs with its
QK norm and its start (Muon, LN-scaling, DyT), and for the others the best of a first look at 100
steps, docs/results/designs-look.md; for Post-LN half of that, the lowest rate of the look.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SIZE = {"d_model": 128, "n_layers": 4, "n_heads": 2}
# One rate serves all roles here, and then a wide start is the better one for these designs.
INIT = {"init_std": "1/sqrt(d)"}
GPT_PLUS = {"qk_norm": True, "rotary_fraction": 0.5, **INIT}
SMALL_RUN = {"alpha": {"init": "1/L"}, "s_z": {"init": "sqrt(d)"}}
ANGPT = {"rotary_fraction": 0.5, "nu_acf": 3.74}
NORMFORMER = {"res_scale": True, **INIT}
PRE_LN = {"post_attn_ln": False, "ffn_ln": False, "head_scale": False, **INIT}
POST_LN = {**PRE_LN, "norm": "post"}
ADAM = {"name": "adam", "eps": 1e-9}
ADAMW = {"name": "adamw", "eps": 1e-9, "weight_decay": 0.1}
MUON = {**ADAMW, "name": "muon"}
SHARED: dict[str, Any] = {
    "data": {"source": "stdlib", "tokenizer": "bpe:1024", "context": 256},
    "schedule": {"kind": "linear", "warmup": 0.1, "final": 0.0},
    "train": {
        "steps": 500,
        "batch_tokens": 1024,
        "seed": 0,
        "precision": "fp32",
        "device": "cpu",
        "eval_every": 0,
        "eval_tokens": None,
        "save_every": 0,
    },
}


@dataclass(frozen=True)
class Design:
    """One arm: how it differs from the others, and the middle one of its rates."""

    title: str
    architecture: str
    model: Mapping[str, Any]
    optim: Mapping[str, Any]
    middle: float

    def table(self) -> dict[str, Any]:
        """The arm's config, as a recipe holds it."""
        model = {**SIZE, **self.model}
        return {"architecture": self.architecture, "model": model, "optim": {**self.optim}} | SHARED


# Of most interest first: the runs are made in this order, the middle rates before the others.
DESIGNS = {
    "gpt-plus": Design("GPT+", "gpt", GPT_PLUS, ADAMW, 8e-3),
    "ngpt": Design("nGPT, α = 1/L and s_z = √d", "ngpt", SMALL_RUN, ADAM, 1e-2),
    "angpt": Design("anGPT", "angpt", ANGPT, ADAM, 1.4e-2),
    "gpt-plus-muon": Design("GPT+ with Muon", "gpt", GPT_PLUS, MUON, 8e-3),
    "gpt": Design("GPT", "gpt", INIT, ADAMW, 4e-3),
    "ngpt-paper": Design("nGPT, the paper's scales", "ngpt", {}, ADAM, 2e-2),
    "normformer": Design("NormFormer", "normformer", NORMFORMER, ADAMW, 8e-3),
    "pre-ln": Design("Pre-LN", "normformer", PRE_LN, ADAMW, 8e-3),
    "post-ln": Design("Post-LN", "normformer", POST_LN, ADAMW, 1e-3),
    "rezero": Design("ReZero", "rezero", INIT, ADAMW, 8e-3),
    "lnscaling": Design("LN-scaling", "lnscaling", INIT, ADAMW, 8e-3),
    "dyt": Design("DyT", "dyt", INIT, ADAMW, 8e-3),
}
