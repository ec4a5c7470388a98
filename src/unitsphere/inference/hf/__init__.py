"""A trained model as a folder that transformers reads without this package."""

import logging

NOISE = {"torchao": "Failed to load", "torch.utils._pytree": "is an Enum subclass"}
"""Logger -> what it warns of when transformers imports torchao, which nothing here uses."""


def quiet_torchao() -> None:
    """Leave torchao's two warnings at its import out of the log, and no other record."""
    for logger, words in NOISE.items():
        logging.getLogger(logger).addFilter(lambda r, words=words: words not in r.getMessage())


quiet_torchao()
