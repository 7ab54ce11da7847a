"""Whether layers use derivative rules of their own around products with their kernels."""

from contextlib import contextmanager

import jax

__all__ = ["products_are_visible", "visible_products"]

# JAX traces a jitted function once for each value of it.
_visible = jax.make_user_context(False)


@contextmanager
def visible_products():
    """Inside, layers are traced without derivative rules of their own around products with kernels.

    For programs that read from a jaxpr where a param multiplies (`jaxblocks.ad.per_example.sites`); they do not look
    inside such a rule.
    """
    with _visible(True):
        yield


def products_are_visible() -> bool:
    """Whether the code is traced inside of `visible_products`."""
    return _visible.value
