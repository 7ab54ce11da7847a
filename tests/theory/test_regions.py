"""Linear regions of nets: counts against extremal constructions, brute force and bounds; polygons against the net."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import (
    MLP,
    BatchNorm,
    Conv,
    Dense,
    LayerNorm,
    Maxout,
    MaxPool,
    Repeat,
    Residual,
    Serial,
    leaky_relu,
    relu,
    tanh,
)
from jaxblocks.theory.depth import sawtooth_network
from jaxblocks.theory.linear_regions import (
    arrangement_regions,
    folding_network,
    region_lower_bound,
    region_upper_bound,
    regions,
    regions_along,
)

UNIT = ((0, 1), (0, 1))


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def random_params(net, shape, seed=0, spread=0.3):
    """Params of the shapes of init with normal biases, so that nothing is degenerate."""
    rng = np.random.default_rng(seed)
    made = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float64))
    draw = lambda p: (
        rng.normal(size=p.shape) * (spread if len(p.shape) == 1 else 1 / math.sqrt(math.prod(p.shape[:-1])))
    )
    return jax.tree.map(draw, made)


def patterns_of(params, x):
    """The active units of a plain ReLU net, computed in NumPy."""
    signs = []
    for p in params[:-1:2]:
        z = x @ p["kernel"] + p["bias"]
        signs.append(z > 0)
        x = np.maximum(z, 0)
    return np.concatenate(signs, -1)


def grid(n, low=-1.0, high=1.0):
    ticks = low + (high - low) * (np.arange(n) + 0.5) / n
    return np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2)


# ---- bounds -------------------------------------------------------------------------------------


def test_values_of_the_bounds(sentences):
    """Zaslavsky's count is 211 and 56, the lower bound 1400 and 44, the upper bound 3136 and 121."""
    assert [arrangement_regions(n, 2) for n in (0, 1, 2, 10, 20)] == [1, 2, 4, 56, 211]
    assert [arrangement_regions(3, d) for d in (0, 1, 3, 9)] == [1, 4, 8, 8]
    assert region_lower_bound((10, 10), 2) == 1400
    assert region_lower_bound((4, 4), 2) == 44
    assert region_upper_bound((10, 10), 2) == 3136 == 56**2
    assert region_upper_bound((4, 4), 2) == 121
    printed = math.comb(10, 2) ** 2 * 10**2  # the lecture has a binomial coefficient instead of n / d
    assert printed == 202500 > region_upper_bound((10, 10), 2)
    assert region_lower_bound((6, 6, 5), 1) == 6 * 6 * 6
    widths = [np.int32(40)] * 20  # integers of NumPy overflow, which are taken too
    assert region_lower_bound(widths, 3) == (40 // 3) ** (3 * 19) * arrangement_regions(40, 3)
    assert region_upper_bound(widths, 3) == arrangement_regions(40, 3) ** 20
    assert region_upper_bound((2,) * 2000, 1) == 3**2000  # more layers than calls that Python nests


def test_upper_bound_equals_the_sum_over_its_index_set():
    """For narrow layers the bound is sharper than the product over layers."""
    for widths, d in [((3, 2), 2), ((1, 4), 2), ((2, 3, 3), 3), ((4, 1, 5), 2)]:
        total = 0
        for j in itertools.product(*(range(n + 1) for n in widths)):
            room = [
                min(d, n, *(m - i for m, i in zip(widths[:k], j[:k], strict=True))) if k else min(d, n)
                for k, n in enumerate(widths)
            ]
            if all(a <= b for a, b in zip(j, room, strict=True)):
                total += math.prod(math.comb(n, a) for n, a in zip(widths, j, strict=True))
        assert region_upper_bound(widths, d) == total <= math.prod(arrangement_regions(n, d) for n in widths)
    assert region_upper_bound((1, 4), 2) < 2 * 11


def test_bounds_reject_invalid_widths(sentences):
    with pytest.raises(
        ValueError, match="at least as many units as there are inputs, 3, got a layer of 2; take a smaller d"
    ):
        region_lower_bound((4, 2), 3)
    assert region_lower_bound((4, 2), 2) == 4 * 4
    with pytest.raises(ValueError, match=r"expected the widths of the hidden layers, got 10; .* such as \(10, 10\)"):
        region_upper_bound(10, 2)
    with pytest.raises(ValueError, match="expected every width to be an integer >= 1, got 0"):
        region_upper_bound((3, 0), 2)
    with pytest.raises(ValueError, match="expected inputs to be 1 or 2, got 3"):
        folding_network((6, 6), inputs=3)


# ---- extremal constructions ---------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(10, 10), (5, 7, 6), (4, 4, 4, 3)])
def test_folding_attains_the_lower_bound(widths):
    """25 copies of 56 cells for (10, 10); unused units of odd widths add no cells."""
    net, params = folding_network(widths)
    found = regions(net, params, box=UNIT)
    assert found.linear_count == found.activation_count == len(found) == region_lower_bound(widths, 2)
    assert len(found) <= region_upper_bound(widths, 2)
    np.testing.assert_allclose(found.areas.sum(), 1, rtol=1e-13)


def test_folding_of_a_line_attains_the_lower_bound():
    for widths in [(7,), (4, 4), (5, 3, 6), (2, 2, 2)]:
        net, params = folding_network(widths, inputs=1)
        found = regions_along(net, params, [0.0], [1.0])
        assert found.linear_count == found.activation_count == region_lower_bound(widths, 1)


@pytest.mark.parametrize("levels", [1, 10])
def test_sawtooth_has_two_to_the_levels_pieces(levels):
    net, params = sawtooth_network(levels)
    found = regions_along(net, params, [-2.0], [2.0])
    assert found.linear_count == 2**levels
    np.testing.assert_allclose(found.kinks, np.arange(1, 2**levels) / 2**levels, atol=1e-14)


# ---- shallow nets: arrangements of lines --------------------------------------------------------


@pytest.mark.parametrize(("n", "cells"), [(20, 211)])
def test_random_lines_attain_zaslavskys_count(n, cells):
    net = MLP(n, 1)
    params = random_params(net, (2,), seed=n)
    found = regions(net, params, box=((-1e4, 1e4), (-1e4, 1e4)))
    assert found.linear_count == found.activation_count == found.bound == cells


def test_regions_of_a_shallow_net_by_lines_and_crossings():
    """A box has 1 + (lines that cross it) + (intersections inside) regions; 150 units."""
    net = MLP(150, 1)
    params = random_params(net, (2,), spread=0.5)
    w, b = params[0]["kernel"], params[0]["bias"]
    lines = np.abs(w).sum(0) > np.abs(b)
    i, j = np.triu_indices(150, 1)
    crossings = np.linalg.solve(np.stack([w[:, i].T, w[:, j].T], 1), -np.stack([b[i], b[j]], 1)[..., None])[..., 0]
    found = regions(net, params)
    assert len(found) == 1 + lines.sum() + (abs(crossings) < 1).all(-1).sum() > 3_500


# ---- deep nets ----------------------------------------------------------------------------------


def test_activation_patterns_agree_with_dense_sampling():
    """Sampling finds no other patterns, and the patterns of all large polygons; areas sum to that of the box."""
    net = MLP(12, 10, 1)
    params = random_params(net, (2,), seed=3)
    found = regions(net, params)
    ours = {tuple(row) for row in found.patterns}
    assert len(ours) == len(found) <= region_upper_bound((12, 10), 2) <= found.bound
    met = {tuple(row) for row in patterns_of(params, grid(400))}
    assert met <= ours
    large = {tuple(row) for row in found.patterns[found.areas > 0.01]}
    assert large <= met
    np.testing.assert_array_equal(patterns_of(params, found.centers), found.patterns)
    np.testing.assert_allclose(found.areas.sum(), 4, rtol=1e-13)
    assert (found.areas > 0).all()


def test_regions_of_a_small_net_by_linear_programs():
    """One linear program for each pattern: its polygon is nonempty if and only if `regions` finds the pattern."""
    from scipy.optimize import linprog

    net = MLP(4, 3, 1)
    params = random_params(net, (2,), seed=5)
    (w1, b1), (w2, b2) = ((p["kernel"], p["bias"]) for p in params[:4:2])
    expected = set()
    for pattern in itertools.product((0, 1), repeat=7):
        first, second = np.array(pattern[:4]), np.array(pattern[4:])
        a, c = (w1 * first) @ w2, (b1 * first) @ w2 + b2
        rows, constants = np.concatenate([w1, a], 1), np.concatenate([b1, c])
        sign = 2 * np.concatenate([first, second]) - 1  # maximize r subject to sign (x rows + constants) >= r
        length = np.linalg.norm(rows, axis=0)
        matrix = np.column_stack([-(sign * rows).T, length])
        best = linprog([0, 0, -1], matrix, sign * constants, bounds=[(-1, 1), (-1, 1), (None, 1)])
        if best.x is not None and best.x[2] > 1e-9:
            expected.add(tuple(map(bool, pattern)))
    assert {tuple(map(bool, row)) for row in regions(net, params).patterns} == expected


NETS = {
    "plain": (MLP(20, 20, 1), (2,)),
    "residual": (Serial(Dense(6), Residual(relu, Dense(6)), Residual(leaky_relu, Dense(6)), Dense(2)), (2,)),
    "scanned": (Serial(Dense(6), Repeat(Residual(Dense(6), relu), 3), Dense(1)), (2,)),
    "maxout": (Serial(Dense(8), Maxout(4, pieces=3), Dense(3), lambda x: jnp.clip(x, -0.5, 0.5)), (2,)),
    "convolution": (
        Serial(Conv(2, (3, 3)), MaxPool((2, 2)), relu, lambda x: x.reshape(*x.shape[:-3], -1), Dense(3), jnp.abs),
        (6, 6, 1),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_regions_agree_with_the_net_and_with_segments(name):
    """Affine maps give the values of the net; a segment crosses as many polygons as `regions_along` finds pieces."""
    net, shape = NETS[name]
    params = random_params(net, shape, seed=1)
    rng = np.random.default_rng(2)
    slice_of = {} if shape == (2,) else {"through": rng.normal(size=(3, *shape))}
    found = regions(net, params, **slice_of)
    values = np.asarray(jax.jit(net.apply)(params, jnp.asarray(found.inputs_at(found.centers))))
    np.testing.assert_allclose(
        found.offsets + np.einsum("n...d,nd->n...", found.slopes, found.centers), values, atol=1e-13
    )
    np.testing.assert_allclose(found.areas.sum(), np.prod(np.ptp(found.box, axis=1)), rtol=1e-12)
    assert len(np.unique(found.patterns, axis=0)) == len(found) > 5

    # Each inner edge belongs to two polygons: the sum of perimeters counts it twice, the boundary of the box once.
    perimeters = sum(np.linalg.norm(p - np.roll(p, -1, 0), axis=1).sum() for p in found.polygons)
    inner = np.linalg.norm(found.edges[:, 0] - found.edges[:, 1], axis=1).sum()
    np.testing.assert_allclose(perimeters - 2 * inner, 2 * np.ptp(found.box, axis=1).sum(), rtol=1e-10)

    for _ in range(2):
        start, stop = rng.uniform(found.box[0][0], found.box[0][1], (2, 2))
        line = regions_along(net, params, *found.inputs_at([start, stop]))
        crossed = polygons_on_segment(found, start, stop)
        assert line.activation_count == len(crossed)
        assert line.linear_count == 1 + np.count_nonzero(np.diff(found.linear_region[crossed]))


def polygons_on_segment(found, start, stop):
    """The polygons that a segment crosses, in order; each polygon clips the segment by the half planes of its edges."""
    met = []
    for i, polygon in enumerate(found.polygons):
        along = np.roll(polygon, -1, 0) - polygon
        inside = lambda x, a=along, p=polygon: a[:, 0] * (x - p)[:, 1] - a[:, 1] * (x - p)[:, 0]
        a, b = inside(start), inside(stop)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = a / (a - b)
        low = max([0.0, *t[(a < 0) & (b > 0)]])
        high = min([1.0, *t[(a > 0) & (b < 0)]])
        if not ((a < 0) & (b < 0)).any() and high - low > 1e-12:
            met.append((low, i))
    return [i for _, i in sorted(met)]


# ---- degenerate cases ---------------------------------------------------------------------------


@pytest.mark.parametrize("center", [(0, 0), (1 / 3, 0.1), (-1, 0.3)])
def test_lines_through_one_point(center):
    """n lines through a point make 2n cells, without cells from rounding; through a point of the border n + 1."""
    angles = np.pi * np.arange(12) / 12 + 0.1
    w, c = jnp.asarray([np.cos(angles), np.sin(angles)]), jnp.asarray(center, jnp.float64)
    found = regions(lambda x: jnp.sum(relu((x - c) @ w)))
    assert len(found) == found.linear_count == (24 if center[0] > -1 else 13)


def test_duplicate_and_dead_units_add_no_regions():
    w = jnp.asarray([[1.0, 2.0, -0.1, 1.0, 0.0], [0.5, 1.0, -0.05, 0.5, 0.0]])
    b = jnp.asarray([0.1, 0.2, -0.01, 0.3, -1.0])  # duplicates (one of opposite sign), a parallel, a dead unit
    found = regions(lambda x: relu(x @ w + b))
    assert len(found) == found.linear_count == 3
    assert not found.patterns[:, 4].any()
    on_the_edge = regions(lambda x: relu(x[0] - 1) + relu(x[1] + 1))
    assert len(on_the_edge) == 1


def test_regions_of_a_net_without_biases_are_sectors():
    """All lines pass through the origin, at every depth."""
    net = MLP(16, 16, 16, 1)
    params = jax.tree.map(lambda p: 0 * p if p.ndim == 1 else p, random_params(net, (2,)))
    found = regions(net, params)
    assert len(found.edges) == len(found) > 32
    ring = regions_along(net, params, [-1.0, 1.0], [1.0, 1.0]).activation_count
    assert len(found) > ring
    assert all((abs(polygon).max(1) < 1e-9).any() for polygon in found.polygons)


def test_rescaling_layers_keeps_the_regions():
    """Counts depend on the function only, also for layers with small weights."""
    net = MLP(8, 8, 8, 1)
    params = random_params(net, (2,))
    scaled, size = [], 1.0
    for p in params[::2]:
        size *= 1e-7
        scaled += [{"kernel": p["kernel"] * 1e-7, "bias": p["bias"] * size}, ()]
    expected, found = regions(net, params), regions(net, tuple(scaled[:-1]))
    assert len(found) == len(expected)
    far = regions(net, params, origin=(0.5, 0.25), directions=np.eye(2) * 1e-3, box=((-1500, 500), (-1250, 750)))
    assert len(far) == len(expected)


def test_canceled_kinks_are_not_borders_of_linear_regions():
    """For exact and for rounded cancellation, activation regions remain and linear regions merge."""
    both = regions(lambda x: relu(x[0]) + relu(x[1]) - relu(x[0]))
    assert (both.activation_count, both.linear_count) == (4, 2)
    noise = regions(lambda x: relu(relu(3 * x[0] + 0.1) - 3 * relu(x[0] + 0.1 / 3)) + x[1])
    assert (noise.activation_count, noise.linear_count) == (2, 1)
    line = regions_along(lambda x: relu(x[0]) + relu(x[1]) - relu(x[0]), (), [-1.0, -1.0], [1.0, 2.0])
    assert (line.activation_count, line.linear_count) == (3, 2)
    np.testing.assert_allclose(line.kinks, [1 / 3])


def test_linear_regions_that_share_only_a_corner_are_distinct():
    """The function is 0 in two quadrants that share only a point."""
    found = regions(lambda x: jnp.minimum(relu(x[0]), relu(x[1])) - jnp.minimum(relu(-x[0]), relu(-x[1])))
    zero = (found.slopes == 0).all(-1)
    assert found.linear_count == 6
    assert len(np.unique(found.linear_region[zero])) == 2


def test_nets_with_jumps():
    step = lambda x: jnp.where(x[0] > 0.2, 1.0, 0.0) * relu(x[1]) + (x[0] > 0.5).astype(x.dtype)
    found = regions(step)
    assert (found.activation_count, found.linear_count) == (6, 4)
    assert regions(lambda x: jnp.sign(x)).linear_count == 4
    assert regions_along(lambda x: jnp.sign(x), (), [-1.0, -1.0], [1.0, 2.0]).linear_count == 3


def test_constant_nets_have_one_region():
    for net in (lambda x: jnp.ones(3), lambda x: 2 * x):
        assert regions(net).linear_count == regions_along(net, (), [0.0, 0.0], [1.0, 1.0]).linear_count == 1


def test_nets_in_low_precision_are_analyzed_in_float64():
    low = lambda x: relu(x.astype(jnp.bfloat16) @ jnp.asarray([[1, 2], [3, -1]], jnp.bfloat16) + jnp.bfloat16(1))
    found = regions(low)
    assert len(found) == 4
    assert found.slopes.dtype == np.float64
    assert {tuple(s) for s in found.slopes[:, 1]} == {(2.0, -1.0), (0.0, 0.0)}


# ---- slices and plots ---------------------------------------------------------------------------


def test_slice_through_three_points():
    """Their coordinates are (0, 0), (1, 0) and (0, 1); origin and directions of that plane give the same regions."""
    net = MLP(15, 1)
    params = random_params(net, (5,))
    a, b, c = np.random.default_rng(0).normal(size=(3, 5))
    found = regions(net, params, through=(a, b, c))
    np.testing.assert_allclose(found.inputs_at([[0, 0], [1, 0], [0, 1]]), [a, b, c], atol=1e-15)
    assert found.box == ((-0.5, 1.5), (-0.5, 1.5))
    same = regions(net, params, origin=a, directions=[b - a, c - a], box=((-0.5, 1.5), (-0.5, 1.5)))
    assert len(same) == len(found)
    np.testing.assert_allclose(np.sort(same.areas), np.sort(found.areas))


def test_repr_of_regions():
    net, params = folding_network((4, 4))
    found = regions(net, params, box=UNIT)
    assert repr(found).splitlines() == [
        " 44  linear regions for u in [0, 1], v in [0, 1]",
        " 44  activation regions",
        "121  at most, for layers that compare 4, 4",
        " 44  attained by folding, with hidden layers of these widths",
    ]
    assert "<table>" in found._repr_html_()
    assert "44  linear regions along" not in repr(regions_along(net, params, [0.0, 0.0], [1.0, 1.0]))


def test_level_set_is_exact():
    """The sides of a diamond; for a random net, the output is zero at both ends of each segment."""
    sides = regions(lambda x: jnp.abs(x[0]) + jnp.abs(x[1]) - 0.5).level_set()
    np.testing.assert_allclose(np.linalg.norm(sides[:, 0] - sides[:, 1], axis=1), np.full(4, math.sqrt(0.5)))
    net = MLP(10, 10, 1)
    params = random_params(net, (2,), seed=1)
    found = regions(net, params)
    segments = found.level_set(0.1)
    assert len(segments) > 5
    np.testing.assert_allclose(np.asarray(net.apply(params, jnp.asarray(segments))), 0.1, atol=1e-13)
    with pytest.raises(ValueError, match="the number of an output, from 0 to 0, got 1"):
        found.level_set(0.1, output=1)


@pytest.mark.parametrize(
    ("net", "count"),
    [
        (lambda x: jnp.abs(x[0]), 1),  # an edge shared by two polygons
        (lambda x: -jnp.abs(x[0]), 1),
        (lambda x: relu(x[0]), 1),  # the border of a polygon on which the net equals the level
        (lambda x: -relu(x[0]), 1),
        (lambda x: x[0] - relu(x[0]), 1),
        (lambda x: x[0] + jnp.abs(x[0]) / 2, 1),
        (lambda x: x[0] + 0 * jnp.abs(x[1]), 2),  # through two polygons
        (lambda x: jnp.abs(x[0] - 1) + 0 * jnp.abs(x[1]), 2),  # the border of the box
        (lambda x: relu(x[0]) - relu(x[0]), 0),
        (lambda x: 0 * x[0], 0),
        (lambda x: jnp.abs(x[0]) + jnp.abs(x[1]), 0),  # a point only
    ],
)
def test_level_set_along_edges(net, count):
    """Each segment is listed once, regardless of the side on which the net is larger."""
    found = regions(net, box=((-1, 1), (-1, 1))).level_set()
    assert found.shape == (count, 2, 2)
    assert len({tuple(sorted(map(tuple, segment.round(9) + 0.0))) for segment in found}) == count
    length = np.linalg.norm(found[:, 0] - found[:, 1], axis=1).sum()
    np.testing.assert_allclose(length, 2 if count else 0, atol=1e-12)


def test_plots_of_regions(sentences):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    net = MLP(5, 5, 2)
    params = random_params(net, (2,))
    found = regions(net, params)
    _, (left, right) = plt.subplots(1, 2)
    assert found.plot(left, level=0.0) is left
    assert found.plot(right, color_by="output", output=1) is right
    assert len(left.collections[0].get_paths()) == len(found)
    with pytest.raises(ValueError, match='expected color_by to be "region" or "output", got slope'):
        found.plot(left, color_by="slope")
    plt.close("all")


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [regions, lambda net, params: regions_along(net, params, [0.0, 0.0], [1.0, 2.0])])
def test_nets_that_are_not_piecewise_linear_are_rejected(count):
    net = Serial(Dense(3), tanh, Dense(1))
    params = random_params(net, (2,))
    with pytest.raises(ValueError, match=r"expected a piecewise linear net, got the layer 1 that takes tanh"):
        count(net, params)
    repaired = Serial(Dense(3), leaky_relu, Dense(1))
    assert count(repaired, params).linear_count > 1
    with pytest.raises(ValueError, match="multiplies two arrays that depend on the input"):
        count(lambda x: x @ x, ())
    norm = LayerNorm(use_scale=False, use_bias=False)
    with pytest.raises(ValueError, match="got the layer LayerNorm that"):  # outside of a Serial
        count(norm, norm.init(jax.random.key(0), jnp.zeros(2)))
    with pytest.raises(ValueError, match="divides by a value that depends on the input"):
        count(lambda x: 1 / (2 + x), ())
    with pytest.raises(ValueError, match="expected a net with one output, got 2"):
        count(lambda x: (x, x), ())


def test_layers_with_state_are_rejected():
    net = Serial(Dense(3), BatchNorm(), relu)
    with pytest.raises(TypeError, match="regions expected a layer without state, got Serial; pass lambda x:"):
        regions(net, ())


def test_params_that_are_not_finite_are_rejected():
    net = MLP(3, 1)
    params = random_params(net, (2,))
    params[0]["bias"][0] = np.nan
    with jax.debug_nans(False), pytest.raises(ValueError, match="expected finite params"):
        regions(net, params)


def test_invalid_slices_are_rejected():
    net = lambda x: relu(x)
    with pytest.raises(
        ValueError, match="a plane, got directions that are parallel, or zero; along a line use regions_along"
    ):
        regions(net, directions=[[1.0, 1.0], [2.0, 2.0]])
    with pytest.raises(ValueError, match="parallel"):
        regions(net, through=([0.0, 0.0], [1.0, 1.0], [2.0, 2.0]))
    with pytest.raises(ValueError, match="three inputs of the net in through, got 2"):
        regions(net, through=([0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(ValueError, match="omit one of them"):
        regions(net, through=np.eye(3), origin=np.zeros(3))
    with pytest.raises(TypeError, match=r"of shape \(2,\). For a net of other inputs pass origin and directions"):
        regions(lambda x: jnp.ones((1, 3)) @ x)
    assert len(regions(lambda x: jnp.ones((1, 3)) @ x, origin=np.zeros(3), directions=np.eye(3)[:2])) == 1
    with pytest.raises(ValueError, match=r"two directions for inputs of shape \(3,\), got none"):
        regions(net, origin=np.zeros(3))
    with pytest.raises(
        ValueError, match=r"directions of shape \(2, 3\), two in the shape of the origin, got shape \(3, 3\)"
    ):
        regions(net, origin=np.zeros(3), directions=np.eye(3))
    with pytest.raises(ValueError, match="lowest v, highest v"):
        regions(net, box=((0, 1), (1, 0)))
    with pytest.raises(ValueError, match="finite numbers"):
        regions(net, origin=np.array([np.inf, 0.0]))
    with pytest.raises(ValueError, match="that differ, got equal points; choose another stop"):
        regions_along(net, (), [0.0, 1.0], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"of one shape, got \(2,\) and \(3,\)"):
        regions_along(net, (), np.zeros(2), np.ones(3))
