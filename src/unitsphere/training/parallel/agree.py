"""What all processes must know before they compute together: each other's answers and mistakes.

A mistake in one process alone would leave the others waiting in their next collective. So what
may fail before training is done through `everywhere` or `on_first`, after which all go on or all
raise `SharedError`, with the rank where it went wrong. Messages are JSON text, never pickles.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from unitsphere.errors import UserError
from unitsphere.training.parallel.layout import Layout

T = TypeVar("T")


class SharedError(UserError):
    """A mistake that all processes raise at once; one of them tells it."""


def gather(layout: Layout, message: Any) -> list[Any]:
    """Every process's JSON-able message, by rank."""
    if layout.world == 1:
        return [message]
    data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(layout.world)]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=layout.group)
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
    padded[: len(data)] = data
    texts = [torch.zeros_like(padded) for _ in range(layout.world)]
    dist.all_gather(texts, padded, group=layout.group)
    return [
        json.loads(bytes(text[: int(size)].tolist()))
        for text, size in zip(texts, sizes, strict=True)
    ]


def everywhere(layout: Layout, action: Callable[[], T]) -> T:
    """`action()` in every process; raises SharedError in all if one raised UserError or OSError.

    A single process raises its own.
    """
    return where(layout, True, action)[0]


def where(layout: Layout, here: bool, action: Callable[[], T]) -> list[T]:
    """[`action()`] in the processes where it is `here`, [] in the others; errs as `everywhere`."""
    if layout.world == 1:
        return [action()] if here else []
    results, mistake = [], None
    try:
        if here:
            results.append(action())
    except UserError as error:
        mistake = str(error)
    except OSError as error:  # a file that may not be read on one machine
        mistake = f"cannot use {error.filename or 'a file'}: {error.strerror}"
    mistakes = gather(layout, mistake)
    found = [(rank, text) for rank, text in enumerate(mistakes) if text is not None]
    if found:
        rank, text = found[0]
        everyone = [text] * layout.world == mistakes
        raise SharedError(text if everyone else f"rank {rank} of {layout.world}: {text}")
    return results


def on_first(layout: Layout, action: Callable[[], Any]) -> Any:
    """What the first process's `action()` returned, JSON-able, in all of them."""
    found = where(layout, layout.first, action)
    return gather(layout, found)[0][0]


def one_by_one(layout: Layout, action: Callable[[], T]) -> T:
    """`action()` everywhere, but on each machine in its first process before the others.

    What it prepares on a disk is then there for the others.
    """
    leads = layout.local_rank == 0
    return (where(layout, leads, action) + where(layout, not leads, action))[0]


def check_alike(layout: Layout, what: str, facts: Mapping[str, Any]) -> None:
    """Raise SharedError in all processes, naming rank and difference, unless all have one `facts`.

    `facts`: setting -> JSON-able value; `what` names them as a whole.
    """
    found = gather(layout, dict(facts))
    for rank, other in enumerate(found):
        # As text: NaN is not equal to itself.
        odd = [key for key in found[0] | other if repr(other.get(key)) != repr(found[0].get(key))]
        if odd:
            lines = [f"{key}: {found[0].get(key)!r} -> {other.get(key)!r}" for key in odd[:3]]
            raise SharedError(
                f"rank {rank} has another {what} than rank 0 ({'; '.join(lines)}): "
                "start all processes with the same command, on the same files"
            )
