"""The exported form computes what the model computes: every design, objective and switch."""

import ast
from pathlib import Path

import pytest
import torch
from design_cases import DESIGNS, make, scattered, switches, tokens

from unitsphere.errors import UserError
from unitsphere.inference.hf import modeling_unitsphere as hf
from unitsphere.inference.hf.export import config_fields
from unitsphere.models.config import RecurrenceConfig
from unitsphere.models.exported import exported_tensors, is_tied, load_exported
from unitsphere.models.mixers import MIXERS
from unitsphere.models.plans import fold_

CLASSES = {"clm": hf.UnitsphereForCausalLM, "mlm": hf.UnitsphereForMaskedLM}
CASES = [(design, objective, "plain") for design in DESIGNS for objective in CLASSES] + [
    (design, [*CLASSES][i % 2], name)  # they differ in a mask: switches take turns
    for design in DESIGNS
    for i, name in enumerate(switches(design))
]
REFUSED = {
    "residual=slerp",
    "residual=riemannian",
    "attention_factor=True",
    "softcap=2.5",
    "gated=True",
    "value_embeddings=True",
    "bigram_rows=30",
}


def switched(design, objective, name):
    """The model of a case in fp32, off its start."""
    settings = {} if name == "plain" else switches(design)[name]
    return scattered(make(design, objective, **settings)).float()


def exported(design, model):
    """The transformers model of a folded one."""
    architecture = DESIGNS[design][0]
    tensors, config = exported_tensors(architecture, model)
    fields = config_fields(architecture, model, is_tied(model), context=16)
    made = CLASSES[model.objective](hf.UnitsphereConfig(**fields)).eval()
    made.to(next(model.parameters()).dtype)
    made.load_state_dict(tensors, strict=not is_tied(model))
    return made, tensors, config


def test_a_key_offset_is_not_exported_beside_a_window():
    model = make("gpt", key_offset=True, rotary_fraction=0.5, window=4)
    with pytest.raises(UserError, match=r"cannot export model.key_offset beside model.window"):
        exported_tensors("gpt", fold_(model))


def test_a_window_of_one_token_is_not_exported_with_a_cache():
    with pytest.raises(UserError, match=r"cannot export model.window 1"):
        exported_tensors("gpt", fold_(make("gpt", window=1)))
    model = scattered(make("gpt", "mlm", window=1)).float()  # an encoder has no cache
    x = tokens(2, 7)
    expected = model(x)
    torch.testing.assert_close(exported("gpt", fold_(model))[0](x).logits, expected)


@pytest.mark.parametrize(("design", "objective", "name"), CASES)
@torch.no_grad()
def test_the_exported_form_has_the_same_logits_and_comes_back(design, objective, name):
    model = switched(design, objective, name)
    x = tokens(2, 7)
    expected = model(x)
    fold_(model)
    ungated = DESIGNS[design][0] == "gpt" and name == "activation=relu2"
    if name in REFUSED or ungated:
        with pytest.raises(UserError, match=name.partition("=")[0]):
            exported_tensors(DESIGNS[design][0], model)
        return
    made, tensors, config = exported(design, model)
    bound = 1e-5 * max(1.0, expected.abs().max().item())
    assert (made(x).logits - expected).abs().max() < bound
    back = load_exported(DESIGNS[design][0], config, objective, tensors)
    torch.testing.assert_close(
        back(x), model(x), rtol=0, atol=0 if not model.config.tied else bound
    )


@torch.no_grad()
def test_a_norm_of_a_tied_embedding_is_carried():
    """The head has the embedding as it is, so it is a matrix of its own in the exported form."""
    model = scattered(make("gpt+", embedding_norm=True, tied=True)).float()
    x = tokens(2, 7)
    expected = model(x)
    made, tensors, config = exported("gpt+", fold_(model))
    bound = 1e-5 * max(1.0, expected.abs().max().item())
    assert (made(x).logits - expected).abs().max() < bound
    assert (load_exported("gpt", config, "clm", tensors)(x) - expected).abs().max() < bound


@pytest.mark.parametrize("name", ["window", "n_kv_heads", "both"])
@pytest.mark.parametrize("objective", CLASSES)
@pytest.mark.parametrize("design", ["gpt+", "ngpt", "angpt", "normformer"])
@torch.no_grad()
def test_windows_and_shared_keys_are_carried(design, objective, name):
    settings = {"window": {"window": 3}, "n_kv_heads": {"n_kv_heads": 2}}
    sizes = settings.get(name) or {"window": 3, "n_kv_heads": 2}
    model = scattered(make(design, objective, n_heads=4, n_layers=2, **sizes)).float()
    x = tokens(2, 9)
    expected = model(x)
    made, *_ = exported(design, fold_(model))
    assert (made(x).logits - expected).abs().max() < 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("shared", [0, 2])
@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_experts_are_carried_with_the_bias_that_chooses_them(design, shared):
    model = make(design, n_experts=4, shared_experts=shared, d_ff=8)
    model = scattered(model).float()
    x = tokens(2, 9)
    unbiased = model(x)
    router = model.blocks[0].mlp.router
    router.expert_bias.copy_(torch.tensor([0.5, -0.5, 0.0, 0.1]))
    expected = model(x)
    assert (expected - unbiased).abs().max() > 1e-3
    made, tensors, config = exported(design, fold_(model))
    bound = 1e-5 * max(1.0, expected.abs().max().item())
    assert (made(x).logits - expected).abs().max() < bound
    back = load_exported(DESIGNS[design][0], config, "clm", tensors)
    assert (back.to("cpu")(x) - model(x)).abs().max() < bound
    (name,) = (name for name in tensors if name.endswith("mlp.router.expert_bias"))
    assert torch.equal(tensors[name], router.expert_bias)


def hybrid(design, mixers, **numbers):
    """A model with a layer of each of the mixers, off its start, in double."""
    sizes = {"n_layers": len(mixers.split()), "recurrence": RecurrenceConfig(d_value=8, conv=3)}
    return scattered(make(design, mixers=mixers, **sizes | numbers))


PATTERNS = [*MIXERS, "attention gdn mamba2", "gla attention"]


@pytest.mark.parametrize("mixers", PATTERNS)
@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_mixers_are_carried(design, mixers):
    model = hybrid(design, mixers)
    x = tokens(2, 41)  # several chunks, the last not full
    expected = model(x)
    made, tensors, config = exported(design, fold_(model))
    in_fp32 = model.d_rot or getattr(model.config, "positions", "") == "sinusoidal"  # there
    exact = mixers in MIXERS and not (in_fp32 and DESIGNS[design][0] == "normformer")
    bound = 1e-11 if exact else 1e-5
    assert (made(x).logits - expected).abs().max() < bound * max(1.0, expected.abs().max().item())
    assert torch.equal(load_exported(DESIGNS[design][0], config, "clm", tensors)(x), model(x))


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("mixers", ["attention", *PATTERNS])
@torch.no_grad()
def test_generation_from_a_state_is_generation_without_one(mixers, settings):
    made, *_ = exported("gpt+", fold_(hybrid("gpt+", mixers, window=5).float()))
    x, mask = tokens(3, 18), torch.ones(3, 18, dtype=torch.int64)
    mask[0, :7], mask[1, :17] = 0, 0  # a row of 11 tokens, and one of a single token
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, **settings}
    found = made.generate(x, attention_mask=mask, **settings)
    settings.pop("cache_implementation", None)
    assert torch.equal(found, made.generate(x, attention_mask=mask, use_cache=False, **settings))
    for row in range(3):
        alone = x[row, mask[row].bool()][None]
        assert torch.equal(made.generate(alone, **settings)[0, -8:], found[row, -8:])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("switch", ["key_offset", "token_shift"])
@torch.no_grad()
def test_a_prompt_read_in_pieces_is_the_prompt(switch, cache):
    """Pieces end within the padding, right after it, and in the text."""
    model = scattered(make("gpt+", **{switch: True})).float()
    made, *_ = exported("gpt+", fold_(model))
    x, mask = tokens(3, 9), torch.ones(3, 9, dtype=torch.int64)
    mask[0, :4], mask[1, :5] = 0, 0
    settings = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None}
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    whole = made.generate(x, attention_mask=mask, **settings).logits
    settings |= {"cache_implementation": cache, "disable_compile": True}
    for size in (2, 4):
        found = made.generate(x, attention_mask=mask, prefill_chunk_size=size, **settings).logits
        torch.testing.assert_close(found, whole)


@torch.no_grad()
def test_new_ids_for_a_cache_of_an_earlier_text_still_need_the_token_before():
    made, *_ = exported("gpt+", fold_(scattered(make("gpt+", token_shift=True)).float()))
    settings = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    found = made.generate(tokens(1, 6), **settings, return_dict_in_generate=True)
    settings |= {"past_key_values": found.past_key_values}
    settings |= {"attention_mask": torch.ones(1, 12, dtype=torch.int64)}
    with pytest.raises(ValueError, match="needs previous_ids with a cache"):
        made.generate(tokens(1, 4), **settings)


@pytest.mark.parametrize("switch", ["tied", "key_offset", "token_shift"])
@torch.no_grad()
def test_a_text_and_its_cache_are_continued_as_the_text(switch):
    """No mask was given: the whole text was read again after what the cache holds."""
    made, *_ = exported("gpt+", fold_(scattered(make("gpt+", **{switch: True})).float()))
    settings = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    whole = made.generate(tokens(1, 6), max_new_tokens=9, **settings)
    first = made.generate(tokens(1, 6), max_new_tokens=4, **settings)
    cache = first.past_key_values
    found = made.generate(first.sequences, past_key_values=cache, max_new_tokens=5, **settings)
    assert torch.equal(found.sequences, whole.sequences)
    assert found.past_key_values.get_seq_length() == 6 + 9 - 1


@torch.no_grad()
def test_padding_fed_token_by_token_leaves_no_offset_key():
    model = scattered(make("gpt+", key_offset=True)).float()
    made, *_ = exported("gpt+", fold_(model))
    x, mask = tokens(1, 7), torch.ones(1, 7, dtype=torch.int64)
    mask[0, :3] = 0
    cache, parts = None, []
    for end in range(1, 8):
        out = made(x[:, end - 1 : end], attention_mask=mask[:, :end], past_key_values=cache)
        cache, parts = out.past_key_values, [*parts, out.logits]
    torch.testing.assert_close(torch.cat(parts[3:], 1), made(x[:, 3:]).logits)


@pytest.mark.parametrize("mixers", PATTERNS)
@torch.no_grad()
def test_a_state_takes_a_text_up_at_every_split(mixers):
    model = hybrid("ngpt", mixers)
    made, *_ = exported("ngpt", fold_(model))
    x = tokens(2, 21)
    expected = made(x).logits
    for split in (1, 2, 16, 17, 20):
        past = made(x[:, :split], use_cache=True)
        rest = made(x[:, split:], past_key_values=past.past_key_values)
        found = torch.cat([past.logits, rest.logits], dim=1)
        assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("mixers", PATTERNS)
@pytest.mark.parametrize("design", DESIGNS)
def test_texts_packed_by_their_positions_leave_no_state_to_each_other(design, mixers):
    """Also where a text is shorter than the convolution; gradients too."""
    made, *_ = exported(design, fold_(hybrid(design, mixers)))
    made.requires_grad_(True).eval()
    x, lengths = tokens(2, 41), (1, 2, 19, 3, 16)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    alone = [made(part, use_cache=False).logits for part in x.split(lengths, dim=1)]
    found = made(x, position_ids=positions, use_cache=False).logits
    bound = 1e-5 * max(1.0, found.abs().max().item())  # rotation is in fp32
    assert (found - torch.cat(alone, 1)).abs().max() < bound
    gradients = []
    for logits in (found, torch.cat(alone, 1)):
        made.zero_grad()
        logits.square().mean().backward()
        gradients.append([p.grad for p in made.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_mixers_of_someone_else_masks_of_pairs_and_speculation_are_refused(monkeypatch):
    monkeypatch.setitem(MIXERS, "mine", MIXERS["gla"])
    with pytest.raises(UserError, match="the mixers 'mine attention': its exported form has"):
        exported_tensors("ngpt", hybrid("ngpt", "mine attention"))
    made, *_ = exported("ngpt", fold_(hybrid("ngpt", "gla attention")))
    with pytest.raises(ValueError, match=r"attention_mask \[batch, time\]"):
        made(tokens(2, 5), attention_mask=torch.ones(2, 1, 5, 5))
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        made.generate(tokens(1, 5), prompt_lookup_num_tokens=2)


@torch.no_grad()
def test_routers_and_decays_stay_in_fp32_in_a_model_of_bf16(tmp_path):
    model = hybrid("gpt+", "gdn mamba2 gla", n_experts=4).float()
    made, *_ = exported("gpt+", fold_(model))
    made.save_pretrained(tmp_path)
    back = hf.UnitsphereForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    wide = {name for name, p in back.state_dict().items() if p.dtype == torch.float32}
    names = {name.split(".", 4)[4] for name in wide}
    assert names == {"A_log", "dt_bias", "router.proj.weight", "router.expert_bias"}
    x = tokens(2, 30)
    logits = back(x).logits
    assert logits.dtype == torch.bfloat16
    assert (logits - made(x).logits).abs().median() < 0.02  # a token may get other experts


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_the_exported_form_drops_attention_weights_only_in_training(kernel):
    model = scattered(make("normformer", attention_dropout=0.5)).float()
    made, *_ = exported("normformer", fold_(model))
    made.set_attn_implementation(kernel)
    x = tokens(2, 7)
    torch.testing.assert_close(made(x).logits, model(x))
    made.train()
    assert not torch.equal(made(x).logits, made(x).logits)


def test_the_exported_form_drops_a_share_of_the_start_too_in_training():
    model = scattered(make("normformer", dropout=0.5)).float()
    made, *_ = exported("normformer", fold_(model))
    starts = []
    made.model.layers[0].register_forward_pre_hook(lambda block, inputs: starts.append(inputs[0]))
    for training in (False, True):
        made.train(training)(tokens(2, 7))
    whole, dropped = starts
    assert 0.2 < (dropped == 0).float().mean() < 0.8
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])


def test_an_encoder_decoder_is_refused():
    with pytest.raises(UserError, match="seq2seq"):
        exported_tensors("ngpt", make("ngpt", "seq2seq"))


def test_weights_of_another_config_are_refused():
    model = fold_(make("ngpt"))
    tensors, config = exported_tensors("ngpt", model)
    with pytest.raises(UserError, match=r"layers\.0\.alpha_mlp"):
        load_exported(
            "ngpt",
            config,
            "clm",
            {k: v for k, v in tensors.items() if k != "model.layers.0.alpha_mlp"},
        )
    tensors["lm_head.weight"] = tensors["lm_head.weight"][1:]
    with pytest.raises(UserError, match=r"lm_head\.weight has another size"):
        load_exported("ngpt", config, "clm", tensors)


@pytest.mark.parametrize("name", ["sdpa", "eager"])
@pytest.mark.parametrize("design", ["ngpt", "normformer"])
@torch.no_grad()
def test_every_attention_implementation_gives_the_same(design, name):
    model = scattered(make(design, window=3, n_heads=2, n_kv_heads=1)).float()
    made, *_ = exported(design, fold_(model))
    x, mask = tokens(2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    real = mask.bool()
    expected = made(x, attention_mask=mask).logits[real]
    made.set_attn_implementation(name)
    assert torch.allclose(made(x, attention_mask=mask).logits[real], expected, atol=1e-5)


def test_an_attention_implementation_of_someone_else_is_asked_with_scaling_and_its_keywords():
    from transformers import AttentionInterface

    asked = []

    def mine(module, query, key, value, attention_mask, scaling=None, **kwargs):
        asked.append((module.layer_idx, scaling, kwargs["theirs"]))
        return hf.eager_attention(module, query, key, value, attention_mask, scaling, **kwargs)

    AttentionInterface.register("mine", mine)
    made, *_ = exported("ngpt", fold_(make("ngpt")))
    made.set_attn_implementation("mine")
    with torch.no_grad():
        made.model(tokens(1, 4), theirs="kept", position_ids=torch.arange(4)[None])
    assert asked == [(0, made.config.head_dim**0.5, "kept")]
    assert made._supports_attention_backend


def test_the_modeling_file_imports_torch_and_transformers_alone():
    tree = ast.parse(Path(hf.__file__).read_text(encoding="utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else ["." * node.level + (node.module or "")]
        )
    }
    assert imported == {"math", "torch", "transformers", "typing"}


def test_nothing_is_kept_in_buffers():
    made, *_ = exported("normformer", fold_(make("normformer")))
    assert list(made.buffers()) == []
