"""Data for training: minibatches, rows of pytrees, and random changes of a batch.

Read `batches` first. `rows` counts, selects and checks the rows of pytrees, `augmentation` changes batches.
"""

from jaxblocks.training.data.augmentation import cutmix, gaussian_noise, mixup, random_crop, random_flip, random_shift
from jaxblocks.training.data.batches import minibatches, prefetch, train_val_test_split

__all__ = [
    "cutmix",
    "gaussian_noise",
    "minibatches",
    "mixup",
    "prefetch",
    "random_crop",
    "random_flip",
    "random_shift",
    "train_val_test_split",
]
