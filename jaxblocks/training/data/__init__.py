"""Data for training: minibatches, rows of pytrees, and random changes of a batch.

Read `batches` first. `rows` counts, selects and checks the rows of pytrees, `augmentation` changes batches.
"""
