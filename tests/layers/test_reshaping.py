"""Flattening, padding, resizing and pixel shuffle: PyTorch, JAX, weights written from the formula, inverses, errors."""

import itertools

import jax
import numpy as np
import pytest
from compiled import compiled

from jaxblocks import Flatten, Pad, Resize, UpSample, conv
from jaxblocks.layers import (
    PixelShuffle,
    PixelUnshuffle,
    flatten,
    fold,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
    resize,
    unfold,
    upsample,
)

# One program for each call.
flatten = compiled(flatten)
fold = compiled(fold)
pad = compiled(pad)
pixel_shuffle = compiled(pixel_shuffle)
pixel_unshuffle = compiled(pixel_unshuffle)
resize = compiled(resize)
unfold = compiled(unfold)
upsample = compiled(upsample)

IMAGES = np.random.default_rng(0).normal(size=(2, 7, 5, 3))
X = IMAGES.astype(np.float32)
SIZES = (4, 8)  # the first axis shrinks, the second grows
SMOOTH = [(m, corners, anti) for m in ("linear", "cubic") for corners in (False, True) for anti in (False, True)]


def cubic(d, a):
    """Keys' piecewise cubic kernel at the distance d."""
    d = np.abs(d)
    near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * (d**3 - 5 * d**2 + 8 * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def weights(n, m, method, align_corners, antialias):
    """The matrix (m, n) of the interpolation of n entries at m points, from its formula."""
    step = (n - 1) / (m - 1) if align_corners else n / m
    u = np.arange(m) * step if align_corners else (np.arange(m) + 0.5) * step - 0.5
    wide = max(step, 1) if antialias else 1
    kernel = (
        (lambda d: np.maximum(1 - np.abs(d), 0))
        if method == "linear"
        else lambda d: cubic(d, -0.5 if antialias else -0.75)
    )
    if antialias:  # weights outside of the input are left out
        w = kernel((np.arange(n) - u[:, None]) / wide)
        return w / w.sum(1, keepdims=True)
    w = np.zeros((m, n))  # entries outside of the input are those of the edge
    for j in range(-3, n + 3):
        w[:, min(max(j, 0), n - 1)] += kernel(j - u)
    return w


@pytest.fixture(scope="module")
def resized():
    """All smooth kinds of resize, in float64 in one program."""
    run = lambda x: [resize(x, SIZES, method=m, align_corners=c, antialias=a) for m, c, a in SMOOTH]
    with jax.enable_x64(True):
        return dict(zip(SMOOTH, compiled(run)(IMAGES), strict=True))


def test_resize_by_the_formula(resized):
    """A product of one matrix for each axis."""
    for options, y in resized.items():
        by_axis = [weights(n, m, *options) for n, m in zip(IMAGES.shape[1:3], SIZES, strict=True)]
        expected = np.einsum("ih,jw,bhwc->bijc", *by_axis, IMAGES)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12, err_msg=str(options))


def test_resize_is_that_of_torch(resized):
    """But for antialiasing with align_corners, where PyTorch takes other points than without antialiasing."""
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    x = torch.tensor(np.moveaxis(IMAGES, -1, 1).copy())
    for (method, corners, antialias), y in resized.items():
        if not (corners and antialias):
            options = dict(mode=f"bi{method}", align_corners=corners, antialias=antialias)
            theirs = torch.nn.functional.interpolate(x, SIZES, **options).numpy()
            np.testing.assert_allclose(y, np.moveaxis(theirs, 1, -1), rtol=1e-12, atol=1e-12)
    modes = {"nearest": "nearest-exact", "nearest_floor": "nearest"}
    for sizes, (method, mode) in itertools.product(((3, 10), (9, 7)), modes.items()):
        theirs = torch.nn.functional.interpolate(x, sizes, mode=mode).numpy()
        ours = resize(X, sizes, method=method)
        np.testing.assert_array_equal(ours, np.moveaxis(theirs, 1, -1).astype(np.float32))


def test_one_position():
    """One position at the input is constant; one at the output is the middle, or with align_corners the first."""
    one, many = np.float32([[3]]), np.float32([[0], [1], [5]])

    @compiled
    def run(one, many):
        of_one = [resize(one, 4, method=m, align_corners=c) for m in ("linear", "cubic") for c in (False, True)]
        first = [resize(many, 1, method=method, align_corners=True) for method in ("linear", "cubic")]
        middle = [resize(many, 1, method=method, antialias=False) for method in ("linear", "cubic")]
        return of_one, first, middle, resize(many, 1)

    of_one, first, middle, mean = run(one, many)
    np.testing.assert_array_equal(of_one, np.full((4, 4, 1), 3))
    np.testing.assert_array_equal(first, np.zeros((2, 1, 1)))
    np.testing.assert_array_equal(middle, np.ones((2, 1, 1)))
    assert mean.item() == pytest.approx((1 + 2 / 3 * 5) / (7 / 3), rel=1e-6)  # weights 2/3, 1, 2/3


def test_a_nan_affects_the_entries_that_read_it():
    with jax.debug_nans(False):
        y = resize(np.float32([[0], [1], [np.nan], [np.inf]]), 8)[:, 0]
    np.testing.assert_array_equal(np.isnan(y), [False] * 3 + [True] * 4 + [False])
    assert y[7] == np.inf


def test_upsampling_repeats_entries_or_interpolates():
    np.testing.assert_array_equal(upsample(X, (2, 3)), np.repeat(np.repeat(X, 2, 1), 3, 2))
    np.testing.assert_array_equal(upsample(X[0], 2, method="linear"), resize(X[0], 10))  # one axis
    line = upsample(np.float32([[0], [3]]), 2, method="linear", align_corners=True)
    np.testing.assert_allclose(line[:, 0], [0, 1, 2, 3], atol=1e-6)


def test_padding_against_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    cases = [
        ((2, 1), "replicate"),
        ((-2, (-1, 3)), "constant"),
        (((-3, 1), (2, -2)), "reflect"),
        (((1, -4), (2, -2)), "circular"),
    ]
    value_of = lambda mode: {"value": 7.5} if mode == "constant" else {}
    found = compiled(lambda x: [pad(x, padding, padding_mode=mode, **value_of(mode)) for padding, mode in cases])(X)
    x = torch.tensor(np.moveaxis(X, -1, 1).copy())
    for ours, (padding, mode) in zip(found, cases, strict=True):
        pairs = [one if isinstance(one, tuple) else (one, one) for one in padding]
        last_first = [entry for pair in pairs[::-1] for entry in pair]
        theirs = torch.nn.functional.pad(x, last_first, mode=mode, **value_of(mode)).numpy()
        np.testing.assert_array_equal(ours, np.moveaxis(theirs, 1, -1), err_msg=mode)


def test_upsampling_by_fractions_against_torch():
    """Sizes floor(n f), and points (i + 1/2) / f - 1/2: 7 positions to 10, 5 to 7 or to 3."""
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    modes = {"linear": "bilinear", "cubic": "bicubic", "nearest_floor": "nearest"}
    cases = [(method, factor) for method in modes for factor in ((1.5, 1.4), (1.5, 0.7))]
    found = compiled(lambda x: [upsample(x, factor, method=m, antialias=False) for m, factor in cases])(X)
    x = torch.tensor(np.moveaxis(IMAGES, -1, 1).copy())
    for ours, (method, factor) in zip(found, cases, strict=True):
        theirs = torch.nn.functional.interpolate(x, scale_factor=factor, mode=modes[method]).numpy()
        np.testing.assert_allclose(ours, np.moveaxis(theirs, 1, -1), rtol=1e-5, atol=2e-6, err_msg=method)


@pytest.mark.parametrize(
    ("window", "options"),
    [((2, 3), {"stride": (2, 1), "padding": (1, 2)}), ((2, 2), {"stride": 2, "dilation": (3, 2)})],
    ids=str,
)
def test_windows_as_features_against_torch(window, options):
    """Their features are the channels first; a dense layer on the entries of windows is a convolution."""
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    y = unfold(X, window, **options)
    tensor = torch.tensor(np.moveaxis(X, -1, 1).copy())
    theirs = torch.nn.functional.unfold(tensor, window, **options)
    area = window[0] * window[1]
    same = y.reshape(2, -1, area, 3).swapaxes(-1, -2).reshape(2, -1, 3 * area)
    np.testing.assert_array_equal(same.swapaxes(1, 2), theirs)
    kernel = np.random.default_rng(1).normal(size=(*window, 3, 4)).astype(np.float32)
    for own in (options, {**options, "padding": ((1, 0), "causal")}):
        found = unfold(X, window, **own) @ kernel.reshape(-1, 4)
        np.testing.assert_allclose(found, compiled(conv)(X, kernel, **own), rtol=1e-4, atol=1e-5)
    back = fold(y, (7, 5), window, **options)
    theirs = torch.nn.functional.fold(theirs, (7, 5), window, **options).numpy()
    np.testing.assert_allclose(back, np.moveaxis(theirs, 1, -1), rtol=1e-6)


def test_pixel_shuffle_by_the_formula_and_its_inverse():
    """y[2h + i, 3w + j, c] = x[h, w, (2c + i) 3 + j], on two axes; PyTorch has one factor."""
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 12)).astype(np.float32)
    y = pixel_shuffle(x, (2, 3))
    assert y.shape == (2, 6, 12, 2)
    for h, w, c, i, j in np.ndindex(3, 4, 2, 2, 3):
        np.testing.assert_array_equal(y[:, 2 * h + i, 3 * w + j, c], x[:, h, w, (2 * c + i) * 3 + j])
    np.testing.assert_array_equal(pixel_unshuffle(y, (2, 3)), x)
    sequence = pixel_shuffle(x[0, 0], 3)
    np.testing.assert_array_equal(sequence[:, 1], x[0, 0, :, 3:6].ravel())  # channel 1 of each block
    torch = pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    theirs = torch.nn.functional.pixel_shuffle(torch.tensor(np.moveaxis(x, -1, 1).copy()), 2).numpy()
    np.testing.assert_array_equal(pixel_shuffle(x, (2, 2)), np.moveaxis(theirs, 1, -1))


def test_flattening_keeps_the_batch_also_an_empty_one():
    np.testing.assert_array_equal(flatten(X, 2), np.reshape(X, (2, 105)))
    assert flatten(X, 1).shape == (2, 7, 15)
    assert flatten(X[:0], 2).shape == (0, 105)
    assert Flatten(2).apply((), X[0]).shape == (105,)


def test_layers_are_their_functions():
    x = X[:, :6, :4].repeat(4, -1)
    pairs = (
        (
            Resize((3, 6), method="cubic", align_corners=True, antialias=False),
            lambda x: resize(x, (3, 6), method="cubic", align_corners=True, antialias=False),
        ),
        (
            UpSample((1, 2), method="linear", align_corners=True),
            lambda x: upsample(x, (1, 2), method="linear", align_corners=True),
        ),
        (Pad((1, 2), padding_mode="circular"), lambda x: pad(x, (1, 2), padding_mode="circular")),
        (Pad((1,), value=2.0), lambda x: pad(x, (1,), value=2.0)),
        (PixelShuffle((2, 2)), lambda x: pixel_shuffle(x, (2, 2))),
        (PixelUnshuffle((2, 2)), lambda x: pixel_unshuffle(x, (2, 2))),
    )
    assert [layer.init(jax.random.key(0), x) for layer, _ in pairs] == 6 * [()]
    for found, expected in compiled(lambda x: [(layer.apply((), x), function(x)) for layer, function in pairs])(x):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("call", "words", "repaired"),
    [
        (
            lambda x: resize(x, (2, 2), method="nearest", align_corners=True),
            "resize expected align_corners=False for method='nearest', got align_corners=True; choose another method",
            lambda x: resize(x, (2, 2), align_corners=True),
        ),
        (
            lambda x: resize(x, (2, 2), method="bilinear"),
            "resize expected method to be 'nearest' or 'nearest_floor' or 'linear' or 'cubic', got 'bilinear'",
            lambda x: resize(x, (2, 2), method="linear"),
        ),
        (
            lambda x: resize(x[:, :0], (2, 2)),
            r"resize expected at least one position, got float32 \(2, 0, 5, 3\); pass a longer",
            lambda x: resize(x[:, :1], (2, 2)),
        ),
        (
            lambda x: upsample(x, 0),
            "upsample expected factor to be a number > 0 and .* or a sequence",
            lambda x: upsample(x, (1, 1)),
        ),
        (
            lambda x: upsample(x, (0.1, 1)),
            r"upsample expected a factor that leaves at least one position, got factor=\(0.1, 1\) for 7 positions",
            lambda x: upsample(x, (0.2, 1)),
        ),
        (
            lambda x: pad(x, (-4, 0)),
            r"pad expected padding that leaves positions of x \(2, 7, 5, 3\), got padding=\(-4, 0\); crop less",
            lambda x: pad(x, (-3, 0)),
        ),
        (
            lambda x: fold(unfold(x, (2, 2)), (7, 6), (2, 2)),
            r"fold expected x of shape \(2, 6, 5, 12\), as of unfold for size \(7, 6\), got",
            lambda x: fold(unfold(x, (2, 2)), (7, 5), (2, 2)),
        ),
        (
            lambda x: fold(x, (7, 5), (2, 2)),
            "fold expected a multiple of 4 features, the entries of a window",
            lambda x: fold(unfold(x, (2, 2)), (7, 5), (2, 2)),
        ),
        (
            lambda x: fold(unfold(x, (2, 2)), (7, 5), (2,)),
            r"fold expected as many axes in size as in window_shape \(2,\), got \(7, 5\)",
            lambda x: fold(unfold(x, (2, 2)), (7, 5), (2, 2)),
        ),
        (
            lambda x: pixel_shuffle(x, (2,)),
            r"pixel_shuffle expected a multiple of 2 channels, the product of factor = \(2,\), got",
            lambda x: pixel_shuffle(x, (3,)),
        ),
        (
            lambda x: pixel_unshuffle(x, (2,)),
            r"pixel_unshuffle expected sizes that are multiples of factor = \(2,\), got .*; pad or crop it",
            lambda x: pixel_unshuffle(pad(x, ((0, 1),)), (2,)),
        ),
        (
            lambda x: pad(x, ()),
            r"pad expected padding for each of one to three spatial axes, got \(\); for two",
            lambda x: pad(x, (1, 1)),
        ),
        (
            lambda x: pad(x[:, :, :0], (1,), padding_mode="reflect"),
            r"pad expected an entry to repeat for padding_mode='reflect'",
            lambda x: pad(x[:, :, :0], (1,)),
        ),
        (
            lambda x: flatten(x[0, 0, 0], 1),
            r"flatten expected x \(..., \*spatial, channels\) with at least 2 axes",
            lambda x: flatten(x[0, 0], 1),
        ),
    ],
)
def test_errors_and_their_repairs(call, words, repaired):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(call, X)
    jax.eval_shape(repaired, X)


@pytest.mark.parametrize("build", [Pad, Resize, UpSample, PixelShuffle, PixelUnshuffle])
def test_an_integer_for_a_batch_of_images_is_rejected(sentences, build):
    """It stands for one axis, as in pools; a batch of images has two."""
    layer = build(1)
    words = rf"{build.__name__} expected (factor|padding|size) with one integer .*; write \(1, 1\), or \(1,\) if"
    for call in (lambda: layer.init(jax.random.key(0), X), lambda: layer.apply((), X)):
        with pytest.raises(ValueError, match=words):
            call()
    for repaired in (build((1, 1)), build((1,))):
        jax.eval_shape(repaired.apply, repaired.init(jax.random.key(0), X), X)
