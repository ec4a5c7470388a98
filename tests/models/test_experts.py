"""Experts against their oracle (tests/reference/experts.py), and what holds of them in training."""

from threading import Thread

import pytest
import torch
from reference import experts as oracle

from unitsphere import optim
from unitsphere.errors import UserError
from unitsphere.models.constraint import constraints, overridden, roles
from unitsphere.models.experts import active_parameters, balance_, experts_of
from unitsphere.models.plans import fold_
from unitsphere.models.registry import ARCHITECTURES, build
from unitsphere.ops.linear import grouped_linear
from unitsphere.ops.norm import unit_norm
from unitsphere.training.distributed.layout import ParallelConfig
from unitsphere.training.forecast import flops_per_token
from unitsphere.training.optim.constraint import ConstraintConfig
from unitsphere.training.optim.orthogonal import orthogonalise

D, D_FF, E, K = 16, 24, 4, 2
SIZES = {"vocab_size": 40, "d_model": D, "n_layers": 2, "n_heads": 2, "d_ff": D_FF}
EXPERTS = SIZES | {"n_experts": E, "top_k": K}
TOKENS = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(0))
PLUS = {"qk_norm": True, "rotary_fraction": 0.5}
CASES = {
    "ngpt": ("ngpt", {}),
    "angpt": ("angpt", {"nu_acf": oracle.NU_ACF}),
    "gpt": ("gpt", {}),
    "gpt-plus": ("gpt", PLUS),
    "gpt-relu2": ("gpt", {"activation": "relu2"}),
    "ngpt-without-shared": ("ngpt", {"shared_experts": 0}),
    "ngpt-of-all": ("ngpt", {"top_k": E}),
}


def scattered(name, **numbers):
    """A model in double whose parameters and routers' bias have left their start."""
    model = build(name, **EXPERTS | numbers).double()
    generator = torch.Generator().manual_seed(1)
    biases = [experts.router.expert_bias for experts in experts_of(model)]
    with torch.no_grad():
        for tensor in [*model.parameters(), *biases]:
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    return model


def tensors_of(mlp, expert=None):
    """An MLP's tensors as the oracle names them, leaves of a graph of their own; of one expert."""
    found = {}
    for name, p in mlp.named_parameters():
        local, kind = name.rsplit(".", 1)
        value = p[expert] if expert is not None and kind == "weight" else p
        found[local] = value
    return found


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_are_the_oracles(case):
    name, numbers = CASES[case]
    model = scattered(name, **numbers)
    layer = model.blocks[0].mlp
    x = torch.randn(2, 6, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x = (x / x.norm(dim=-1, keepdim=True)).requires_grad_()
    weights = [x, *layer.parameters()]
    y = layer(x)
    counted = layer.tokens_per_expert.tolist()
    probe = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad((y * probe).sum(), weights)
    router, k = layer.router, model.config.top_k
    expected, n = oracle.forward(
        name,
        x.flatten(0, 1),
        router.W_r.weight,
        torch.as_tensor(router.s_r(), dtype=torch.float64),
        router.expert_bias,
        k,
        [tensors_of(layer.routed, i) for i in range(E)],
        None if layer.shared is None else tensors_of(layer.shared),
    )
    tolerance = 1e-5 if name == "angpt" else 1e-10  # nu_acf is rounded
    torch.testing.assert_close(y.flatten(0, 1), expected, rtol=tolerance, atol=tolerance)
    assert counted == n
    wanted = torch.autograd.grad((expected * probe.flatten(0, 1)).sum(), weights)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_the_bias_is_the_oracle_s_and_changes_the_choice_only():
    model = build("ngpt", **EXPERTS, balance=0.05)
    layer = model.blocks[0].mlp
    expected = [0.0] * E
    for step in range(3):
        for rows in TOKENS.roll(step, 1).split(1):  # micro-batches of one row
            model.loss(rows, rows).backward()
        n = layer.tokens_per_expert.tolist()
        assert sum(n) == K * TOKENS.numel()
        expected = oracle.balanced(expected, n, 0.05)
        balance_(model)
        torch.testing.assert_close(layer.router.expert_bias, torch.tensor(expected))
        assert layer.tokens_per_expert.tolist() == [0] * E
    layer.tokens_per_expert.copy_(torch.tensor([90, 0, 10, 4]))  # one down, three up: a mean
    balance_(model)
    expected = oracle.balanced(expected, [90, 0, 10, 4], 0.05)
    torch.testing.assert_close(layer.router.expert_bias, torch.tensor(expected))
    x = torch.randn(50, D)
    layer.router.expert_bias.copy_(torch.tensor([9.0, 0.0, 9.0, 0.0]))
    chosen, gates = layer.router(x)
    assert {*chosen.flatten().tolist()} == {0, 2}
    torch.testing.assert_close(gates.square().sum(-1), torch.ones(50))


@pytest.mark.parametrize("logits", [[-200.0, -201.0, -300.0, -300.0], [3.0, -200.0, -300.0, -9.0]])
def test_gates_are_finite_where_the_scores_are_zero_in_fp32(logits):
    router = build("gpt", **EXPERTS).blocks[0].mlp.router
    router.expert_bias.copy_(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    with torch.no_grad():
        router.W_r.weight.copy_(torch.tensor(logits)[:, None].expand(E, D) / D)
    x = torch.ones(1, D, requires_grad=True)
    chosen, gates = router(x)
    of_chosen = torch.tensor(logits, dtype=torch.float64)[chosen].sigmoid()
    torch.testing.assert_close(gates.double(), (of_chosen / of_chosen.sum()).sqrt())
    for gradient in torch.autograd.grad(gates.sum(), [x, router.W_r.weight]):
        assert gradient.isfinite().all()


def test_only_training_counts_and_counts_of_processes_are_added():
    model = build("gpt", **EXPERTS)
    layer = model.blocks[0].mlp
    with torch.no_grad():
        model(TOKENS)
    model.eval()(TOKENS)
    assert not layer.tokens_per_expert.any()
    model.train()(TOKENS)
    n = layer.tokens_per_expert.clone()
    other = n.flip(0) * 3  # another process, whose loads are larger and the other way round
    balance_(model, lambda mine: mine + other)
    total = (n + other).double()
    sign = (total.mean() - total).sign() * model.config.balance
    torch.testing.assert_close(layer.router.expert_bias.double(), sign - sign.mean())


def test_weights_that_are_assigned_to_shapes_are_balanced_too():
    """Counts are in no state_dict, so they have to come from the shapes' meta device themselves."""
    sizes = {"vocab_size": 24, "d_model": 16, "n_layers": 1, "n_heads": 2, "n_experts": 4}
    model = build("ngpt", device="meta", **sizes)
    model.load_state_dict(build("ngpt", **sizes).state_dict(), assign=True)
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    model.loss(tokens, tokens)
    (experts,) = experts_of(model)
    assert sorted(experts.tokens_per_expert.tolist()) == [0, 0, 5, 5]
    balance_(model)
    assert experts.router.expert_bias.abs().min() > 0


def test_loads_become_even():
    layer = build("ngpt", **EXPERTS, balance=0.04).blocks[0].mlp
    layer.router.expert_bias.copy_(torch.tensor([1.0, 1.0, -1.0, -1.0]))
    x, worst = unit_norm(torch.randn(64, D, generator=torch.Generator().manual_seed(4))), []
    for _ in range(60):
        layer(x)
        n = layer.tokens_per_expert.double()
        worst.append((n.max() / n.mean() - 1).item())
        balance_(layer)
    assert worst[0] == 1.0  # two of four have all tokens
    assert max(worst[-5:]) < 0.3


def test_constraints_and_muon_act_on_each_expert():
    model = build("ngpt", **EXPERTS)
    held = {c.parameter: c.dim for c in constraints(model)}
    assert held["blocks.0.mlp.routed.W_u.weight"] == 2
    assert held["blocks.0.mlp.routed.W_oMLP.weight"] == 1
    assert held["blocks.0.mlp.router.W_r.weight"] == 1
    assert roles(model)["blocks.0.mlp.router.W_r.weight"] == "router"
    update = torch.randn(E, 12, 20, dtype=torch.float64)
    for steps in (1, 5):
        together = orthogonalise(update, steps)
        for one, alone in zip(together, update, strict=True):
            torch.testing.assert_close(one, orthogonalise(alone, steps))
    optimizer = optim.build(model, "muon", lr=0.05)
    muon = {id(p) for group in optimizer.parts[0].param_groups for p in group["params"]}
    assert id(model.blocks[0].mlp.routed.W_u.weight) in muon
    assert id(model.blocks[0].mlp.router.W_r.weight) not in muon


@pytest.mark.parametrize("name", ["adam", "muon", "normuon", "muonh", "adamh", "gated-adamw"])
def test_optimizers_keep_the_constraint_of_each_expert(name):
    model = build("ngpt", **EXPERTS)
    start = model.blocks[0].mlp.routed.W_u.weight.detach().norm(dim=(1, 2))
    optimizer = optim.build(model, name, lr=0.02)
    losses = []
    for _ in range(4):
        loss = model.loss(TOKENS, TOKENS.roll(-1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    after = model.blocks[0].mlp.routed.W_u.weight.detach()
    if name.endswith("h"):
        torch.testing.assert_close(after.norm(dim=(1, 2)), start)
    else:
        torch.testing.assert_close(after.norm(dim=2), torch.ones(E, D_FF))


def test_experts_that_are_alike_are_one_mlp():
    """Equal experts with equal gates are the dense MLP but for its length."""
    model = build("ngpt", **EXPERTS | {"shared_experts": 0, "top_k": E}).double()
    dense = build("ngpt", **SIZES).double()
    layer, mlp = model.blocks[0].mlp, dense.blocks[0].mlp
    with torch.no_grad():
        layer.router.W_r.weight.copy_(layer.router.W_r.weight[:1].expand(E, -1))
        for stack, matrix in zip(layer.matrices, (mlp.W_u, mlp.W_nu, mlp.W_oMLP), strict=True):
            stack.weight.copy_(matrix.weight.expand_as(stack.weight))
    x = torch.randn(7, D, dtype=torch.float64)
    torch.testing.assert_close(layer(x), E * (1 / E) ** 0.5 * mlp(x))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_folding_and_decoding_change_nothing(name):
    model = scattered(name).eval()
    with torch.no_grad():
        whole = model(TOKENS)
        cache = model.new_cache(3, 9)
        parts = [model(part, cache) for part in TOKENS.split([4, 1, 4], dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-11)
        torch.testing.assert_close(fold_(model)(TOKENS), whole, rtol=0, atol=1e-11)


def test_counts_and_operations_are_those_of_the_experts_used():
    dense, model = (build("gpt", **sizes, device="meta") for sizes in (SIZES, EXPERTS))
    layers, mlp, router = 2, 3 * D * D_FF, E * D
    total = sum(p.numel() for p in model.parameters())
    assert total - sum(p.numel() for p in dense.parameters()) == layers * (E * mlp + router)
    assert active_parameters(model) == total - layers * (E - K) * mlp
    more = layers * (K * mlp + router)
    assert flops_per_token(model, 8) - flops_per_token(dense, 8) == 6 * more


def test_operations_leave_out_the_matrices_of_idle_experts_not_their_biases():
    dense, model = (build("normformer", **sizes, device="meta") for sizes in (SIZES, EXPERTS))
    more = 2 * (K * 2 * D * D_FF + E * D)  # of two layers
    assert flops_per_token(model, 8) - flops_per_token(dense, 8) == 6 * more


def test_the_router_stays_in_fp32_where_all_else_is_bf16():
    model = build("ngpt", **EXPERTS)
    layer = model.blocks[0].mlp
    seen = []
    layer.router.W_r.register_forward_hook(lambda module, given, y: seen.append(y.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.randn(5, D).bfloat16())
    assert seen == [torch.float32]
    assert y.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_that_is_stored_in_16_bits_is_near_the_one_in_32(name, dtype):
    model = build(name, **EXPERTS)
    wanted = model.loss(TOKENS, TOKENS.roll(-1, 1))
    narrow = model.to(dtype)
    loss = narrow.loss(TOKENS, TOKENS.roll(-1, 1))
    loss.backward()
    assert abs(loss - wanted) < 0.02 * wanted
    assert all(p.grad.isfinite().all() for p in narrow.parameters())


def test_grouped_products_take_empty_groups():
    x, W = torch.randn(5, 6, dtype=torch.float64), torch.randn(4, 3, 6, dtype=torch.float64)
    x, W = x.requires_grad_(), W.requires_grad_()
    ends = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    y = grouped_linear(x, W, ends)
    torch.testing.assert_close(y, torch.cat([x[:2] @ W[1].T, x[2:] @ W[3].T]))
    assert torch.autograd.gradcheck(lambda x, W: grouped_linear(x, W, ends), (x, W))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"n_experts": 1}, r"model\.n_experts must be 0 or at least 2"),
        ({"n_experts": -2}, r"model\.n_experts must be 0 or at least 2"),
        ({"top_k": 1}, r"model\.top_k must be from 2 to model\.n_experts 4: 1; the gate of a"),
        ({"top_k": 5}, r"model\.top_k 5 is above model\.n_experts 4: a token uses each"),
        ({"shared_experts": -1}, r"model\.shared_experts must not be negative"),
        ({"balance": -1.0}, r"model\.balance must be a number from 0 on"),
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers, message):
    with pytest.raises(UserError, match=message):
        build("gpt", **EXPERTS | numbers)


def test_what_experts_do_not_have_is_refused():
    model = build("ngpt", **EXPERTS)
    with pytest.raises(UserError, match=r"parallel\.ep 2: expert parallel is not supported"):
        ParallelConfig(ep=2)
    with pytest.raises(UserError, match="SOAP trains matrices of two axes"):
        optim.build(model, "soap")
    cpr = ConstraintConfig("cpr")
    with pytest.raises(UserError, match="'cpr' has no form for experts"):
        optim.constrain(model, optim.AdamW(model.parameters()), config=cpr)


def test_a_pass_in_another_thread_changes_nothing():
    """A server's threads share one model: each pass has groups of its own."""
    model = build("ngpt", **EXPERTS).eval()
    with torch.no_grad():
        wanted, passes = model(TOKENS), []

        def other_pass(*_):
            if not passes:
                passes.append(Thread(target=torch.no_grad()(model), args=(TOKENS[:1, :4],)))
                passes[0].start()
                passes[0].join()

        model.blocks[0].mlp.routed.W_nu.register_forward_pre_hook(other_pass)
        assert torch.equal(model(TOKENS), wanted)
    assert passes


@pytest.mark.parametrize("kind", ["sphere", "ball"])
def test_an_overriding_constraint_takes_the_in_axis_of_each_expert(kind):
    model = build("gpt", **EXPERTS)
    held = {c.parameter: c.dim for c in overridden(model, kind)}
    assert held["blocks.0.mlp.routed.W_u.weight"] == 2
    assert held["blocks.0.mlp.shared.W_u.weight"] == 1
