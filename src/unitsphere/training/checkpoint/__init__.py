"""Checkpoints that are complete or absent: `checkpoints/step-NNNNNNNN/`.

    *.safetensors   tensors, written by torch.distributed.checkpoint (tensors.py)
    state.json      everything else (`State`)
    COMPLETE        size and sha256 of every other file, written last

A checkpoint is written into a hidden folder next to its place, synced to the disk, and renamed.
One whose files do not match its marker is skipped; hidden files (.DS_Store, .nfs…) are not part of
it. A link is neither followed nor deleted. All tensors are safetensors and all else is JSON:
reading a checkpoint that someone else wrote runs no code.
"""

from unitsphere.training.checkpoint.saver import write
from unitsphere.training.checkpoint.store import (
    MARKER,
    damage,
    fingerprint,
    fingerprints,
    folder_of,
    folders,
    links,
    load_state,
    newest,
    prune,
)

__all__ = [
    "MARKER",
    "damage",
    "fingerprint",
    "fingerprints",
    "folder_of",
    "folders",
    "links",
    "load_state",
    "newest",
    "prune",
    "write",
]
