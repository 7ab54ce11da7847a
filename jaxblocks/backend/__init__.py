"""What arrays and devices share, and every choice that depends on them; nothing here is part of the public interface.

Read `linear_maps` first: products of features with a kernel, as all layers compute them. `precision` has the dtypes and
the precision of arithmetic, `varying` the types of arrays inside `jax.shard_map`, `sliding_windows` the geometry of
convolution and pooling, `programs` the compiled programs that are kept, `derivative_rules` whether layers use
derivative rules of their own, and `jaxlib` the warning about a version of jaxlib that computes wrong derivatives.
"""
