"""Checkpoints on disk: training states that survive killed processes, full disks and flipped bits.

Read `checkpoint` first: saving and loading. `resume` writes them during a run and starts it again, `shards` has their
hashes, and `lock` lets one run at a time write to a directory.
"""

from jaxblocks.training.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from jaxblocks.training.checkpoint.resume import checkpoints

__all__ = [
    "checkpoints",
    "load_checkpoint",
    "save_checkpoint",
]
