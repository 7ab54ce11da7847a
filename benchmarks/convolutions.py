"""Gradients of kernels of convolutions by products against those of XLA, and against torch where it is installed.

    python benchmarks/convolutions.py

Each row is a convolution for which the library uses products on CPU, or one just below its thresholds (`pays` in
jaxblocks/layers/conv_by_products.py), where the rule is called all the same. Columns: the gradient with respect to the
kernel, forward mode with respect to the kernel, and a Hessian-vector product, each relative to plain
`jax.lax.conv_general_dilated`, medians (quartiles); temporary memory of both gradients; the gradient in torch relative
to plain JAX.
"""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import in_turns, ratio, temporary_bytes

from jaxblocks.layers.conv_by_products import correlate, pays

# images, size, channels, features, size of the kernel, stride, padding
ROWS = [
    (64, (32, 32), 3, 32, 3, 1, 1),
    (64, (16, 16), 32, 64, 3, 1, 1),
    (32, (16, 16), 64, 64, 3, 1, 1),
    (8, (16, 16), 256, 256, 3, 1, 1),
    (16, (8, 8), 128, 128, 3, 1, 1),
    (128, (28, 28), 1, 32, 3, 1, 0),
    (128, (26, 26), 32, 64, 3, 1, 0),
    (8, (112, 112), 3, 64, 7, 2, 3),
    (8, (56, 56), 64, 64, 3, 1, 1),
    (8, (56, 56), 64, 128, 3, 2, 1),
    (8, (56, 56), 64, 256, 1, 1, 0),
    (8, (7, 7), 512, 512, 3, 1, 1),
    (64, (32, 32), 3, 64, 4, 4, 0),
    (4, (16, 16, 16), 16, 32, 3, 1, 1),
    (128, (32, 32), 16, 16, 3, 1, 1),
    (128, (32, 32), 3, 16, 3, 1, 1),
    (128, (14, 14), 6, 16, 5, 1, 0),
    (61, (8, 8), 16, 16, 3, 1, 1),
    (32, (256,), 32, 64, 5, 1, 2),
]


def plain(x, kernel, strides, pads, dilations):
    axes = "DHW"[-len(strides) :]
    return lax.conv_general_dilated(x, kernel, strides, pads, None, dilations, (f"N{axes}C", f"{axes}IO", f"N{axes}C"))


def in_torch(x, kernel, y, strides, pads):
    """The gradient with respect to the kernel."""
    torch = importlib.import_module("torch")
    first = lambda a: torch.from_numpy(np.moveaxis(np.array(a), -1, 1).copy())
    x, y, weight = first(x), first(y), torch.from_numpy(np.moveaxis(np.array(kernel), (-1, -2), (0, 1)).copy())
    of = getattr(torch.nn.grad, f"conv{len(strides)}d_weight")
    return lambda: of(x, weight.shape, y, strides, tuple(low for low, _ in pads)).sum(0).shape


def compare(images, sizes, channels, features, size, stride, padding):
    axes = len(sizes)
    geometry = (stride,) * axes, ((padding, padding),) * axes, (1,) * axes
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
    x, kernel = draw(0, images, *sizes, channels), draw(1, *(size,) * axes, channels, features) / 10
    y, along = (
        draw(2, *jax.eval_shape(lambda x, kernel: plain(x, kernel, *geometry), x, kernel).shape),
        draw(3, *kernel.shape),
    )
    used = pays(x, kernel, *geometry)
    cells, memory = [], []

    def gradient(of):
        return lambda x, kernel, y, along: jax.vjp(lambda kernel: of(x, kernel, *geometry), kernel)[1](y)[0]

    def forward(of):
        return lambda x, kernel, y, along: jax.jvp(lambda kernel: of(x, kernel, *geometry), (kernel,), (along,))

    def product(of):
        loss = lambda kernel, x, y: jnp.sum(jnp.tanh(of(x, kernel, *geometry)) * y)
        return lambda x, kernel, y, along: jax.jvp(lambda k: jax.grad(loss)(k, x, y), (kernel,), (along,))

    for kind in (gradient, forward, product):
        programs = {of.__name__: jax.jit(kind(of)).lower(x, kernel, y, along).compile() for of in (correlate, plain)}
        calls = {name: lambda program=program: program(x, kernel, y, along) for name, program in programs.items()}
        results = [jax.tree.leaves(call()) for call in calls.values()]
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4 * float(jnp.abs(b).max()))
        if kind is gradient:
            memory = [temporary_bytes(program) / 2**20 for program in programs.values()]
            if importlib.util.find_spec("torch"):
                calls["torch"] = in_torch(x, kernel, y, *geometry[:2])
        seconds = in_turns(calls, rounds=21)
        cells += [ratio(seconds, name, "plain") for name in calls if name != "plain"]
    return used, cells, memory


if __name__ == "__main__":
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, float32; relative to lax")
    for images, sizes, channels, features, size, stride, padding in ROWS:
        used, cells, memory = compare(images, sizes, channels, features, size, stride, padding)
        text = ["{:.2f} ({:.2f} to {:.2f})".format(*cell) for cell in cells]
        of_torch = f"torch {text.pop(1)}  " if len(text) == 4 else ""
        name = f"{images}x{'x'.join(map(str, sizes))}, {channels} to {features}, kernel {size}, stride {stride}"
        print(
            f"{name:44s} {'used    ' if used else 'not used'}  gradient {text[0]}  {of_torch}forward {text[1]}  "
            f"product {text[2]}  MiB {memory[0]:.1f}, {memory[1]:.1f}",
            flush=True,
        )
