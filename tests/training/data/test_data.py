"""Splits, minibatches and augmentation: every row is used once, and the key determines every draw."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import one_hot
from jaxblocks.core.keys import child_key
from jaxblocks.training import (
    gaussian_noise,
    minibatches,
    mixup,
    prefetch,
    random_crop,
    random_flip,
    random_shift,
    train_val_test_split,
)
from jaxblocks.training.data.batches import batch_rows

KEY = jax.random.key(0)


def rows(n=20):
    x = np.arange(2.0 * n, dtype=np.float32).reshape(n, 2)
    return x, jnp.arange(n)


def indices(batches):
    return [np.asarray(y).tolist() for _, y in batches]


def test_split_uses_every_row_once_and_keeps_examples_aligned():
    parts = train_val_test_split(KEY, rows())
    assert [len(y) for _, y in parts] == [14, 3, 3]
    assert sorted(itertools.chain(*indices(parts))) == list(range(20))
    assert indices(parts) != [list(range(14)), list(range(14, 17)), list(range(17, 20))]
    for x, y in parts:
        np.testing.assert_array_equal(x[:, 0], 2 * np.asarray(y))
        assert isinstance(x, np.ndarray) and isinstance(y, jax.Array)
    assert indices(train_val_test_split(KEY, rows())) == indices(parts)
    assert indices(train_val_test_split(jax.random.key(1), rows())) != indices(parts)


def test_split_sizes_follow_the_fractions():
    sizes = [len(y) for _, y in train_val_test_split(KEY, rows(11), fractions=(0.5, 0.2, 0.3))]
    assert sizes == [6, 2, 3]
    sizes = [len(y) for _, y in train_val_test_split(KEY, rows(10), fractions=(0.25, 0.25, 0.5))]
    assert sizes == [2, 3, 5]  # the sum of two fractions is rounded, not each of them
    sizes = [len(y) for _, y in train_val_test_split(KEY, rows(10), fractions=(0.8, 0, 0.2))]
    assert sizes == [8, 0, 2]


@pytest.mark.parametrize(
    ("arrays", "fractions", "sentence"),
    [
        (rows(), (0.7, 0.2, 0.2), "with sum 1.1; pass"),
        (rows(), (0.7, 0.3), "three fractions"),
        (rows(), (1.2, -0.1, -0.1), "fractions >= 0"),
        (rows(3), (0.7, 0.15, 0.15), r"got parts of \(2, 1, 0\) for 3 rows in fractions"),
        (rows(4), (0.7, 0.05, 0.25), r"got parts of \(3, 0, 1\) for 4 rows in fractions"),
        ((np.zeros((4, 2)), np.zeros(5)), (0.7, 0.15, 0.15), r"the same number of rows .*data\[1\] float64 \(5,\)"),
        ((np.zeros((0, 2)), np.zeros(0)), (0.7, 0.15, 0.15), "at least one row in data, got none"),
        ((), (0.7, 0.15, 0.15), "expected arrays, got an empty tuple"),
    ],
)
def test_split_rejects_wrong_arguments(arrays, fractions, sentence):
    with pytest.raises(ValueError, match=sentence):
        train_val_test_split(KEY, arrays, fractions=fractions)


def test_a_split_has_a_number_for_each_part(sentences):
    for fractions in (0.7, (0.8, None, 0.2), (0.8, object(), 0.2), ([0.8], [0.1], [0.1])):
        with pytest.raises(TypeError, match="^train_val_test_split expected three fractions, got"):
            train_val_test_split(KEY, rows(), fractions=fractions)


def test_an_epoch_is_a_permutation_without_the_last_partial_batch():
    batches = list(minibatches(KEY, rows(), 6))
    assert [len(y) for _, y in batches] == [6, 6, 6]
    assert len(set(itertools.chain(*indices(batches)))) == 18
    for x, y in batches:
        np.testing.assert_array_equal(x[:, 0], 2 * np.asarray(y))
    with_rest = list(minibatches(KEY, rows(), 6, last_batch="keep"))
    assert [len(y) for _, y in with_rest] == [6, 6, 6, 2]
    assert sorted(itertools.chain(*indices(with_rest))) == list(range(20))
    assert indices(with_rest)[:3] == indices(batches)


def test_the_key_determines_the_batches_and_each_epoch_has_a_new_order():
    two = indices(minibatches(KEY, rows(), 5, epochs=2))
    assert len(two) == 8 and two[:4] != two[4:]
    assert two == indices(minibatches(KEY, rows(), 5, epochs=2))
    assert two != indices(minibatches(jax.random.key(1), rows(), 5, epochs=2))
    assert two == indices(itertools.islice(minibatches(KEY, rows(), 5, epochs=None), 8))


@pytest.mark.parametrize("start", [0, 3, 4, 7, 8])
def test_start_resumes_the_sequence_of_batches(start):
    whole = indices(minibatches(KEY, rows(), 5, epochs=2))
    assert indices(minibatches(KEY, rows(), 5, epochs=2, start=start)) == whole[start:]


def test_numpy_and_jax_arrays_agree_and_pytrees_keep_their_structure():
    x, y = rows()
    on_host = indices(minibatches(KEY, (x, np.asarray(y)), 4))
    assert on_host == indices(minibatches(KEY, (x, y), 4))
    batch = next(minibatches(KEY, {"image": x, "more": (y,)}, 4))
    assert batch["image"].shape == (4, 2) and batch["more"][0].dtype == y.dtype


@pytest.mark.parametrize(
    ("arrays", "batch_size", "error", "sentence"),
    [
        (rows(), 21, ValueError, "at most 20, the number of rows, got 21; pass batch_size=20"),
        (rows(), 0, ValueError, "an integer >= 1, got 0"),
        (rows(), 2.0, ValueError, "an integer >= 1, got 2.0"),
        ((np.zeros((0, 2)),), 1, ValueError, "at least one row in data, got none"),
        ((np.zeros(3), np.zeros(2)), 1, ValueError, "the same number of rows"),
        ([np.zeros(9)] * 9 + [np.zeros(2)], 1, ValueError, r"got data\[0\] .*\(9,\), data\[9\] .*\(2,\), and others;"),
        ((np.zeros(3), [1, 2, 3]), 1, TypeError, r"data\[1\]\[0\] to have one row per example, got 1; convert"),
        ((jnp.zeros(()),), 1, TypeError, r"data\[0\] to have one row per example, got float32 \(\)"),
    ],
)
def test_minibatches_rejects_wrong_arguments_at_the_call(arrays, batch_size, error, sentence, sentences):
    with pytest.raises(error, match=sentence):
        minibatches(KEY, arrays, batch_size)


def test_tensors_of_pytorch_are_rejected(sentences):
    torch = pytest.importorskip("torch")
    data = torch.ones(4, 3), torch.ones(4)
    with pytest.raises(
        TypeError, match=r"^minibatches expected arrays\[0\] to be an array of JAX or NumPy, got a Tensor of"
    ):
        minibatches(jax.random.key(0), data, 2)
    assert len(list(minibatches(jax.random.key(0), tuple(each.numpy() for each in data), 2))) == 2


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"epochs": 1.5}, "minibatches expected epochs to be an integer >= 0 or None, got 1.5"),
        ({"epochs": True}, "epochs to be an integer >= 0 or None, got True"),
        ({"start": -1}, "start to be an integer >= 0 or an array, got -1"),
        ({"start": 0.0}, "start to be an integer >= 0 or an array, got 0.0"),
    ],
)
def test_minibatches_rejects_counts_that_are_not_integers(option, sentence, sentences):
    with pytest.raises((ValueError, TypeError), match=sentence):
        minibatches(KEY, rows(), 5, **option)


def test_integers_of_every_kind_are_accepted(sentences):
    a = indices(minibatches(KEY, rows(), np.int64(5), epochs=np.int32(2), start=jnp.int32(3)))
    assert a == indices(minibatches(KEY, rows(), 5, epochs=2, start=3))


IMAGES = jnp.ones((2, 4, 4, 1))


def test_invalid_keys_are_rejected():
    calls = {
        "train_val_test_split": lambda key: train_val_test_split(key, rows()),
        "minibatches": lambda key: minibatches(key, rows(), 5),
        "random_shift": lambda key: random_shift(key, IMAGES, pixels=1),
        "random_flip": lambda key: random_flip(key, IMAGES),
        "gaussian_noise": lambda key: gaussian_noise(key, IMAGES, scale=0.1),
    }
    for name, call in calls.items():
        for key, got in ((0, "0"), (None, "None"), (np.zeros(2, np.uint32), r"uint32 \(2,\)")):
            with pytest.raises(
                TypeError, match=rf"^{name} expected key to be a key, got {got}; pass jax.random.key\(0\)"
            ):
                call(key)
        call(jax.random.key(0))  # as the error advises


# ---- augmentation --------------------------------------------------------------------------


def numbered_images(batch=6):
    return jnp.arange(1.0, batch * 5 * 4 * 2 + 1).reshape(batch, 5, 4, 2)


def test_shifts_are_in_range_and_differ_between_examples():
    images = numbered_images(40)
    shifted = np.asarray(jax.jit(random_shift, static_argnames="pixels")(jax.random.key(0), images, pixels=1))
    padded = np.pad(np.asarray(images), ((0, 0), (1, 1), (1, 1), (0, 0)))
    seen = set()
    for i, image in enumerate(shifted):
        corners = [
            (r, c)
            for r, c in itertools.product(range(3), range(3))
            if np.array_equal(padded[i, r : r + 5, c : c + 4], image)
        ]
        assert len(corners) == 1
        seen.update(corners)
    assert len(seen) == 9
    np.testing.assert_array_equal(random_shift(jax.random.key(0), images, pixels=1), shifted)


def test_flips_mirror_the_width_of_about_half_of_the_examples():
    images = numbered_images(200)
    flipped = np.asarray(jax.jit(random_flip)(jax.random.key(0), images))
    mirrored = (flipped == images[:, :, ::-1]).all((1, 2, 3))
    kept = (flipped == images).all((1, 2, 3))
    assert (mirrored ^ kept).all()
    assert 75 <= mirrored.sum() <= 125  # 100 +- 3.5 standard deviations
    np.testing.assert_array_equal(random_flip(jax.random.key(0), images), flipped)
    assert not np.array_equal(random_flip(jax.random.key(1), images), flipped)


def test_crops_are_rectangles_at_all_positions():
    images = numbered_images(60)
    cropped = np.asarray(jax.jit(random_crop, static_argnames="size")(jax.random.key(0), images, size=(3, 3)))
    first = cropped[:, 0, 0, 0] - np.arange(60) * 40 - 1  # the number of the pixel in the upper left corner
    rows, columns = np.divmod(first // 2, 4)
    assert set(zip(rows, columns, strict=True)) == set(itertools.product(range(3), range(2)))
    for image, crop, r, c in zip(np.asarray(images), cropped, rows.astype(int), columns.astype(int), strict=True):
        np.testing.assert_array_equal(crop, image[r : r + 3, c : c + 3])
    np.testing.assert_array_equal(random_crop(jax.random.key(0), images, size=(5, 4)), images)
    with pytest.raises(
        ValueError, match=r"random_crop expected size at most that of the images, \(5, 4\), got \(6, 4\); pad"
    ):
        random_crop(jax.random.key(0), images, size=(6, 4))
    random_crop(jax.random.key(0), jnp.pad(images, ((0, 0), (1, 1), (0, 0), (0, 0))), size=(6, 4))


def test_mixup_mixes_inputs_and_targets_by_one_share():
    """Shares are Beta(alpha, alpha), and the partners a permutation; mapped over keys, in one program."""
    labels, alpha = jnp.arange(4), 0.5
    x = jnp.array([[1.0], [10.0], [100.0], [1000.0]])

    def run(key):
        mixed, targets = mixup(key, x, one_hot(labels, 4), alpha=alpha)
        share = jax.random.beta(jax.random.split(jax.random.clone(key))[0], alpha, alpha, (4,))
        return mixed, targets, share

    mixed, targets, share = map(np.asarray, jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 500)))
    np.testing.assert_allclose(mixed[..., 0], targets @ np.asarray(x)[:, 0], rtol=1e-5)
    np.testing.assert_allclose(targets.sum(2), 1, rtol=1e-5)
    assert ((targets > 0).sum(1) <= 2).all()  # each example has one partner, and is the partner of one
    own = np.stack([targets[:, i, i] for i in range(4)], 1)
    by_other = own < 1 - 1e-6  # the partner is another example
    np.testing.assert_allclose(own[by_other], share[by_other], rtol=1e-5)
    assert (share < 0.01).mean() > 0.05 and abs(share.mean() - 0.5) < 0.05
    assert abs(share.var() - 1 / (4 * (2 * alpha + 1))) < 0.02
    half = jax.eval_shape(lambda x: mixup(jax.random.key(0), x.astype(jnp.bfloat16), x)[0], x)
    assert half.dtype == jnp.bfloat16
    with pytest.raises(
        TypeError, match=r"mixup expected targets that are floating-point, .* for labels pass one_hot\("
    ):
        mixup(jax.random.key(0), x, labels)


def test_noise_has_the_given_scale_and_is_drawn_for_every_entry():
    noise = np.asarray(gaussian_noise(jax.random.key(0), jnp.ones((400, 50)), scale=0.3)) - 1
    assert abs(noise.mean()) < 4 * 0.3 / np.sqrt(noise.size)
    assert abs(noise.std() - 0.3) < 4 * 0.3 / np.sqrt(2 * noise.size)
    assert len(np.unique(noise)) > 0.99 * noise.size
    for scale in (0.3, jnp.float32(0.3)):
        assert gaussian_noise(jax.random.key(2), jnp.ones(3, jnp.bfloat16), scale=scale).dtype == jnp.bfloat16
    with pytest.raises(TypeError, match="x to be a floating-point array"):
        gaussian_noise(jax.random.key(3), jnp.arange(3), scale=0.3)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.bfloat16])
def test_images_keep_their_dtype(dtype):
    images = jnp.ones((2, 4, 4, 1), dtype)
    assert random_shift(jax.random.key(0), images, pixels=2).dtype == dtype
    assert random_flip(jax.random.key(1), images).dtype == dtype


def test_noise_augmentation_equals_ridge_regression():
    """E over noise of ||(X + E) w - y||^2 = ||X w - y||^2 + N sigma^2 ||w||^2, so the minimizers agree."""
    with jax.enable_x64(True):
        draw = np.random.default_rng(0)
        n, d, sigma, copies = 50, 3, 0.5, 4000
        x, y = draw.normal(size=(n, d)), draw.normal(size=n)
        ridge = np.linalg.solve(x.T @ x + n * sigma**2 * np.eye(d), x.T @ y)
        keys = jax.random.split(jax.random.key(0), copies)
        noisy = jax.vmap(functools.partial(gaussian_noise, scale=sigma), (0, None))(keys, jnp.asarray(x))
        noisy = np.asarray(noisy).reshape(-1, d)
        trained = np.linalg.lstsq(noisy, np.tile(y, copies), rcond=None)[0]
        plain = np.linalg.lstsq(x, y, rcond=None)[0]
        assert np.abs(trained - ridge).max() < 2e-3 < 2e-2 < np.abs(plain - ridge).max()


def test_prefetched_batches_are_equal_on_the_device_and_fetched_ahead(sentences):
    """At most ``ahead`` batches besides the current one are fetched; a resumed run fetches unused batches again."""
    taken = []

    def counted():
        for batch in minibatches(jax.random.key(0), rows(), 4, epochs=2):
            taken.append(1)
            yield batch

    plain, fetched = indices(minibatches(jax.random.key(0), rows(), 4, epochs=2)), []
    for number, (x, y) in enumerate(prefetch(counted(), ahead=3), 1):
        assert isinstance(x, jax.Array) and len(taken) == min(number + 3, 10)
        np.testing.assert_array_equal(x[:, 0], 2 * np.asarray(y))
        fetched.append(y.tolist())
    assert fetched == plain
    rest = prefetch(minibatches(jax.random.key(0), rows(), 4, epochs=2, start=6))
    assert indices(rest) == plain[6:]
    assert indices(prefetch(iter([(0, jnp.ones(1))]), ahead=5)) == [[1.0]]
    on = jax.devices()[3]
    assert all(y.devices() == {on} for _, y in prefetch(counted(), device=on))
    with pytest.raises(ValueError, match="prefetch expected ahead to be an integer >= 1, got 0"):
        prefetch([], ahead=0)
    with pytest.raises(TypeError, match="an iterable of batches, got .*counted.*; call the function: prefetch"):
        prefetch(counted)
    with pytest.raises(TypeError, match="got 3; pass those of minibatches"):
        prefetch(3)


def test_orders_are_sorted_bits_of_philox():
    """Each order is a permutation that another key, or another epoch, changes; the bits are those of NumPy."""
    numbers = lambda seed, rows, start=0: next(batch_rows(jax.random.key(seed), rows, rows, start=start)).tolist()
    for rows in (1, 2, 3, 1000):
        assert sorted(numbers(0, rows)) == list(range(rows))
    orders = [numbers(0, 1000), numbers(1, 1000), numbers(0, 1000, start=1)]
    assert all(a != b for a, b in itertools.combinations(orders, 2)) and numbers(0, 1000) == orders[0]
    seed = np.asarray(jax.random.key_data(child_key(jax.random.key(0), "minibatches")))
    bits = np.random.Philox(key=np.tile(seed, 2).view(np.uint64), counter=[0, 0, 0, 1]).random_raw(1000)
    assert orders[2] == np.argsort(bits).tolist()


def test_orders_are_uniform():
    """Each of the 24 orders of four rows in 2,400 epochs: chi squared with 23 degrees of freedom is below 49.7."""
    batches = batch_rows(jax.random.key(0), 4, 4, start=0, epochs=2400)
    counts = collections.Counter(tuple(order) for order in batches)
    assert len(counts) == 24 and sum((n - 100) ** 2 / 100 for n in counts.values()) < 49.7
