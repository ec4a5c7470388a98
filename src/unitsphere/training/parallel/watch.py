"""Who is missing when a collective fails: a message that names the rank, in every other process.

torch ends a collective that waits longer than `parallel.timeout`, but says only that it waited.
Each process that it ends leaves a word in the store that all of them share; who leaves none hangs
or is dead. (NCCL ends the process itself after its time-out; its own report names the collective.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from unitsphere.errors import UserError
from unitsphere.training.parallel.layout import Layout

GRACE = timedelta(seconds=10)
"""For the others to come to the same end: once one gives up, its connections close."""


@contextmanager
def watched(layout: Layout) -> Iterator[None]:
    """Within: a collective that fails because of other processes ends in a `UserError` about them.

    What fails for another reason is raised as it is.
    """
    try:
        yield
    except RuntimeError as error:
        if layout.world == 1 or not of_collective(error):
            raise
        gone = missing(layout)
        if not gone:
            raise
        who = f"rank {gone[0]}" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))}"
        raise UserError(
            f"rank {layout.rank} waited in vain: {who} of {layout.world} hangs or has died; see "
            "what it printed last. Complete checkpoints are kept: the same command goes on"
        ) from error


def of_collective(error: RuntimeError) -> bool:
    """Whether an error comes from torch.distributed; gloo's are known by their source files."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def missing(layout: Layout) -> list[int]:
    """The ranks that have not left their word within the grace period."""
    names = {rank: f"unitsphere/waited/{rank}" for rank in range(layout.world)}
    store = _get_default_store()
    try:
        store.set(names[layout.rank], "in vain")
        store.wait(list(names.values()), GRACE)
    except dist.DistStoreError:  # the wait is over, not all words are there
        return [rank for rank, name in names.items() if not store.check([name])]
    except dist.DistNetworkError:  # the process that holds the store is gone
        return [0]
    return []
