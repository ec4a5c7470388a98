"""What every architecture does as an encoder: everybody sees everybody but the padding."""

import pytest
import torch
from torch import Tensor

from reference.architectures import (
    CASES,
    ENCODERS,
    PADDED,
    REAL,
    SOURCE,
    TARGETS,
    TOKENS,
    close,
    differ,
)

NAMES = list(ENCODERS)


@pytest.mark.parametrize("name", NAMES)
def test_every_token_counts_at_every_position(name: str) -> None:
    case = ENCODERS[name]
    tensors = case.tensors()
    whole = case.logits(tensors)
    for place in range(5):
        changed = TOKENS.clone()
        changed[:, place] = 8
        moved = (case.logits(tensors, changed) - whole).abs().amax(-1)
        assert bool((moved > 1e-9).all()), place


@pytest.mark.parametrize("name", NAMES)
def test_right_padding_behind_a_mask_changes_nothing(name: str) -> None:
    case = ENCODERS[name]
    tensors = case.tensors()
    mask = REAL[:, None, :]
    got = case.logits(tensors, SOURCE, mask=mask)
    close(case.logits(tensors, PADDED, mask=mask)[REAL], got[REAL])
    for row, length in enumerate(REAL.sum(-1).tolist()):
        bare = case.logits(tensors, SOURCE[row : row + 1, :length])
        close(got[row : row + 1, :length], bare)
    assert differ(case.logits(tensors, SOURCE)[REAL], got[REAL])


@pytest.mark.parametrize("name", NAMES)
def test_tokens_that_move_with_their_positions_move_their_logits(name: str) -> None:
    case = ENCODERS[name]
    tensors = case.tensors()
    order = torch.tensor([4, 2, 0, 1, 3])
    whole = case.logits(tensors)
    moved = case.logits(tensors, TOKENS[:, order], positions=order.expand(2, 5))
    close(moved, whole[:, order])
    assert differ(case.logits(tensors, TOKENS[:, order]), whole[:, order])


@pytest.mark.parametrize("name", NAMES)
def test_the_last_token_of_one_layer_is_the_decoder_s(name: str) -> None:
    encoder, decoder = (table[name].but(n_layers=1) for table in (ENCODERS, CASES))
    tensors = encoder.tensors()
    assert list(tensors) == list(decoder.tensors())
    both, causal = encoder.logits(tensors), decoder.logits(tensors)
    close(both[:, -1], causal[:, -1])
    assert differ(both[:, :-1], causal[:, :-1])


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_takes_the_mask_and_counts_the_chosen_targets(name: str) -> None:
    case = ENCODERS[name]
    tensors = case.tensors()
    mask = torch.ones(2, 1, 5, dtype=torch.bool)
    mask[1, 0, 3:] = False
    chosen = torch.full_like(TARGETS, -100)
    chosen[0, 1] = TARGETS[0, 1]
    log_p: Tensor = case.logits(tensors, mask=mask).log_softmax(-1)
    got = case.oracle.loss(tensors, case.settings, TOKENS, chosen, mask=mask)
    close(got, -log_p[0, 1, TARGETS[0, 1]])
