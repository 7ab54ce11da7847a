"""Products and code paths of accelerators, on CPU.

A GPU rounds the operands of float32 products to TF32, with 10 bits of mantissa, and a TPU to bfloat16, with 7 bits;
both add in float32. Products with an explicit precision, of their own or of ``jax.default_matmul_precision``, stay as
they are.

This is the one file of the tests that imports ``jax._src``: JAX has no public way to replace a lowering.
"""

import contextlib

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lax import convolution, lax
from jax._src.lib.mlir.dialects import hlo

MANTISSA = {"gpu": 10, "tpu": 7}

# Parts of the key of every cache of traces and programs: programs for different accelerators are kept apart.
_accelerator = jax.make_user_context(None)
_backend = jax.make_user_context(None)


def _rounded(original):
    def lower(ctx, a, b, *, precision, **params):
        # Where only one of the two is given, it is the precision of one operand.
        default = precision is None or precision == (None, None) or precision == (lax.Precision.DEFAULT,) * 2
        bits = MANTISSA.get(_accelerator.value)
        if bits and default and all(aval.dtype == np.float32 for aval in ctx.avals_in):
            a, b = (hlo.reduce_precision(x, exponent_bits=8, mantissa_bits=bits) for x in (a, b))
        return original(ctx, a, b, precision=precision, **params)

    return lower


for _primitive in (lax.dot_general_p, convolution.conv_general_dilated_p):
    _original = mlir._platform_specific_lowerings["cpu"][_primitive].rule
    mlir.register_lowering(_primitive, _rounded(_original), platform="cpu")


@contextlib.contextmanager
def products_of(accelerator: str | None):
    """Compute the products of this block as a ``"gpu"`` or a ``"tpu"`` does; None leaves them as they are."""
    with _accelerator(accelerator):
        yield


@contextlib.contextmanager
def code_of(accelerator: str):
    """Take the code paths of a backend in this block; yields a list with an entry for each question which one it is."""
    original, questions = jax.default_backend, []

    def default_backend():
        questions.append(accelerator)
        return accelerator

    jax.default_backend = default_backend
    try:
        with _backend(accelerator):
            yield questions
    finally:
        jax.default_backend = original
