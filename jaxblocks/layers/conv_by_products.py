r"""Convolutions in the forms that are fast on CPUs: the gradient of the kernel as products, channels of zeros.

The gradient of the kernel sums over all images and positions,

.. math::

    w̄_{jco} = ∑_{n,i} x_{n, si + dj, c} ȳ_{nio} .

XLA computes it on CPU as a convolution whose kernel is as large as an image, on one core. The rule here states the
derivative with respect to the kernel as products instead: entries of x that the last axis of the kernel covers lie side
by side, and each entry of the other axes is one product. Its transpose, which reverse mode evaluates, consists of
products too. Chunks of images keep what is copied in the cache. Where `pays` holds, the gradient takes 0.1 to 0.9 of
the time, for the usual 3 x 3 kernels 0.3 to 0.6; forward mode with respect to kernels takes 1 to 4 times as long.

`convolve` is XLA's convolution. On CPU it adds channels of zeros where XLA's products are slow without them.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxblocks.backend.derivative_rules import products_are_visible
from jaxblocks.backend.linear_maps import unsharded
from jaxblocks.backend.platforms import platform
from jaxblocks.backend.sliding_windows import name_with_zeros
from jaxblocks.backend.varying import varying_like

__all__ = ["convolve", "correlate", "pays"]

# (features, images, operations) from which products are used; see "Convolutions" in benchmarks/RESULTS.md. Below,
# XLA's form is as fast, or too short to matter.
FROM = [(32, 1, 20_000_000), (16, 64, 100_000_000)]
# Copied entries of x in one chunk (1 MB), and the most that one image may need.
CHUNK, LARGEST_IMAGE = 2**18, 2**23
# XLA computes float32 by YNNPACK on CPU, in blocks of 64 features. Where the last block has up to 16, 32, 48 or 64 of
# them, its kernel takes so many channels at once; other numbers of channels take up to 10 times as long as with zeros
# added. See "Convolutions" in benchmarks/RESULTS.md.
AT_ONCE = (4, 2, 4, 1)


def pays(x, kernel, strides, pads, dilations) -> bool:
    """Whether `conv` computes by `correlate`."""
    *kernel_size, channels, features = kernel.shape
    if not all(isinstance(n, int) for n in x.shape):  # symbolic sizes of `jax.export`
        return False
    if platform() != "cpu" or products_are_visible() or x.dtype not in (jnp.float32, jnp.float64):
        return False
    # The gradient with one axis is fast in XLA; many entries make a long program.
    if len(kernel_size) == 1 or math.prod(kernel_size[:-1]) > 49:
        return False
    # Chunks split the first axis of x, and products merge the others.
    if not unsharded(x, *range(x.ndim)) or not unsharded(kernel, *range(kernel.ndim)):
        return False
    sizes = zip(x.shape[1:-1], kernel_size, strides, pads, dilations, strict=True)
    positions = math.prod((n + sum(pair) - d * (k - 1) - 1) // s + 1 for n, k, s, pair, d in sizes)
    work = features, len(x), 2 * len(x) * positions * kernel.size
    large = any(all(n >= least for n, least in zip(work, one, strict=True)) for one in FROM)
    return large and positions * kernel_size[-1] * channels <= LARGEST_IMAGE


def convolve(x, kernel, strides, pads, spread, dilations, groups):
    """``jax.lax.conv_general_dilated`` with channels last; on CPU, with as many channels as XLA computes fast."""
    geometry = strides, pads, spread, dilations
    *_, channels, features = kernel.shape
    zeros = 0
    plain = groups == 1 and set(spread) == {1} and x.dtype == kernel.dtype == jnp.float32
    if plain and platform() == "cpu" and not products_are_visible() and unsharded(x, -1) and unsharded(kernel, -2):
        at_once = AT_ONCE[(features - 1) % 64 // 16]
        zeros = -channels % at_once if channels > at_once else 0
    return _with_zeros(*geometry, channels, zeros)(x, kernel) if zeros else _by_lax(x, kernel, *geometry, groups)


# Cached by geometry, so that each one is compiled once.
@functools.lru_cache(maxsize=256)
def _with_zeros(strides, pads, spread, dilations, channels, zeros):
    """A jitted convolution with channels of zeros added; `count_flops` recognizes it by its name."""

    def filled(x, kernel):
        amounts = [(0, 0, 0)] * x.ndim
        x = lax.pad(x, jnp.zeros((), x.dtype), [*amounts[:-1], (0, zeros, 0)])
        kernel = lax.pad(kernel, jnp.zeros((), kernel.dtype), [*amounts[:-2], (0, zeros, 0), (0, 0, 0)])
        return _by_lax(x, kernel, strides, pads, spread, dilations, 1)

    filled.__name__ = name_with_zeros(channels, channels + zeros)
    return jax.jit(filled)


def _by_lax(x, kernel, strides, pads, spread, dilations, groups):
    axes = len(strides)
    # Channels last in x and y, (batch, *spatial, channels); the kernel is (*kernel_size, in, out).
    channels_last = (0, axes + 1, *range(1, axes + 1))
    layout = lax.ConvDimensionNumbers(channels_last, (axes + 1, axes, *range(axes)), channels_last)
    return lax.conv_general_dilated(
        x, kernel, strides, pads, spread, dilations, dimension_numbers=layout, feature_group_count=groups
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def correlate(x, kernel, strides: tuple[int, ...], pads: tuple[tuple[int, int], ...], dilations: tuple[int, ...]):
    """``jax.lax.conv_general_dilated`` of ``(batch, *spatial, in)`` and ``(*kernel_size, in, out)``, channels last."""
    return convolve(x, kernel, strides, pads, (1,) * len(strides), dilations, 1)


@functools.partial(correlate.defjvp, symbolic_zeros=True)
def _rule(strides, pads, dilations, primals, tangents):
    (x, kernel), (d_x, d_kernel) = primals, tangents
    y = correlate(x, kernel, strides, pads, dilations)
    along_x = lambda: correlate(d_x, kernel, strides, pads, dilations)
    if isinstance(d_kernel, SymbolicZero):
        return y, along_x()
    d_y = _by_products(x, d_kernel, strides, pads, dilations, y.shape[1:-1])
    return y, d_y if isinstance(d_x, SymbolicZero) else d_y + along_x()


def _by_products(x, kernel, strides, pads, dilations, positions):
    """The same convolution as products, in chunks of images."""
    *kernel_size, channels, features = kernel.shape
    width = kernel_size[-1] * channels

    def entries(x, axis, j):
        """The entries of x that entry j of this axis of the kernel meets."""
        start, step = j * dilations[axis], strides[axis]
        return lax.slice_in_dim(x, start, start + (positions[axis] - 1) * step + 1, step, axis + 1)

    def of_images(x, kernel):
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*pair, 0) for pair in pads), (0, 0, 0)])
        last = len(kernel_size) - 1
        rows = jnp.concatenate([entries(x, last, j) for j in range(kernel_size[last])], -1)
        rows_of = lax.split(kernel.reshape(-1, features), [width] * math.prod(kernel_size[:last]))
        terms = []
        for before, own in zip(np.ndindex(*kernel_size[:last]), rows_of, strict=True):
            part = rows
            for axis, j in enumerate(before):
                part = entries(part, axis, j)
            terms.append(part.reshape(-1, width) @ own)
        return functools.reduce(jnp.add, terms).reshape(len(x), *positions, features)

    images = len(x)
    chunks = max(1, -(-images // max(1, CHUNK // (math.prod(positions) * width))))
    size = -(-images // chunks)
    # Without checkpoint, reverse mode would store the entries side by side of all images, and the slices of all chunks.
    computed_again = functools.partial(jax.checkpoint, prevent_cse=False)
    if chunks == 1:
        return computed_again(of_images)(x, kernel)
    # In shard_map the gradient is then reduced once, after the chunks.
    kernel = varying_like(kernel, x)
    whole = lax.ScatterDimensionNumbers(tuple(range(x.ndim)), (), (0,))
    # The last chunk ends with the last image; its images that the chunk before has are zero. The transpose reads
    # slices of the cotangent; images of zeros at the end would take a copy of all of it.
    begins = np.arange(0, images, size, dtype=np.int32)
    starts = np.minimum(begins, images - size)

    @computed_again
    def of_chunk(x, kernel, start, known):
        here = lax.dynamic_slice_in_dim(x, start[0], size)
        if images % size:
            new = (jnp.arange(size, dtype=known.dtype) >= known).reshape(-1, *[1] * (x.ndim - 1))
            here = jnp.where(new, here, jnp.zeros_like(here))
        return of_images(here, kernel)

    def step(y, chunk):
        start, known = chunk
        mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
        return lax.scatter_add(y, start, of_chunk(x, kernel, start, known), whole, mode=mode), None

    y = varying_like(jnp.zeros((images, *positions, features), x.dtype), x, kernel)
    return lax.scan(step, y, (jnp.asarray(starts[:, None]), jnp.asarray(begins - starts)))[0]
