"""Images at points: PyTorch, maps of the grid, ends of the image, and errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import normal
from compiled import compiled

from jaxblocks import Conv, Wire, conv, initializers
from jaxblocks.layers import affine_grid, deform_conv, grid_sample, resize

RNG = np.random.default_rng(0)
MODES = {  # sizes: (method, padding_mode, align_corners); PyTorch has no cubic mode of volumes
    (5, 4): [
        ("linear", "constant", False),
        ("nearest", "reflect", False),
        ("cubic", "constant", True),
        ("cubic", "reflect", False),
        ("cubic", "replicate", True),
    ],
    (3, 4, 2): [("linear", "reflect", False), ("nearest", "replicate", True)],
    (1, 3): [("linear", "reflect", True), ("linear", "replicate", False)],
}
NAMES = {"linear": "bilinear", "cubic": "bicubic", "constant": "zeros", "replicate": "border", "reflect": "reflection"}


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")


@pytest.mark.parametrize("sizes", MODES, ids=str)
def test_values_and_gradients_against_torch(torch, sizes):
    """Each method with each padding, points far outside, those on pixels, and both gradients."""
    k = len(sizes)
    x, grid = RNG.normal(size=(2, *sizes, 3)), 2.5 * RNG.normal(size=(2, *([3] * (k - 1)), 4, k))
    grid.reshape(-1, k)[:3] = [[-1] * k, [1] * k, [0] * k]
    weights = RNG.normal(size=(*grid.shape[:-1], 3))
    modes = MODES[sizes]

    def both(mode):
        method, padding_mode, corners = mode
        run = lambda x, grid: grid_sample(x, grid, method=method, padding_mode=padding_mode, align_corners=corners)
        return lambda x, grid: (lambda y, pull: (y, *pull(weights)))(*jax.vjp(run, x, grid))

    with jax.enable_x64(True):
        found = compiled(lambda x, grid: [both(mode)(x, grid) for mode in modes])(x, grid)
    for (method, padding_mode, corners), (value, of_x, of_grid) in zip(modes, found, strict=True):
        tensors = [torch.tensor(a, requires_grad=True) for a in (np.moveaxis(x, -1, 1).copy(), grid)]
        theirs = torch.nn.functional.grid_sample(
            *tensors, mode=NAMES.get(method, method), padding_mode=NAMES[padding_mode], align_corners=corners
        )
        (theirs * torch.tensor(np.moveaxis(weights, -1, 1).copy())).sum().backward()
        name = f"{method}, {padding_mode}, {corners}"
        np.testing.assert_allclose(value, np.moveaxis(theirs.detach().numpy(), 1, -1), atol=1e-11, err_msg=name)
        np.testing.assert_allclose(of_x, np.moveaxis(tensors[0].grad.numpy(), 1, -1), atol=1e-11, err_msg=name)
        np.testing.assert_allclose(of_grid, tensors[1].grad, atol=1e-11, err_msg=name)


def test_affine_grids_against_torch(torch):
    size, matrix = (2, 2, 3), RNG.normal(size=(2, 3, 4)).astype(np.float32)
    for corners in (False, True):
        theirs = torch.nn.functional.affine_grid(torch.tensor(matrix), (2, 1, *size), corners)
        ours = compiled(affine_grid)(matrix, size, align_corners=corners)
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_the_identity_reads_the_image():
    """And at another size it is the linear interpolation of `resize`; sequences have one axis."""
    x = RNG.normal(size=(5, 4, 2)).astype(np.float32)
    identity = np.eye(2, 3, dtype=np.float32)
    volume, of_volume = RNG.normal(size=(3, 4, 2, 1)).astype(np.float32), np.eye(3, 4, dtype=np.float32)

    @compiled
    def samples(x, volume):
        grids = [affine_grid(identity, (5, 4), align_corners=corners) for corners in (False, True)]
        same = [
            grid_sample(x, grids[corners], align_corners=corners, method=method)
            for corners, method in ((False, "linear"), (True, "nearest"), (True, "cubic"))
        ]
        larger = grid_sample(x, affine_grid(identity, (10, 12)), padding_mode="replicate")
        voxels = grid_sample(volume, affine_grid(of_volume, (4, 5, 3)), padding_mode="replicate", method="cubic")
        line = grid_sample(jnp.array([[0.0], [4.0]]), jnp.array([[-0.5], [0.0], [0.5], [9.0]]))
        resized = resize(x, (10, 12), antialias=False), resize(volume, (4, 5, 3), method="cubic", antialias=False)
        return same, (larger, voxels), resized, line

    same, found, resized, line = samples(x, volume)
    for one, expected in zip((*same, *found), (x, x, x, *resized), strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)
    np.testing.assert_allclose(line[:, 0], [0, 2, 4, 0], atol=1e-6)


def test_any_batch_and_any_positions():
    x, grid = RNG.normal(size=(2, 3, 5, 4, 2)).astype(np.float32), RNG.normal(size=(2, 3, 7, 2)).astype(np.float32)
    run = functools.partial(grid_sample, padding_mode="reflect")

    @compiled
    def samples(x, grid):
        far = grid_sample(x[0, 0], jnp.array([[1e30, 0], [-1e30, 1e30]]))
        of_one = run(x[0, 0], grid[0, 0, 0]), run(x[:0], grid[:0]), run(x.astype(jnp.bfloat16), grid)
        return run(x, grid), jax.vmap(jax.vmap(run))(x, grid), far, of_one

    whole, mapped, far, (single, empty, half) = samples(x, grid)
    assert whole.shape == (2, 3, 7, 2) and empty.shape == (0, 3, 7, 2)
    np.testing.assert_allclose(mapped, whole, rtol=1e-6)
    np.testing.assert_allclose(single, whole[0, 0, 0], rtol=1e-5)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(np.float32), whole, atol=0.03)
    np.testing.assert_array_equal(far, 0)


def test_a_point_that_is_nan_gives_nan():
    """And no other point, neither inside nor outside of the image."""
    grid, image = np.float32([[np.nan, 0], [0, 0], [np.inf, 0]]), np.ones((4, 4, 1), np.float32)
    with jax.debug_nans(False):
        every = compiled(lambda x, grid: [grid_sample(x, grid, method=m) for m in ("linear", "nearest", "cubic")])
        for found in every(image, grid):
            np.testing.assert_array_equal(found[:, 0], [np.nan, 1, 0])


@pytest.mark.parametrize("method", ["linear", "cubic"])
def test_a_point_at_infinity_is_far_outside(method):
    """With the values of a far point, and without a derivative there."""
    grid, image = np.float32([[np.inf, 0.1], [-np.inf, 0.1], [0.2, np.inf]]), normal(0, 4, 4, 2, dtype=np.float32)
    far = np.nan_to_num(grid, posinf=50, neginf=-50)
    for mode in ("constant", "replicate"):
        sample = compiled(lambda x, grid, mode=mode: grid_sample(x, grid, method=method, padding_mode=mode))
        slope = compiled(jax.grad(lambda grid, sample=sample: jnp.sum(sample(image, grid))))
        np.testing.assert_array_equal(sample(image, grid), sample(image, far))
        np.testing.assert_array_equal(slope(grid), slope(far))


@pytest.mark.parametrize(
    ("call", "words", "repaired"),
    [
        (
            lambda x: grid_sample(x, jnp.zeros((7, 2))),
            r"grid_sample expected grid \(\*batch, \*positions, 2\) with the batch axes \(2,\) of x, got float32 \(7,",
            lambda x: grid_sample(x, jnp.zeros((2, 7, 2))),
        ),
        (
            lambda x: grid_sample(x, jnp.zeros((2, 7, 4))),
            "grid_sample expected points with one to three coordinates, got",
            lambda x: grid_sample(x, jnp.zeros((2, 7, 2))),
        ),
        (
            lambda x: grid_sample(x[0, 0, 0], jnp.zeros((7, 2))),
            r"grid_sample expected x \(\*batch, \*spatial, channels\) with 2 spatial axes, as the points, got",
            lambda x: grid_sample(x[0], jnp.zeros((7, 2))),
        ),
        (
            lambda x: grid_sample(x[:, :0], jnp.zeros((2, 7, 2))),
            "grid_sample expected at least one pixel, got",
            lambda x: grid_sample(x[:, :1], jnp.zeros((2, 7, 2))),
        ),
        (
            lambda x: grid_sample(x, jnp.zeros((2, 7, 2)), padding_mode="zeros"),
            "'constant'",
            lambda x: grid_sample(x, jnp.zeros((2, 7, 2)), padding_mode="constant"),
        ),
        (
            lambda x: affine_grid(jnp.eye(3), (3, 4)),
            r"affine_grid expected a matrix of shape \(..., 2, 3\) for size \(3, 4\), got float32 \(3, 3\)",
            lambda x: affine_grid(jnp.eye(3)[:2], (3, 4)),
        ),
    ],
)
def test_errors_and_their_repairs(call, words, repaired):
    x = jnp.ones((2, 5, 4, 3))
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(call, x)
    jax.eval_shape(repaired, x)


# ---- deformable convolutions ------------------------------------------------------------------


def at(image, point):
    """The value of an image at a point, by linear interpolation; 0 outside."""
    low = np.floor(point).astype(int)
    total = 0
    for corner in np.ndindex(*[2] * len(point)):
        pixel = low + corner
        if all(0 <= p < n for p, n in zip(pixel, image.shape, strict=False)):
            total = total + np.prod(1 - np.abs(point - pixel)) * image[tuple(pixel)]
    return total


def deformed(x, offset, kernel, modulation, n, groups, stride, dilation, pads):
    """One image: the sum over entries and channels of weights times what each entry reads, by loops."""
    *size, in_of_group, out = kernel.shape
    positions, k = offset.shape[: len(size)], len(size)
    offset, modulation = offset.reshape(*positions, n, *size, k), modulation.reshape(*positions, n, *size)
    y = np.zeros((*positions, out))
    for i in np.ndindex(*positions):
        for j in np.ndindex(*size):
            start = np.array(i) * stride + np.array(j) * dilation - pads
            for c in range(x.shape[-1]):
                group = c // (x.shape[-1] // n)
                read = modulation[(*i, group, *j)] * at(x[..., c], start + offset[(*i, group, *j)])
                first = c // in_of_group * (out // groups)
                into = slice(first, first + out // groups)
                y[(*i, into)] += read * kernel[(*j, c % in_of_group, into)]
    return y


@pytest.mark.parametrize(
    ("sizes", "kernel_size", "n", "groups", "stride", "dilation", "padding"),
    [((5, 6), (3, 2), 2, 2, (2, 1), (1, 2), 1), ((3, 4, 3), (2, 2, 2), 4, 1, 1, 1, 1)],
    ids=str,
)
def test_deformable_convolutions(sizes, kernel_size, n, groups, stride, dilation, padding):
    """The loop over entries; without offsets the convolution."""
    options = dict(stride=stride, dilation=dilation, groups=groups, padding=padding)
    x, kernel, bias = (RNG.normal(size=s) for s in ((2, *sizes, 4), (*kernel_size, 4 // groups, 6), (6,)))
    positions = jax.eval_shape(functools.partial(conv, **options), x, kernel).shape[1:-1]
    entries = n * int(np.prod(kernel_size))
    offset = 1.5 * RNG.normal(size=(2, *positions, entries * len(sizes)))
    modulation = RNG.uniform(size=(2, *positions, entries))
    with jax.enable_x64(True):
        run = lambda x, offset, *rest, m: deform_conv(x, offset, *rest, modulation=m, **options)
        both = lambda x, offset, kernel, bias, m: (
            run(x, offset, kernel, bias, m=m),
            run(x, 0 * offset, kernel, bias, m=None),
            conv(x, kernel, bias, **options),
        )
        found, without, plain = compiled(both)(x, offset, kernel, bias, modulation)
    np.testing.assert_allclose(without, plain, atol=1e-12)
    for one, image, shifts, m in zip(found, x, offset, modulation, strict=True):
        expected = deformed(image, shifts, kernel, m, n, groups, stride, dilation, padding) + bias
        np.testing.assert_allclose(one, expected, atol=1e-12)


def test_deformable_convolutions_take_any_batch_and_keep_the_dtype():
    x, kernel = np.ones((2, 3, 4, 4, 2), jnp.bfloat16), np.ones((3, 3, 2, 5), np.float32)
    offsets = Conv(18, (3, 3), padding="same", kernel_init=initializers.zeros)
    net = Wire(lambda f, x: deform_conv(x, f.offsets(x), kernel, padding="same"), offsets=offsets)
    run = lambda x: (net.apply(net.init(jax.random.key(0), x), x), conv(x, kernel, padding="same"))
    y, plain = compiled(run)(x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, plain)
    shape = lambda x, offset: jax.eval_shape(lambda: deform_conv(x, offset, kernel, padding="same")).shape
    assert shape(x[0, 0], np.zeros((4, 4, 18), np.float32)) == (4, 4, 5)
    assert shape(x[:0], np.zeros((0, 3, 4, 4, 18), np.float32)) == (0, 3, 4, 4, 5)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"offset": jnp.zeros((4, 4, 9))}, r"offset of shape \(4, 4, 18\), .* compute it by Conv\(18, \(3, 3\)\) with"),
        ({"offset": jnp.zeros((2, 2, 18))}, r"offset of shape \(4, 4, 18\), or n times .*got"),
        ({"offset": jnp.zeros((4, 4, 54))}, r"offset of shape \(4, 4, 18\), or n times .*got"),
        ({"modulation": jnp.ones((4, 4, 18))}, r"modulation of shape \(4, 4, 9\), got"),
        ({"kernel": jnp.ones((3, 3, 1, 5))}, "x with 1 channels on its last axis"),
        ({"kernel": jnp.ones((3, 3, 1, 5)), "groups": 2}, "groups that divide the channels in and out, got groups=2"),
        ({"kernel": jnp.ones((2, 5))}, r"a kernel \(\*kernel_size, in, out\) with one to three"),
        ({"kernel": jnp.ones((0, 3, 2, 5))}, r"a kernel \(\*kernel_size, in, out\) with one to three"),
        ({"padding": 0, "x": jnp.ones((2, 4, 2))}, "deform_conv expected"),
    ],
)
def test_errors_of_deformable_convolutions(wrong, words):
    right = dict(x=jnp.ones((4, 4, 2)), offset=jnp.zeros((4, 4, 18)), kernel=jnp.ones((3, 3, 2, 5)), padding="same")
    jax.eval_shape(lambda: deform_conv(**right))
    with pytest.raises(ValueError, match=words):
        deform_conv(**{**right, **wrong})
