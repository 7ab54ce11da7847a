"""Convolutions in forms for CPUs, products and channels of zeros: against `lax.conv_general_dilated`, and where."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import check_second_order, drawn_like
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jaxblocks import conv
from jaxblocks.ad import count_flops
from jaxblocks.backend.derivative_rules import visible_products
from jaxblocks.backend.platforms import lowering_for
from jaxblocks.layers import conv_by_products
from jaxblocks.layers.conv_by_products import convolve, correlate, pays

# images, shape of an image, kernel, strides, pads, dilations
GEOMETRIES = {
    "3 x 3 in chunks": (5, (5, 4), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "strided": (2, (7, 6), (3, 2), (2, 3), ((1, 0), (0, 2)), (1, 1)),
    "three axes, dilated": (3, (3, 4, 3), (2, 3, 2), (1, 2, 1), ((1, 0), (1, 1), (0, 0)), (1, 1, 2)),
    "no image": (0, (4, 4), (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "fewer rows than the kernel": (2, (2, 3), (4, 3), (1, 1), ((1, 1), (0, 1)), (1, 1)),
}


def plain(x, kernel, strides, pads, dilations):
    axes = "DHW"[-len(strides) :]
    names = f"N{axes}C", f"{axes}IO", f"N{axes}C"
    return lax.conv_general_dilated(x, kernel, strides, pads, None, dilations, names)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_all_derivatives_are_those_of_lax(name, monkeypatch):
    images, sizes, kernel_size, *geometry = GEOMETRIES[name]
    monkeypatch.setattr(conv_by_products, "CHUNK", 2 * math.prod(sizes) * kernel_size[-1] * 2)  # two images or more
    with jax.enable_x64(True):
        shapes = jnp.zeros((images, *sizes, 2)), jnp.zeros((*kernel_size, 2, 3))
        total = lambda convolve: lambda x, kernel: jnp.sum(jnp.sin(convolve(x, kernel, *geometry)))
        check_second_order(total(correlate), total(plain), drawn_like(shapes), drawn_like(shapes, 1))


LARGE = (16, 16, 16, 64), (3, 3, 64, 32)  # shapes of x and kernel for which `pays` holds
OPTIONS = (1, 1), ((1, 1), (1, 1)), (1, 1)


def arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape).astype(dtype)) for shape in shapes]


def of_kernel(x, kernel):
    """The gradient with respect to the kernel of a convolution by the library."""
    return jax.grad(lambda kernel: jnp.sum(jnp.sin(conv(x, kernel, padding=1))))(kernel)


def test_batched_and_mapped_over_devices(monkeypatch):
    """vmap over x, over kernels and over both; examples split over devices, with one reduction after all chunks."""
    monkeypatch.setattr(conv_by_products, "CHUNK", 6 * 6 * 6)  # one image
    x, kernel = arrays((8, 6, 6, 2), (3, 3, 2, 4))
    gradient = lambda convolve: jax.grad(lambda kernel, x: jnp.sum(jnp.sin(convolve(x, kernel, *OPTIONS))))
    xs, kernels = x.reshape(2, 4, 6, 6, 2), jnp.stack([kernel, -kernel])
    for axes in ((None, 0), (0, None), (0, 0)):
        of = kernels if axes[0] == 0 else kernel, xs if axes[1] == 0 else x
        found, expected = (jax.jit(jax.vmap(gradient(one), axes))(*of) for one in (correlate, plain))
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)

    expected = jax.jit(gradient(plain))(kernel, x)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Auto,))
    specs = dict(in_specs=(PartitionSpec(), PartitionSpec("batch")), out_specs=PartitionSpec())
    mapped = jax.jit(jax.shard_map(gradient(correlate), mesh=mesh, **specs))
    np.testing.assert_allclose(mapped(kernel, x), expected, rtol=2e-5, atol=2e-5)
    program = mapped.lower(kernel, x).compile().as_text()
    assert program.count(" all-reduce(") == program.split("ENTRY")[1].count(" all-reduce(") == 1  # not in the loop
    on_mesh = jax.device_put(x, jax.NamedSharding(mesh, PartitionSpec("batch")))
    np.testing.assert_allclose(jax.jit(gradient(correlate))(kernel, on_mesh), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.cpu
def test_gradients_of_large_convolutions_are_products(monkeypatch):
    """The values of plain JAX, no other convolution than that of the output, and little memory."""
    monkeypatch.setattr(conv_by_products, "CHUNK", 2**16)  # one image
    jax.clear_caches()  # the rule as another test traced it, with other chunks
    x, kernel = arrays(*LARGE)
    with visible_products():
        expected = jax.jit(of_kernel)(x, kernel)
        by_lax = str(jax.make_jaxpr(of_kernel)(x, kernel))
    program = jax.jit(of_kernel)
    np.testing.assert_allclose(program(x, kernel), expected, rtol=1e-4, atol=1e-3)
    by_products = str(jax.make_jaxpr(of_kernel)(x, kernel))
    # One convolution for the output, inside of the rule; its gradient by lax is a second one.
    assert by_lax.count("conv_general_dilated[") == by_products.count("conv_general_dilated[") + 1 == 2
    assert "dot_general" in by_products and "dot_general" not in by_lax
    # The entries of all images side by side would be three times x, and the slices of all chunks x once more.
    assert program.lower(x, kernel).compile().memory_analysis().temp_size_in_bytes < 1.8 * x.nbytes


@pytest.mark.cpu
def test_where_it_pays(monkeypatch):
    x, kernel = arrays(*LARGE)
    assert pays(x, kernel, *OPTIONS)
    assert not pays(x[:2], kernel, *OPTIONS)  # 19e6 operations
    assert not pays(x, kernel[..., :31], *OPTIONS)
    many = jnp.zeros((64, *x.shape[1:]))  # 302e6 operations with 16 features
    assert pays(many, kernel[..., :16], *OPTIONS) and not pays(many, kernel[..., :15], *OPTIONS)
    assert not pays(many[:, :5], kernel[..., :16], *OPTIONS) and not pays(many[:63], kernel[..., :16], *OPTIONS)
    assert not pays(x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), *OPTIONS)
    assert not pays(jnp.zeros((64, 4096, 8)), jnp.zeros((3, 8, 64)), (1,), ((1, 1),), (1,))
    # One chunk has at least one image, whose entries side by side would not fit.
    assert not pays(jnp.zeros((1, 1024, 1024, 4)), jnp.zeros((3, 3, 4, 64)), *OPTIONS)
    with visible_products():
        assert not pays(x, kernel, *OPTIONS)
    devices = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Explicit,))
    sharded = jax.device_put(x, jax.NamedSharding(devices, PartitionSpec("batch")))
    assert not pays(sharded, kernel, *OPTIONS)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not pays(x, kernel, *OPTIONS)


@pytest.mark.cpu
@pytest.mark.parametrize(("channels", "features", "zeros"), [(5, 3, 3), (6, 44, 2)])
def test_channels_of_zeros(channels, features, zeros):
    """The values, derivatives and counts are those without them."""
    geometry = (2, 1), ((1, 0), (1, 1)), (1, 1), (1, 2)
    x, kernel, d_x, d_kernel = arrays((2, 5, 6, channels), (3, 2, channels, features)) * 2

    def derivatives(x, kernel, d_x, d_kernel):
        total = lambda x, kernel: jnp.sum(jnp.sin(convolve(x, kernel, *geometry, 1)))
        gradient = jax.grad(total, (0, 1))
        return total(x, kernel), jax.jvp(gradient, (x, kernel), (d_x, d_kernel))

    program = str(jax.make_jaxpr(derivatives)(x, kernel, d_x, d_kernel))
    assert f"convolution_with_zeros_{channels}_of_{channels + zeros}" in program
    found, counts = jax.jit(derivatives)(x, kernel, d_x, d_kernel), count_flops(derivatives, x, kernel, d_x, d_kernel)
    with visible_products():
        expected = jax.jit(derivatives)(x, kernel, d_x, d_kernel)
        plainly = count_flops(derivatives, x, kernel, d_x, d_kernel)
        assert "zeros" not in str(jax.make_jaxpr(derivatives)(x, kernel, d_x, d_kernel))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-4)
    for name in ("multiplications", "dots", "macs"):
        assert getattr(counts, name) == getattr(plainly, name)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("channels", "features", "dtype"), [(3, 16, "float32"), (6, 20, "float32"), (5, 64, "float32"), (5, 3, "bfloat16")]
)
def test_no_channels_of_zeros_where_they_save_nothing(channels, features, dtype):
    x, kernel = jnp.zeros((2, 5, 5, channels), dtype), jnp.zeros((3, 3, channels, features), dtype)
    assert "zeros" not in str(jax.make_jaxpr(conv)(x, kernel))
    with lowering_for("tpu"):
        x, kernel = jnp.zeros((2, 5, 5, 3)), jnp.zeros((3, 3, 3, 20))
        assert "zeros" not in str(jax.make_jaxpr(conv)(x, kernel))
