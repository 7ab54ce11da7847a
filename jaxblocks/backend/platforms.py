"""The platform for which a program is traced, which decides between forms of one computation.

On CPU some layers compute in other forms than on accelerators: attention in tiles, gradients of convolutions as
products, `Repeat` of convolutions without a loop. The values are the same. The forms differ in what they store and in
their derivative rules, so they are chosen while JAX traces, and not by ``jax.lax.platform_dependent``: that traces both
forms (1.4 to 2.2 times the time), and its programs hold the residuals of both, which `count_flops` and
`saved_numbers` would count.
"""

from contextlib import contextmanager
from typing import Literal, TypeAlias

import jax

from jaxblocks.checks.expectations import checked

__all__ = ["Platform", "lowering_for", "platform"]

Platform: TypeAlias = Literal["cpu", "gpu", "tpu", "cuda", "rocm"]

# The names that `jax.export` and `jax.Array.platforms` use, and that of `jax.default_backend`.
_NAMES = {"cpu": "cpu", "gpu": "gpu", "tpu": "tpu", "cuda": "gpu", "rocm": "gpu"}
# JAX traces a jitted function once for each value of it.
_lowered_for = jax.make_user_context(None)


@checked
@contextmanager
def lowering_for(name: Platform):
    """Inside, functions are traced for this platform, and not for the one that would run them here.

    For programs that are made on one machine and run on another one. ``jax.export`` for GPUs on a machine without one
    otherwise exports the forms that are fast on CPUs; they compute the same there, but slower.

    Args:
        name: "cpu", "tpu", "gpu", or a kind of GPU, "cuda" or "rocm".

    Raises:
        ValueError: for another name.

    >>> with lowering_for("cuda"):
    ...     program = jax.export.export(jax.jit(lambda x: 2 * x), platforms=["cuda"])(
    ...         jax.numpy.ones(3)
    ...     )
    >>> program.platforms
    ('cuda',)
    """
    with _lowered_for(_NAMES[name]):
        yield


def platform() -> str:
    """The platform for which code is traced, "cpu", "gpu" or "tpu".

    It is that of `lowering_for`, else that of ``jax.default_device``, else that of JAX's default backend.
    """
    if _lowered_for.value is not None:
        return _lowered_for.value
    device = jax.config.jax_default_device  # type: ignore[attr-defined]  # a device or the name of a platform
    if device is None:
        return jax.default_backend()
    name = device if isinstance(device, str) else device.platform
    return _NAMES.get(name, name)
