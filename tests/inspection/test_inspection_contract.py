"""Every probe on every architecture: it finds plain values, or says why it does not apply."""

import dataclasses
import json
import math

import pytest
import torch

from unitsphere.data.batch import Batch
from unitsphere.errors import UserError
from unitsphere.inspection import updates
from unitsphere.inspection.anatomy import embeddings_of, layers_of, matrices_of
from unitsphere.inspection.probes import PROBES, inspect
from unitsphere.inspection.trace import Base, Subject, trace
from unitsphere.models.constraint import roles
from unitsphere.models.mixers import MIXERS
from unitsphere.models.registry import ARCHITECTURES, build

SMALL = {"vocab_size": 50, "d_model": 32, "n_layers": 2, "n_heads": 2}
EVERY = pytest.mark.parametrize("name", ARCHITECTURES)
NORMS = {"gpt", "normformer", "lnscaling", "dyt"}
SILENT = {  # probe -> the architectures that have nothing to show
    "eigen_learning_rates": {*NORMS, "rezero"},
    "lambda_by_depth": set(ARCHITECTURES),  # a switch of NormFormer's
    "gain_norms": {"ngpt", "angpt", "rezero"},
    "gates": set(ARCHITECTURES),  # a switch of nGPT's
    "learned_scales": set(),
    "decay_rates": set(ARCHITECTURES),  # of what model.mixers may name
    "recurrent_states": set(ARCHITECTURES),
    "expert_loads": set(ARCHITECTURES),  # of what model.n_experts makes
    "max_violation": set(ARCHITECTURES),
}


def batch(objective="clm", rows=2, time=11):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50, (rows, time + 1), generator=generator)
    source = torch.randint(0, 50, (rows, 7), generator=generator)
    return Batch(tokens[:, :-1], tokens[:, 1:], source if objective == "seq2seq" else None)


def masked(objective):
    """The batch with what hides some tokens from others, as data have it."""
    given = batch(objective)
    long = torch.tensor([[3], [5]])
    if objective == "seq2seq":
        return dataclasses.replace(given, source_mask=torch.arange(7) < long)
    if objective == "mlm":
        return dataclasses.replace(given, mask=(torch.arange(11) < long)[:, None, None])
    return dataclasses.replace(given, documents=(torch.arange(11) < long).long())


def subject(name, objective="clm", **numbers):
    model = build(name, objective=objective, **SMALL, **numbers)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    given = batch(objective)
    model.loss(given.inputs, given.targets, **given.keywords()).backward()
    optimizer.step()
    moments = {key: optimizer.state[p]["exp_avg"] for key, p in model.named_parameters()}
    other = build("gpt", objective=objective, **SMALL)
    return Subject(
        model,
        given,
        moments=moments,
        before=before,
        step=1,
        recorded=recorded(model, given),
        base=Base(other, given, recorded(other, given)),
    )


def recorded(model, given):
    """What a run of one step would have recorded of its gradients."""
    gradients = updates.gradients_of(model, given)
    probes = {
        name: {1: getattr(updates, name)(model, gradients.by_name)}
        for name in ("gradient_norms", "second_fc_gradients")
    }
    return updates.Recorded({1: gradients.loss}, probes)


def check(found):
    """Plain values of one of the two forms, all finite."""
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found
    for series in found.values():
        heights = series["values"] if "values" in series else series["means"]
        assert len(heights) == len(series["labels"]) > 0
        assert len(set(series["labels"])) == len(series["labels"])
        assert all(isinstance(height, float) and math.isfinite(height) for height in heights)


@EVERY
@pytest.mark.parametrize("objective", ["clm", "mlm", "seq2seq"])
def test_every_probe_finds_something_or_says_why_not(name, objective):
    found = inspect(subject(name, objective))
    assert list(found) == list(PROBES)
    for probe, values in found.items():
        if isinstance(values, str):
            assert name in SILENT[probe], (probe, values)
            assert len(values) > 20
        else:
            assert name not in SILENT.get(probe, ()), probe
            check(values)
            assert ("means" in next(iter(values.values()))) == (
                PROBES[probe].form == "distribution"
            )


@EVERY
@pytest.mark.parametrize("objective", ["clm", "mlm", "seq2seq"])
def test_entropies_are_of_what_may_be_seen(name, objective):
    found = trace(build(name, objective=objective, **SMALL), masked(objective))
    assert found.entropies.keys() == found.uniform.keys() != set()
    for place, most in found.uniform.items():
        assert 0 < most < math.log(7)
        assert (found.entropies[place] <= most + 1e-5).all()


@EVERY
def test_looking_changes_nothing(name):
    looked = subject(name)
    model = looked.model
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    grads = {key: p.grad.clone() for key, p in model.named_parameters()}
    generator = torch.get_rng_state()
    inspect(looked)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(torch.equal(grads[key], p.grad) for key, p in model.named_parameters())
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@EVERY
@pytest.mark.parametrize("objective", ["clm", "seq2seq"])
def test_a_trace_follows_h_through_every_sublayer(name, objective):
    model, given = build(name, objective=objective, **SMALL), batch(objective)
    found = trace(model, given)
    stacks = {"clm": ["0", "1"], "seq2seq": ["enc 0", "enc 1", "0", "1"]}[objective]
    sublayers = ["attention", "cross", "mlp"] if objective == "seq2seq" else ["attention", "mlp"]
    wanted = [
        (label, sublayer)
        for label in stacks
        for sublayer in (["attention", "mlp"] if label.startswith("enc") else sublayers)
    ]
    assert [(m.layer, m.sublayer) for m in found.moves] == wanted
    for one, next_one in zip(found.moves, found.moves[1:], strict=False):
        if not (one.layer.startswith("enc") and not next_one.layer.startswith("enc")):
            assert torch.equal(one.after, next_one.before)
    assert all(not torch.equal(m.before, m.after) for m in found.moves) or name == "rezero"
    with torch.no_grad():
        memory = None if given.source is None else model.encode(given.source)
        features = model.features(given.inputs, memory=memory)
    assert torch.equal(model.norm(found.states["1"]), features)


@EVERY
def test_matrices_and_embeddings_are_those_that_the_model_declares(name):
    model = build(name, objective="seq2seq", **SMALL)
    role = roles(model)
    found = list(matrices_of(model))
    assert {m.parameter for m in found} == {k for k, r in role.items() if r == "matrix"}
    assert all(m.vectors().shape[1] == 32 for m in found)
    assert all(layer.sublayer_inputs for layer in layers_of(model))
    assert {E.shape for E in embeddings_of(model).values()} == {(50, 32)}


@pytest.mark.parametrize("mixer", MIXERS)
def test_matrices_of_a_mixer_are_those_that_it_declares(mixer):
    """Mamba-2's W_B and W_C and W_low of gated linear attention too, which its heads share."""
    model = build("ngpt", mixers=mixer, recurrence={"d_value": 8}, **SMALL)
    found = {m.parameter for m in matrices_of(model)}
    assert found == {k for k, role in roles(model).items() if role == "matrix"}


def test_normformer_s_lambda_shows_once_it_is_there():
    found = inspect(subject("normformer", res_scale=True), ["lambda_by_depth"])["lambda_by_depth"]
    assert found["λ"]["labels"] == ["0.5", "1"]


def test_post_ln_reads_h_behind_its_norms():
    model, given = build("normformer", norm="post", **SMALL), batch()
    first, second, *_ = trace(model, given).moves
    with torch.no_grad():
        assert torch.equal(first.after, second.before)
        normed = torch.nn.functional.layer_norm(first.after, (32,))
    torch.testing.assert_close(first.after, normed, rtol=0, atol=1e-4)


def test_an_unknown_probe_names_the_nearest():
    with pytest.raises(UserError, match=r"no probe 'dead_unit' \(did you mean 'dead_units'\?\)"):
        inspect(subject("gpt"), ["dead_unit"])
