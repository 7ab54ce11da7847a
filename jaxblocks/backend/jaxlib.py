"""A warning about a version of jaxlib that computes wrong derivatives.

jaxlib 0.10.2 on CPU fuses multiply, reduce and broadcast wrongly under ``jit`` when a pullback is vmapped:
``jit(jacrev(f))`` of x mean(x) or of a layer norm has wrong rows. The dependencies of the package exclude this
version, but an environment may still contain it.
"""

import os

import jaxlib.version

from jaxblocks.checks.terminal import warn

__all__ = ["warn_if_jaxlib_is_wrong"]

_WRONG = "0.10.2"
_WORKAROUND = "--xla_cpu_experimental_ynn_fusion_type=-reduce"


def warn_if_jaxlib_is_wrong() -> None:
    """Warn if this jaxlib computes wrong Jacobians under ``jit`` on CPU; ``import jaxblocks`` calls it.

    There is no warning if ``XLA_FLAGS`` contains the workaround.

    >>> warn_if_jaxlib_is_wrong()
    """
    if jaxlib.version.__version__ == _WRONG and _WORKAROUND not in os.environ.get("XLA_FLAGS", ""):
        warn(
            f"jaxlib {_WRONG} computes wrong Jacobians under jit on CPU (jit(jacrev(f)), jit(vmap(vjp)) of means and "
            f"norms); install another version of jaxlib, or start Python with XLA_FLAGS={_WORKAROUND}.",
            category=RuntimeWarning,
        )
