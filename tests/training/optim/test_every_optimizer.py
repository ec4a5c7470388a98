"""What every optimizer of the registry must do: resume bit for bit, alone, in shards and cut."""

import dataclasses

import pytest
import torch
from run_folders import check_resumed
from training.distributed.parallel_cases import Case, losses, resumed, save, trainer_of
from training.distributed.parallel_launch import launch

from unitsphere.training.distributed.layout import Degrees
from unitsphere.training.optim import optim_config_type
from unitsphere.training.optim.adam import AdamWConfig
from unitsphere.training.optim.registry import OPTIMIZERS
from unitsphere.training.optim.soap import SoapMuonConfig

LAYOUTS = {"fsdp2": Degrees(dp_shard=2), "tp": Degrees(tp=2)}
OWN = {
    "adamw": {"adamw": AdamWConfig(cautious=True), "weight_decay": 2.0},
    "soap-muon": {"soap_muon": SoapMuonConfig(floor=2.0, outward=0.5, momentum_warmup=4)},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_resumes_bit_for_bit(name, tiny, tmp_path):
    optim = optim_config_type()(name=name, lr=1e-2)
    check_resumed(dataclasses.replace(tiny("gpt", sample_every=5), optim=optim), tmp_path)


def case(name, layout):
    """nGPT with the optimizer and all its parameters: value embeddings if no matrix is cut."""
    values = LAYOUTS[layout].tp == 1
    model = {"n_layers": 1, "token_shift": True, "value_embeddings": values}
    return Case("ngpt", model=model, optim={"name": name} | OWN.get(name, {}))


def spread(rank, root):
    """On each layout: the losses of a run, and of what resumes from its checkpoint."""
    for name in OPTIMIZERS:
        for layout, degrees in LAYOUTS.items():
            trainer = trainer_of(case(name, layout), degrees, rank)
            first = losses(trainer, range(3))
            there = root / f"{name}-{layout}"
            there.mkdir(exist_ok=True)
            folder = save(there, trainer, 3)
            rest = losses(trainer, range(3, 5))
            again = losses(resumed(case(name, layout), folder, degrees, rank), range(3, 5))
            assert torch.equal(rest, again), (name, layout)
            if rank == 0:
                torch.save(torch.cat([first, rest]), there / "losses.pt")


def test_shards_and_cut_weights_train_as_one_process_does(tmp_path):
    launch(spread, 2, tmp_path)
    for name in OPTIMIZERS:
        for layout in LAYOUTS:
            expected = losses(trainer_of(case(name, layout)), range(5))
            found = torch.load(tmp_path / f"{name}-{layout}" / "losses.pt")
            torch.testing.assert_close(
                found, expected, rtol=1e-3, atol=1e-4, msg=lambda m, at=(name, layout): f"{at}: {m}"
            )
