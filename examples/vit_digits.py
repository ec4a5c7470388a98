"""A small vision transformer of `unitsphere.nn`'s sublayers, on scikit-learn's digits.

pip install scikit-learn
python examples/vit_digits.py       # docs/how-to/trainer.md compares it with a plain ViT
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import unitsphere
from unitsphere import nn as unit

D, LAYERS, HEADS = 48, 4, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = unit.NormalizedAttention(D, HEADS, rotary_fraction=0)
        self.mlp = unit.NormalizedMLP(D)
        self.step_A, self.step_M = (unit.SphereResidual(D, 1 / LAYERS) for _ in range(2))

    def forward(self, h):
        h = self.step_A(h, self.attention(h))
        return self.step_M(h, self.mlp(h))


class ViT(nn.Module):
    """Images [batch, 8, 8] in 16 patches of 2×2 pixels -> logits [batch, 10]."""

    def __init__(self):
        super().__init__()
        self.patches, self.places = unit.free(nn.Linear(4, D)), unit.free(nn.Embedding(16, D))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head, self.s_z = unit.UnitLinear(D, 10), unit.Scale(10, init=10.0, start=0.1)

    def forward(self, images):
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        h = self.layers(unit.unit_norm(self.patches(patches) + self.places.weight))
        return self.s_z() * self.head(h.mean(1))


def main(lr: float = 1e-2, epochs: int = 20):
    """Train on 1,347 digits; the model and its share of right answers on 450 others."""
    data = load_digits()  # 8×8 pixels from 0 to 16
    images, labels = torch.tensor(data.images).float() / 16, torch.tensor(data.target)
    model = ViT()
    optimizer = torch.optim.Adam(model.parameters(), lr)
    unitsphere.constrain(model, optimizer)
    for _ in range(epochs):
        for batch in torch.randperm(1347).split(64):
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, (model(images[1347:]).argmax(1) == labels[1347:]).float().mean().item()


if __name__ == "__main__":
    print(f"{main()[1]:.1%} of 450 digits")
