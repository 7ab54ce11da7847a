"""What arrays and devices share, and every choice that depends on the platform.

Read `linear_maps` first: products of features with a kernel, as all layers compute them. `platforms` says for which
platform a program is traced, `precision` has the dtypes and the precision of arithmetic, `quotients` divisions and
norms whose derivatives do not underflow, `matrix_functions` functions of symmetric matrices, `powers_of_two` units of
arrays, `varying` the types of arrays inside `jax.shard_map`, `symbolic_sizes` comparisons of sizes that `jax.export`
leaves open, `sliding_windows` the geometry of convolution and pooling, `interpolation` the weights of resizing,
`draws` random kernels and orders, `jit_cache` the compiled programs that are kept, and `derivative_rules` whether
layers use derivative rules of their own.
"""

from jaxblocks.backend.platforms import lowering_for

__all__ = ["lowering_for"]
