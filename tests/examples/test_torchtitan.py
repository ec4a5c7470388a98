"""The torchtitan experiment with the installed package, as far as it goes without a GPU.

torchtitan's trainer takes an accelerator for granted; here its config manager, model protocol,
optimizer container, loss and FSDP2 on one CPU process are run.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

pytest.importorskip("torchtitan")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def experiment(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/pg", rank=0, world_size=1)
    import torchtitan_unitsphere

    yield torchtitan_unitsphere
    dist.destroy_process_group()
    for name in [name for name in sys.modules if name.startswith("torchtitan_unitsphere")]:
        del sys.modules[name]


def test_its_configs_are_found_and_refuse_what_they_do_not_have(experiment):
    from torchtitan.config.manager import ConfigManager

    found = ConfigManager().parse_args(
        ["--module", "torchtitan_unitsphere", "--config", "ngpt_32m"]
    )
    assert found.model_spec.flavor == "angpt2025/ngpt-32m"
    assert found.optimizer.param_groups[0].optimizer_kwargs["weight_decay"] == 0
    found.parallelism.tensor_parallel_degree = 2
    with pytest.raises(ValueError, match="no tensor parallelism"):
        found.model_spec.model.update_from_config(config=found)


def test_it_trains_on_the_sphere_by_torchtitan_s_parts(experiment):
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.config import CompileConfig, TrainingConfig

    spec = experiment.model_registry("quickstart/ngpt", vocab_size=64)
    with torch.device("meta"):
        model = spec.model.build()
    model.verify_module_protocol()
    parameters, flops = spec.model.get_nparams_and_flops(model, 32)
    assert flops > 6 * (parameters - 64 * 128)
    dims = SimpleNamespace(
        dp_replicate_enabled=False,
        get_mesh=lambda names: init_device_mesh("cpu", (1,), mesh_dim_names=tuple(names)),
    )
    model = spec.parallelize_fn(
        model,
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param="float32"),
        compile_config=CompileConfig(),
        parallelism=None,
        ac_config=None,
        dump_folder="",
    )
    model.to_empty(device="cpu")
    model.init_weights()
    settings = default_adamw(lr=1e-2, weight_decay=0.0)
    settings.implementation = "for-loop"
    optimizers = settings.build(model_parts=[model])
    spec.post_optimizer_build_fn(optimizers, [model], dims)
    loss_of = CrossEntropyLoss.Config().build(compile_config=CompileConfig())
    tokens = torch.randint(0, 64, (4, 33), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(32).remainder(16).expand(4, 32)
    losses = []
    for _ in range(8):
        logits = model(tokens[:, :-1], positions=positions)
        loss, *_ = loss_of(logits, tokens[:, 1:], torch.tensor(4.0 * 32))
        loss.backward()
        optimizers.step()
        optimizers.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    rows = model.model.blocks[0].attention.W_q.weight.full_tensor().norm(dim=1)
    assert torch.allclose(rows, torch.ones_like(rows), atol=1e-6)
