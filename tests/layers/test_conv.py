"""Convolution and its adjoint: values from the lectures, NumPy loops, PyTorch, equivariance, and errors."""

import functools
import importlib

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from zoo_conv import convolution, transposed

from jaxblocks import AvgPool, Conv, ConvTranspose, DepthwiseConv, MaxPool, conv, conv_transpose, count_params, relu

close = functools.partial(arrays.close, tolerance=1e-10)

# One program for each call.
conv = compiled(conv)
conv_transpose = compiled(conv_transpose)

CONV_FILE = importlib.import_module("jaxblocks.layers.conv")  # as an attribute it is the function `conv`
RNG = np.random.default_rng(0)


def line(*values):
    """A signal with one channel."""
    return np.array(values, np.float32)[:, None]


def taps(*values):
    """A kernel from one channel to one channel."""
    return np.array(values, np.float32)[:, None, None]


def normal(*shape):
    return RNG.normal(size=shape)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is the reference; install the parity extra")


# ---- values from the lectures ------------------------------------------------------------------


def test_a_kernel_slides_over_a_signal():
    """a_1 x_i + a_2 x_{i+1} + a_3 x_{i+2}, of length d_in - 2, then a rectifier."""
    x, a = (1, -1, 2, 0, 3), (1, 2, -1)
    y = conv(line(*x), taps(*a))[:, 0]
    np.testing.assert_array_equal(y, [-3, 3, -1])
    np.testing.assert_array_equal(y, np.correlate(x, a))
    np.testing.assert_array_equal(relu(y), [0, 3, 0])


def test_the_kernel_is_not_flipped():
    """A sliding inner product gives (-2, -2, -2); convolution with the flipped kernel gives (2, 2, 2)."""
    x = line(1, 2, 3, 4, 5)
    np.testing.assert_array_equal(conv(x, taps(1, 0, -1))[:, 0], [-2, -2, -2])
    np.testing.assert_array_equal(
        conv(x, taps(1, 0, -1)[::-1])[:, 0], np.convolve([1, 2, 3, 4, 5], [1, 0, -1], "valid")
    )


def test_the_layer_of_the_lecture():
    """From 3 x 28 x 28 to 8 x 26 x 26 with 224 parameters, where a dense layer has 12,725,024."""
    layer, x = Conv(8, (3, 3)), jax.ShapeDtypeStruct((28, 28, 3), jnp.float32)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    assert count_params(params) == 224
    out = jax.eval_shape(layer.apply, params, x).shape
    assert out == (28 - 3 + 1, 28 - 3 + 1, 8)
    assert (3 * 28 * 28 + 1) * np.prod(out) == 12_725_024


@pytest.mark.parametrize(
    ("n", "k", "s", "p", "d", "size"),
    [(5, 3, 1, 0, 1, 3), (28, 5, 1, 0, 1, 24), (32, 3, 2, 1, 1, 16), (32, 3, 1, 0, 2, 28)],
)
def test_output_sizes(n, k, s, p, d, size):
    """floor((H + 2p - d(k - 1) - 1) / s) + 1; the printed H - k + 1 holds without padding, stride and dilation only."""
    x, w = jax.ShapeDtypeStruct((n, 1), jnp.float32), jnp.zeros((k, 1, 1))
    out = jax.eval_shape(lambda x: conv(x, w, stride=s, padding=p, dilation=d), x)
    assert out.shape == (size, 1)
    assert (size == n - k + 1) == ((s, p, d) == (1, 0, 1))


def test_the_transposed_convolution_is_a_full_convolution():
    """(1, 4, 10, 12, 9) of length H + k - 1; the printed sum over j is a correlation and gives (14, 8, 3)."""
    x = (1, 2, 3)
    np.testing.assert_array_equal(conv_transpose(line(*x), taps(*x))[:, 0], [1, 4, 10, 12, 9])
    np.testing.assert_array_equal(conv_transpose(line(*x), taps(1, 0, -1))[:, 0], [1, 2, 2, -2, -3])
    np.testing.assert_array_equal(np.convolve(x, [1, 0, -1]), [1, 2, 2, -2, -3])
    printed = [sum(a * b for a, b in zip(x[i:], x, strict=False)) for i in range(3)]
    assert printed == [14, 8, 3]
    # A full correlation differs too.
    np.testing.assert_array_equal(np.correlate(x, [1, 0, -1], "full"), [-1, -2, -2, 2, 3])


@pytest.mark.parametrize(
    ("n", "k", "s", "p", "d", "op", "size"), [(4, 3, 2, 0, 1, 0, 9), (4, 3, 2, 1, 1, 1, 8), (5, 3, 1, 0, 1, 0, 7)]
)
def test_transposed_output_sizes(n, k, s, p, d, op, size):
    """(H - 1)s - 2p + d(k - 1) + op + 1."""
    options = dict(stride=s, dilation=d, padding=p, output_padding=op)
    y = jax.eval_shape(lambda: conv_transpose(jnp.zeros((n, 1)), jnp.zeros((k, 1, 1)), **options))
    assert y.shape == (size, 1)


# ---- references --------------------------------------------------------------------------------


def torch_layout(torch, kernel):
    """(*kernel_size, in, out) to (out, in, *kernel_size)."""
    return torch.tensor(np.moveaxis(kernel, (-1, -2), (0, 1)).copy(), requires_grad=True)


def channels_first(torch, x):
    return torch.tensor(np.moveaxis(x, -1, 1).copy(), requires_grad=True)


SETTINGS = [  # axes, stride, dilation, groups, padding
    (1, 3, 2, 4, 3),  # of one channel each
    (2, (2, 1), (1, 2), 2, (0, 2)),
    (3, 2, (1, 1, 2), 1, 1),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("direction", ["forward", "transposed"])
def test_against_torch(torch, setting, direction):
    """Values and all gradients equal torch's to 1e-10 in float64, and for images to 1e-5 in float32."""
    axes, stride, dilation, groups, padding = setting
    kernel_size, sizes = (3, 2, 2)[:axes], (7, 6, 5)[:axes]
    out = 4 if groups == 4 else 8
    kernel = normal(*kernel_size, 4 // groups, out)
    if direction == "forward":
        x, bias, ours = normal(2, *sizes, 4), normal(out), conv
        theirs = getattr(torch.nn.functional, f"conv{axes}d")
    else:
        x, bias, ours = normal(2, *sizes, out), normal(4), conv_transpose
        theirs = getattr(torch.nn.functional, f"conv_transpose{axes}d")
    inputs = channels_first(torch, x), torch_layout(torch, kernel), torch.tensor(bias, requires_grad=True)
    y = theirs(*inputs, stride=stride, dilation=dilation, groups=groups, padding=padding)
    expected = np.moveaxis(y.detach().numpy(), 1, -1)
    weights = normal(*expected.shape)
    y.backward(torch.tensor(np.moveaxis(weights, -1, 1).copy()))
    gx, gw, gb = (leaf.grad.numpy() for leaf in inputs)
    gradients = np.moveaxis(gx, 1, -1), np.moveaxis(gw, (0, 1), (-1, -2)), gb

    def run(x, kernel, bias, weights):
        options = dict(stride=stride, dilation=dilation, groups=groups, padding=padding)
        y, pull = jax.vjp(lambda *args: ours(*args, **options), x, kernel, bias)
        return y, pull(weights)

    with jax.enable_x64(True):
        for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-5))[: 2 if axes == 2 else 1]:
            cast = [a.astype(dtype) for a in (x, kernel, bias, weights)]
            y, pulled = jax.jit(run)(*cast)
            assert y.dtype == dtype
            for got, want in zip((y, *pulled), (expected, *gradients), strict=True):
                close(got, want, tolerance=tolerance * max(1, np.abs(want).max()))


def test_padding_modes_against_torch(torch):
    """Reflection; `test_paddings` has the others."""
    x, kernel = normal(2, 5, 6, 2), normal(3, 4, 2, 3)
    layer = torch.nn.Conv2d(2, 3, (3, 4), padding=(1, 2), padding_mode="reflect", bias=False, dtype=torch.float64)
    layer.weight.data = torch_layout(torch, kernel).data
    with jax.enable_x64(True):
        y = conv(x, kernel, padding=(1, 2), padding_mode="reflect")
    close(y, np.moveaxis(layer(channels_first(torch, x)).detach().numpy(), 1, -1))


def test_a_convolution_is_an_affine_map_of_patches():
    """The product of patches (im2col) and the kernel as a matrix; a 1 x 1 kernel is a dense layer at each position."""
    x, kernel = normal(2, 6, 5, 3), normal(3, 2, 3, 4)
    patches = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (1, 2))  # (batch, i, j, in, 3, 2)
    expected = np.moveaxis(patches, 3, -1).reshape(2, 4, 4, -1) @ kernel.reshape(-1, 4)
    with jax.enable_x64(True):
        close(conv(x, kernel), expected)
        close(conv(x, kernel[:1, :1]), x @ kernel[0, 0])


# ---- padding, batch axes, groups ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("padding", "modes", "pads"),
    [
        ("valid", "constant", ((0, 0), (0, 0))),
        ("same", "constant", ((1, 1), (0, 1))),
        ("same", "circular", ((1, 1), (0, 1))),
        ("causal", "constant", ((2, 0), (1, 0))),
        (("causal", "same"), "constant", ((2, 0), (0, 1))),
        ((1, (0, 2)), "constant", ((1, 1), (0, 2))),
        ((2, 3), ("replicate", "circular"), ((2, 2), (3, 3))),
    ],
    ids=str,
)
def test_paddings(padding, modes, pads):
    """Each form of padding equals the valid convolution of an input that NumPy pads, axis by axis."""
    x, kernel = normal(2, 5, 6, 2).astype(np.float32), normal(3, 2, 2, 3).astype(np.float32)
    modes = ("zeros" if modes == "constant" else modes) if isinstance(modes, str) else modes
    numpy = {"zeros": "constant", "circular": "wrap", "replicate": "edge"}
    full = x
    for axis, pair in enumerate(pads, 1):
        mode = modes if isinstance(modes, str) else modes[axis - 1]
        full = np.pad(full, [pair if a == axis else (0, 0) for a in range(4)], numpy[mode])
    y = conv(x, kernel, padding=padding, padding_mode=modes)
    close(y, convolution(full, kernel), tolerance=1e-5)


def test_same_padding_has_one_output_per_stride_and_splits_as_xla_does():
    x, kernel = normal(1, 7, 8, 1).astype(np.float32), normal(3, 4, 1, 1).astype(np.float32)
    y = conv(x, kernel, stride=(2, 3), padding="same")
    plain = lax.conv_general_dilated(x, kernel, (2, 3), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    assert y.shape == (1, 4, 3, 1)
    np.testing.assert_array_equal(y, plain)


def test_causal_padding_does_not_depend_on_later_positions():
    x, kernel = normal(9, 2).astype(np.float32), normal(3, 2, 2).astype(np.float32)
    run = lambda x: conv(x, kernel, dilation=2, padding="causal")
    moved = run(x + (np.arange(9) == 5)[:, None].astype(np.float32)) != run(x)
    np.testing.assert_array_equal(moved.any(-1), [False] * 5 + [True, False, True, False])


def test_any_number_of_batch_axes():
    x, kernel = normal(2, 3, 5, 4, 2).astype(np.float32), normal(2, 2, 2, 3).astype(np.float32)
    for run, k in ((conv, kernel), (conv_transpose, np.swapaxes(kernel, -1, -2))):
        every = jax.jit(lambda x, k, run=run: (run(x, k), [run(a, k) for a in x], run(x[0, 0], k), run(x[:0], k)))
        y, parts, one, none = every(x, k)
        close(y, np.stack(parts), tolerance=1e-6)
        close(y[0, 0], one, tolerance=1e-6)
        assert none.shape == (0, *y.shape[1:])


def test_groups_are_separate_convolutions_and_depthwise_one_per_channel():
    x, kernel = normal(2, 5, 4), normal(3, 2, 6)
    close(
        convolution(x, kernel, groups=2),
        np.concatenate([convolution(x[..., :2], kernel[..., :3]), convolution(x[..., 2:], kernel[..., 3:])], -1),
    )
    layer = DepthwiseConv(3, multiplier=2)
    x = x.astype(np.float32)
    params = drawn(layer, x)
    assert params["kernel"].shape == (3, 1, 8) and params["bias"].shape == (8,)
    y = compiled(layer.apply)(params, x)
    for c in range(4):
        for j in range(2):
            alone = conv(x[..., c : c + 1], params["kernel"][..., 2 * c + j, None], params["bias"][2 * c + j, None])
            close(y[..., 2 * c + j], alone[..., 0], tolerance=1e-6)


@pytest.mark.parametrize(("channels", "groups"), [(4, 4), (4, 2), (34, 34), (68, 34)])
def test_all_group_implementations_agree(monkeypatch, channels, groups):
    """Shifted products for small depthwise windows, separate parts for few groups, and XLA's grouped form agree."""
    wide = 70 if channels == 34 else 3  # a kernel too large for shifts
    x = normal(2, wide + 2, channels).astype(np.float32)
    kernel = (normal(wide, channels // groups, channels) / wide).astype(np.float32)
    run = lambda: jax.jit(functools.partial(conv, stride=2, groups=groups, padding=1))(x, kernel)
    by_hand = run()
    calls = []
    by_xla = CONV_FILE._by_xla
    monkeypatch.setattr(CONV_FILE, "_by_xla", lambda *args: calls.append(args[-1]) or by_xla(*args))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    close(by_hand, run(), tolerance=1e-5)
    assert calls == [groups]


# ---- properties --------------------------------------------------------------------------------


def test_shifting_the_input_shifts_the_output():
    """Equivariance holds everywhere on a torus up to rounding; with zero padding, only away from the borders."""
    x, kernel = normal(8, 7, 2).astype(np.float32), normal(3, 3, 2, 3).astype(np.float32)
    shift = lambda a: np.roll(a, (2, -1), (0, 1))
    torus = lambda x: conv(x, kernel, padding="same", padding_mode="circular")
    np.testing.assert_allclose(torus(shift(x)), shift(torus(x)), atol=2e-6)  # sums in another order on some CPUs
    zeros = lambda x: conv(x, kernel, padding="same")
    ahead, behind = zeros(shift(x)), shift(zeros(x))
    np.testing.assert_array_equal(ahead[3:-1, 1:-2], behind[3:-1, 1:-2])
    assert not np.allclose(ahead, behind)


@pytest.mark.parametrize(
    ("stride", "dilation", "groups", "padding", "sizes"),
    [
        ((3, 2), (1, 2), 1, ((1, 0), (2, 3)), (7, 6)),
        (2, 1, 4, "same", (6, 4)),
        (1, 2, 1, "causal", (5, 6)),
    ],
    ids=str,
)
def test_adjoint_identity(stride, dilation, groups, padding, sizes):
    """<conv u, x> = <u, conv_transpose x> with one kernel; reverse mode computes it."""
    with jax.enable_x64(True):
        u, kernel = normal(2, *sizes, 4), normal(3, 2, 4 // groups, 8)
        options = dict(stride=stride, dilation=dilation, groups=groups, padding=padding)
        forward = lambda u: conv(u, kernel, **options)
        x = normal(*jax.eval_shape(forward, u).shape)
        smallest = jax.eval_shape(lambda x: conv_transpose(x, kernel, **options), x)
        more = tuple(n - m for n, m in zip(sizes, smallest.shape[1:3], strict=True))  # restores the shape of u

        @jax.jit
        def all_of(u, x):
            y, pull = jax.vjp(forward, u)
            return y, pull(x)[0], conv_transpose(x, kernel, **options, output_padding=more)

        y, pulled, back = all_of(u, x)
        assert back.shape == u.shape
        close(np.vdot(y, x), np.vdot(u, back), tolerance=1e-12)
        close(back, pulled, tolerance=1e-12)


def test_the_transposed_convolution_against_loops():
    """Each entry adds a scaled copy of the kernel, with groups and every option."""
    x, kernel, bias = normal(2, 3, 4, 6), normal(3, 2, 2, 6), normal(4)
    with jax.enable_x64(True):
        options = dict(stride=2, groups=2, padding=1, output_padding=1)
        y = conv_transpose(x, kernel, bias, **options)
    close(y, transposed(x, kernel, bias, 2, 2, 1, 1))
    one = functools.partial(conv_transpose, x[..., :2], kernel[..., :2], bias[:2], dilation=3)
    y, longer = one(), one(output_padding=(2, 0))  # positions that no entry reaches
    close(longer, np.concatenate([y, np.broadcast_to(bias[:2], (2, 2, *y.shape[2:]))], 1), tolerance=1e-6)


def test_sharded_batches():
    """A sharded batch gives the gradient of one device."""
    x, kernel = normal(8, 4, 4).astype(np.float32), normal(2, 1, 4).astype(np.float32)
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    batch = PartitionSpec("batch")
    f = lambda x, k: [jnp.tanh(run(x, k, groups=4, stride=2)) for run in (conv, conv_transpose)]
    sharded = jax.shard_map(f, mesh=mesh, in_specs=(batch, PartitionSpec()), out_specs=batch)
    slope = lambda f: jax.jit(jax.grad(lambda k: sum(y.sum() for y in f(x, k))))(kernel)
    close(slope(sharded), slope(f), tolerance=1e-4)


def test_dtypes():
    """Params stay float32, and the output has the dtype of the input."""
    x = np.ones((6, 2), jnp.bfloat16)
    layer = Conv(2, 3, dtype=jnp.bfloat16, use_bias=False)
    params = drawn(layer, x)
    assert params["kernel"].dtype == jnp.float32
    assert jax.eval_shape(layer.apply, params, x.astype(np.float32)).dtype == jnp.bfloat16
    wide = drawn(Conv(2, 3, param_dtype=jnp.bfloat16), x)
    assert wide["kernel"].dtype == wide["bias"].dtype == jnp.bfloat16


@pytest.mark.cpu
def test_half_precision_accumulates_in_float32():
    """JAX 0.11 adds in bfloat16 where an H100 convolves each channel alone."""
    kernel = np.concatenate([np.full((1, 1, 2), 256, np.float32), np.ones((15, 1, 2), np.float32)])
    y = conv(np.ones((16, 2), jnp.bfloat16), kernel, groups=2)
    assert (y == 272).all()  # in bfloat16, 256 + 1 is 256


@pytest.mark.parametrize(
    ("layer", "channels", "fan_in"),
    [
        (Conv(256, 5, groups=4), 256, 5 * 64),
        (DepthwiseConv((3, 3), multiplier=8), 512, 9),
        (ConvTranspose(64, 3, groups=8), 256, 3 * 32),
    ],
)
def test_initial_kernels_have_variance_one_over_fan_in(layer, channels, fan_in):
    """LeCun's rule; the fan-in counts the positions of the kernel and the channels of one group."""
    axes = 1 if fan_in in (5 * 64, 3 * 32) else 2
    like = jax.ShapeDtypeStruct((*[8] * axes, channels), jnp.float32)
    params = layer.init(jax.random.key(0), like)
    assert np.var(params["kernel"]) == pytest.approx(1 / fan_in, rel=0.05)
    assert not params["bias"].any()


def test_a_decoder_can_share_the_kernel_of_its_encoder():
    """ConvTranspose accepts the params of the Conv whose adjoint it is."""
    key, x = jax.random.key(0), jax.ShapeDtypeStruct((2, 6, 6, 3), jnp.float32)
    options = dict(stride=2, padding=1, use_bias=False)
    encoder, decoder = Conv(8, (4, 4), **options), ConvTranspose(3, (4, 4), **options)
    params = jax.eval_shape(encoder.init, key, x)
    code = jax.eval_shape(encoder.apply, params, x)
    assert jax.eval_shape(decoder.init, key, code) == params
    assert jax.eval_shape(decoder.apply, params, code).shape == x.shape


# ---- errors ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sentences")
def test_channels_first_inputs_are_rejected_with_the_repair():
    x, kernel = jnp.zeros((8, 3, 32, 30)), jnp.zeros((3, 3, 3, 4))
    with pytest.raises(ValueError, match=r"expected x with 3 channels .* write jnp.moveaxis\(x, 1, -1\)"):
        conv(x, kernel)
    assert conv(jnp.moveaxis(x, 1, -1), kernel).shape == (8, 30, 28, 4)
    with pytest.raises(ValueError, match=r"jnp.moveaxis\(x, 0, -1\)"):
        conv(x[0], kernel)
    layer = Conv(4, (5, 5))
    with pytest.raises(
        ValueError, match=r"which spans \(3, 32\).*if the channels of x are first, write jnp.moveaxis\(x, 1"
    ):
        layer.apply(drawn(layer, x), x)
    with pytest.raises(ValueError, match="expected x with 3 channels .* pass x of that size"):
        conv(jnp.zeros((8, 32, 30, 5)), kernel)


@pytest.mark.usefixtures("sentences")
def test_windows_larger_than_the_input_are_rejected():
    x = jnp.zeros((4, 2))
    with pytest.raises(ValueError, match=r"span \(5,\) positions.*which spans \(4,\).*padding='same'"):
        conv(x, jnp.zeros((3, 2, 1)), dilation=2)
    assert conv(x, jnp.zeros((3, 2, 1)), dilation=2, padding="same").shape == (4, 1)
    for kernel_size in (0, (3, 0), -1, True, 1.5, "3"):
        with pytest.raises((TypeError, ValueError), match="Conv expected kernel_size to be an integer >= 1"):
            Conv(1, kernel_size)
    with pytest.raises(ValueError, match="one to three spatial axes"):
        Conv(1, (1, 1, 1, 1))
    with pytest.raises(ValueError, match="integers >= 1 in kernel_size"):
        conv(x, jnp.zeros((0, 2, 1)))


@pytest.mark.usefixtures("sentences")
def test_errors_of_rank_and_dtype():
    with pytest.raises(ValueError, match=r"with at least 3 axes, got float32 \(5, 2\); .*x\[..., None\]"):
        conv(jnp.zeros((5, 2)), jnp.zeros((2, 2, 1, 3)))
    assert conv(jnp.zeros((5, 2))[..., None], jnp.zeros((2, 2, 1, 3))).shape == (4, 1, 3)
    with pytest.raises(ValueError, match=r"affine\(x, kernel\)"):
        conv(jnp.zeros((5, 2)), jnp.zeros((2, 3)))
    with pytest.raises(TypeError, match=r"x.astype\(jnp.float32\)"):
        conv(jnp.zeros((5, 2), int), jnp.zeros((2, 2, 3)))
    with pytest.raises(TypeError, match="x to be a floating-point or complex array"):
        Conv(1, 2).init(jax.random.key(0), jnp.zeros((5, 2), int))
    with pytest.raises(ValueError, match=r"kernel .*out\) and bias \(out,\) with the same size of out"):
        conv(jnp.zeros((5, 2)), jnp.zeros((2, 2, 3)), jnp.zeros(2))
    with pytest.raises(ValueError, match="Conv expected params named bias, kernel"):
        Conv(1, 2).apply({"kernel": jnp.zeros((2, 2, 1))}, jnp.zeros((5, 2)))


@pytest.mark.usefixtures("sentences")
def test_groups_that_do_not_divide_the_channels_are_rejected():
    x = jnp.zeros((5, 6))
    with pytest.raises(ValueError, match="groups=4 for 6 channels in and 8 out; .*such as groups=2"):
        Conv(8, 3, groups=4).init(jax.random.key(0), x)
    assert drawn(Conv(8, 3, groups=2), x)["kernel"].shape == (3, 3, 8)
    with pytest.raises(ValueError, match="groups=3 for 6 channels in and 8 out"):
        conv(x, jnp.zeros((3, 2, 8)), groups=3)
    with pytest.raises(ValueError, match="groups to be an integer >= 1, got 0"):
        conv(x, jnp.zeros((3, 2, 8)), groups=0)
    with pytest.raises(ValueError, match="multiplier to be an integer"):
        DepthwiseConv(3, multiplier=0)
    with pytest.raises(ValueError, match="features to be an integer"):
        ConvTranspose(0, 3)


@pytest.mark.usefixtures("sentences")
def test_invalid_options_are_rejected():
    x, kernel = jnp.zeros((5, 1)), jnp.zeros((3, 1, 1))
    for padding in ("full", -1, ((1, 2, 3),), True, 1.5, (None,)):
        with pytest.raises((TypeError, ValueError), match=r"padding to be 'valid' or 'same' or 'causal' or .* got"):
            conv(x, kernel, padding=padding)
    with pytest.raises(ValueError, match=r"padding to be .* got \(2, 0\); .*written \(\(before, after\),\)"):
        conv(x, kernel, padding=(2, 0))
    assert conv(x, kernel, padding=((2, 0),)).shape == (5, 1)
    with pytest.raises(ValueError, match="padding_mode to be 'zeros' or 'circular' or 'reflect' or 'replicate'"):
        conv(x, kernel, padding_mode="wrap")
    with pytest.raises(ValueError, match="stride to be an integer >= 1 or a sequence of integers >= 1, got 0"):
        conv(x, kernel, stride=0)
    with pytest.raises(ValueError, match=r"dilation to be .* one for each spatial axis .1 in all., got \(1, 1\)"):
        conv(x, kernel, dilation=(1, 1))
    with pytest.raises(ValueError, match="output_padding below 2, the larger of stride and dilation"):
        conv_transpose(x, kernel, stride=2, output_padding=2)
    with pytest.raises(ValueError, match="leave output_padding at 0"):
        conv_transpose(x, kernel, stride=2, padding="same", output_padding=1)
    assert conv_transpose(x, kernel, stride=2, padding="same").shape == (10, 1)
    with pytest.raises(ValueError, match="at least one position .*got -1 .*reduce the padding"):
        conv_transpose(x, kernel, padding=4)
    with pytest.raises(ValueError, match=r"stride to be .* sequence of integers >= 1, got \(0, 1\)"):
        conv(jnp.zeros((5, 5, 1)), jnp.zeros((3, 3, 1, 1)), stride=(0, 1))
    with pytest.raises(ValueError, match=r"kernel_size to be .* sequence of integers >= 1, got \(0, 3\)"):
        Conv(1, (0, 3))
    with pytest.raises(
        ValueError, match=r"on axis 0 .*got float32 \(0, 1\); pass a longer input, or padding_mode='zeros'"
    ):
        conv(jnp.zeros((0, 1)), kernel, padding=2, padding_mode="circular")
    with pytest.raises(
        TypeError, match=r"Conv expected x to be a floating-point or complex array, got int32 .* x.astype"
    ):
        Conv(1, 3, dtype=jnp.float32).apply({"kernel": kernel, "bias": jnp.zeros(1)}, jnp.zeros((5, 1), jnp.int32))


@pytest.mark.usefixtures("sentences")
def test_numpy_integers_are_accepted():
    x, two = normal(7, 7, 2).astype(np.float32), np.int64(2)
    layers = [
        (Conv(two, (two, two), stride=two, padding=np.int32(1)), Conv(2, (2, 2), stride=2, padding=1)),
        (ConvTranspose(2, (two, two), stride=two, padding=np.int32(1)), ConvTranspose(2, (2, 2), stride=2, padding=1)),
    ]
    for numpys, layer in layers:
        params = drawn(layer, x)
        np.testing.assert_array_equal(compiled(numpys.apply)(params, x), compiled(layer.apply)(params, x))


@pytest.mark.parametrize("layer", [Conv(2, (3, 3)), ConvTranspose(2, (3, 3)), DepthwiseConv((3, 3))])
def test_channels_first_inputs_give_a_warning_at_init(layer):
    """At init a layer accepts any number of channels, so that no shape check can detect the error."""
    x = jnp.zeros((2, 3, 8, 8))
    sentence = r"channels last.*got float32 \(2, 3, 8, 8\).*write jnp.moveaxis\(x, 1, -1\)"
    with pytest.warns(UserWarning, match=sentence) as said:
        layer.init(jax.random.key(0), x)
    assert said[0].filename == __file__
    for shape in ((2, 8, 8, 3), (2, 4, 8, 8)):
        jax.eval_shape(layer.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))


def test_padding_is_checked_when_a_layer_is_built():
    """The builder, not apply, rejects an unknown name."""
    for build in (
        lambda: Conv(8, (3, 3), padding="SAMEE"),
        lambda: DepthwiseConv((3, 3), padding=(1, 2, 3)),
        lambda: MaxPool((2, 2), padding="SAMEE"),
        lambda: AvgPool(2, padding=-1),
    ):
        with pytest.raises((TypeError, ValueError), match="expected padding to be"):
            build()


def test_same_padding_with_an_odd_total_has_the_larger_part_behind():
    """As in TensorFlow: y_i = x_i + 10 x_{i+1} with x_4 = 0; the adjoint pads the other way round."""
    x, kernel = jnp.array([1.0, 2.0, 3.0, 4.0])[:, None], jnp.array([1.0, 10.0])[:, None, None]
    np.testing.assert_allclose(conv(x, kernel, padding="same")[:, 0], [21, 32, 43, 4])
    np.testing.assert_allclose(conv_transpose(x, kernel, padding="same")[:, 0], [1, 12, 23, 34])
    strided = conv(x, jnp.ones((5, 1, 1)), stride=2, padding="same")[:, 0]  # padded by 1 before and 2 behind
    np.testing.assert_allclose(strided, [10, 9])
