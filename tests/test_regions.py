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
from jaxblocks.theory.regions import (
    arrangement_regions,
    count_regions,
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
    """Those of init, but biases are normal, so that nothing is degenerate."""
    rng = np.random.default_rng(seed)
    made = jax.eval_shape(net.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float64))
    draw = lambda p: (
        rng.normal(size=p.shape) * (spread if len(p.shape) == 1 else 1 / math.sqrt(math.prod(p.shape[:-1])))
    )
    return jax.tree.map(draw, made)


def patterns_of(params, x):
    """Which units of a plain ReLU net are on: numpy alone."""
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


def test_the_numbers_of_the_bounds():
    """Zaslavsky 211 and 56; the lower bound 1400 and 44; the upper one 3136 and 121: as the errata compute them."""
    assert [arrangement_regions(n, 2) for n in (0, 1, 2, 10, 20)] == [1, 2, 4, 56, 211]
    assert [arrangement_regions(3, d) for d in (0, 1, 3, 9)] == [1, 4, 8, 8]
    assert region_lower_bound((10, 10), 2) == 1400
    assert region_lower_bound((4, 4), 2) == 44
    assert region_upper_bound((10, 10), 2) == 3136 == 56**2
    assert region_upper_bound((4, 4), 2) == 121
    printed = math.comb(10, 2) ** 2 * 10**2  # a binomial where the fraction n / d is meant
    assert printed == 202500 > region_upper_bound((10, 10), 2)
    assert region_lower_bound((6, 6, 5), 1) == 6 * 6 * 6


def test_the_upper_bound_is_its_sum():
    """By enumerating the index set of the theorem; narrow layers make it sharper than the product."""
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


def test_bounds_refuse_what_they_cannot_bound(sentences):
    with pytest.raises(ValueError, match="no layer narrower than its d = 3 inputs, but a width of 2 came"):
        region_lower_bound((4, 2), 3)
    assert region_lower_bound((4, 2), 2) == 4 * 4
    with pytest.raises(ValueError, match=r"expects the widths of the hidden layers, as in \(10, 10\), but 10 came"):
        region_upper_bound(10, 2)
    with pytest.raises(ValueError, match="every width to be a whole number >= 1, but 0 came"):
        region_upper_bound((3, 0), 2)
    with pytest.raises(ValueError, match="1 or 2 inputs, but 3 came"):
        folding_network((6, 6), 3)


# ---- extremal constructions ---------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(10, 10), (5, 7, 6), (4, 4, 4, 3)])
def test_folding_reaches_the_lower_bound(widths):
    """25 copies of 56 cells for (10, 10); spare units of odd widths do nothing."""
    net, params = folding_network(widths)
    found = regions(net, params, box=UNIT)
    assert found.linear_count == found.activation_count == len(found) == region_lower_bound(widths, 2)
    assert len(found) <= region_upper_bound(widths, 2)
    np.testing.assert_allclose(found.areas.sum(), 1, rtol=1e-13)


def test_folding_of_a_line_reaches_the_lower_bound():
    for widths in [(7,), (4, 4), (5, 3, 6), (2, 2, 2)]:
        net, params = folding_network(widths, 1)
        found = regions_along(net, params, [0.0], [1.0])
        assert found.linear_count == found.activation_count == region_lower_bound(widths, 1)


@pytest.mark.parametrize("levels", [1, 5, 10])
def test_the_sawtooth_has_two_to_the_levels_pieces(levels):
    net, params = sawtooth_network(levels)
    found = regions_along(net, params, [-2.0], [2.0])
    assert found.linear_count == 2**levels
    np.testing.assert_allclose(found.kinks, np.arange(1, 2**levels) / 2**levels, atol=1e-14)


# ---- shallow nets: arrangements of lines --------------------------------------------------------


@pytest.mark.parametrize(("n", "cells"), [(10, 56), (20, 211)])
def test_random_lines_reach_zaslavskys_count(n, cells):
    net = MLP(n, 1)
    params = random_params(net, (2,), seed=n)
    found = regions(net, params, box=((-1e4, 1e4), (-1e4, 1e4)))
    assert found.linear_count == found.activation_count == found.bound == cells


def test_a_shallow_net_has_one_region_more_than_lines_and_crossings():
    """In a box: 1 + lines that meet it + crossings inside; 300 units."""
    net = MLP(300, 1)
    params = random_params(net, (2,), spread=0.5)
    w, b = params[0]["kernel"], params[0]["bias"]
    lines = np.abs(w).sum(0) > np.abs(b)
    i, j = np.triu_indices(300, 1)
    crossings = np.linalg.solve(np.stack([w[:, i].T, w[:, j].T], 1), -np.stack([b[i], b[j]], 1)[..., None])[..., 0]
    found = regions(net, params)
    assert len(found) == 1 + lines.sum() + (abs(crossings) < 1).all(-1).sum() > 15_000


# ---- deep nets ----------------------------------------------------------------------------------


def test_every_pattern_that_sampling_meets_is_a_polygon():
    """Dense sampling finds no pattern that is missing, and all those of large polygons; areas add up."""
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


def test_no_region_of_small_nets_is_missed():
    """A linear program for every subset of units: its polygon is not empty exactly if it is among ours."""
    from scipy.optimize import linprog

    net = MLP(4, 3, 1)
    params = random_params(net, (2,), seed=5)
    (w1, b1), (w2, b2) = ((p["kernel"], p["bias"]) for p in params[:4:2])
    expected = set()
    for pattern in itertools.product((0, 1), repeat=7):
        first, second = np.array(pattern[:4]), np.array(pattern[4:])
        a, c = (w1 * first) @ w2, (b1 * first) @ w2 + b2
        rows, constants = np.concatenate([w1, a], 1), np.concatenate([b1, c])
        sign = 2 * np.concatenate([first, second]) - 1  # sign (x rows + constants) >= r, the largest such r
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
    """Affine maps give the net's values; a segment meets as many polygons as the exact tracking of a line says."""
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

    # Every inner edge has two polygons: perimeters count them twice, and the box once.
    perimeters = sum(np.linalg.norm(p - np.roll(p, -1, 0), axis=1).sum() for p in found.polygons)
    inner = np.linalg.norm(found.edges[:, 0] - found.edges[:, 1], axis=1).sum()
    np.testing.assert_allclose(perimeters - 2 * inner, 2 * np.ptp(found.box, axis=1).sum(), rtol=1e-10)

    for _ in range(2):
        start, stop = rng.uniform(found.box[0][0], found.box[0][1], (2, 2))
        line = regions_along(net, params, *found.inputs_at([start, stop]))
        crossed = segment_crosses(found, start, stop)
        assert line.activation_count == len(crossed)
        assert line.linear_count == 1 + np.count_nonzero(np.diff(found.linear_region[crossed]))


def segment_crosses(found, start, stop):
    """The polygons that a segment meets, in order: clipped by the half planes of each polygon's edges."""
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
    """n lines through a point make 2n cells, none of them a splinter of rounding; through a point of the box n + 1."""
    angles = np.pi * np.arange(12) / 12 + 0.1
    w, c = jnp.asarray([np.cos(angles), np.sin(angles)]), jnp.asarray(center, jnp.float64)
    found = regions(lambda x: jnp.sum(relu((x - c) @ w)))
    assert len(found) == found.linear_count == (24 if center[0] > -1 else 13)


def test_twins_parallels_and_the_dead_cut_nothing():
    w = jnp.asarray([[1.0, 2.0, -0.1, 1.0, 0.0], [0.5, 1.0, -0.05, 0.5, 0.0]])
    b = jnp.asarray([0.1, 0.2, -0.01, 0.3, -1.0])  # twins, the twin that looks back, a parallel, a dead one
    found = regions(lambda x: relu(x @ w + b))
    assert len(found) == found.linear_count == 3
    assert not found.patterns[:, 4].any()
    on_the_edge = regions(lambda x: relu(x[0] - 1) + relu(x[1] + 1))
    assert len(on_the_edge) == 1


def test_a_net_without_biases_is_made_of_sectors():
    """All lines pass the origin, at every depth."""
    net = MLP(16, 16, 16, 1)
    params = jax.tree.map(lambda p: 0 * p if p.ndim == 1 else p, random_params(net, (2,)))
    found = regions(net, params)
    assert len(found.edges) == len(found) > 32
    ring = regions_along(net, params, [-1.0, 1.0], [1.0, 1.0]).activation_count
    assert len(found) > ring
    assert all((abs(polygon).max(1) < 1e-9).any() for polygon in found.polygons)


def test_rescaling_layers_changes_no_region():
    """Counts are those of the function, however small the numbers of a layer are."""
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


def test_kinks_that_cancel_are_no_borders_of_linear_regions():
    """Canceled exactly or to rounding: activation regions stay, linear regions merge, and nothing is cut by noise."""
    both = regions(lambda x: relu(x[0]) + relu(x[1]) - relu(x[0]))
    assert (both.activation_count, both.linear_count) == (4, 2)
    noise = regions(lambda x: relu(relu(3 * x[0] + 0.1) - 3 * relu(x[0] + 0.1 / 3)) + x[1])
    assert (noise.activation_count, noise.linear_count) == (2, 1)
    line = regions_along(lambda x: relu(x[0]) + relu(x[1]) - relu(x[0]), (), [-1.0, -1.0], [1.0, 2.0])
    assert (line.activation_count, line.linear_count) == (3, 2)
    np.testing.assert_allclose(line.kinks, [1 / 3])


def test_linear_regions_that_touch_at_a_corner_are_two():
    """x y's signs: the function is 0 in two quadrants that share a point only."""
    found = regions(lambda x: jnp.minimum(relu(x[0]), relu(x[1])) - jnp.minimum(relu(-x[0]), relu(-x[1])))
    zero = (found.slopes == 0).all(-1)
    assert found.linear_count == 6
    assert len(np.unique(found.linear_region[zero])) == 2


def test_nets_with_jumps():
    step = lambda x: jnp.where(x[0] > 0.2, 1.0, 0.0) * relu(x[1]) + (x[0] > 0.5).astype(x.dtype)
    assert (regions(step).activation_count, count_regions(step)) == (6, 4)
    assert count_regions(lambda x: jnp.sign(x)) == 4
    assert count_regions(lambda x: jnp.sign(x), segment=([-1.0, -1.0], [1.0, 2.0])) == 3


def test_constant_nets_have_one_region():
    assert count_regions(lambda x: jnp.ones(3)) == count_regions(lambda x: 2 * x) == 1
    for net in (lambda x: jnp.ones(3), lambda x: 2 * x):
        assert count_regions(net, segment=([0.0, 0.0], [1.0, 1.0])) == 1


def test_a_net_in_low_precision_is_followed_in_float64():
    low = lambda x: relu(x.astype(jnp.bfloat16) @ jnp.asarray([[1, 2], [3, -1]], jnp.bfloat16) + jnp.bfloat16(1))
    found = regions(low)
    assert len(found) == 4
    assert found.slopes.dtype == np.float64
    assert {tuple(s) for s in found.slopes[:, 1]} == {(2.0, -1.0), (0.0, 0.0)}


# ---- slices, records ----------------------------------------------------------------------------


def test_three_points_span_the_slice():
    """They lie at (0, 0), (1, 0) and (0, 1); the same plane by origin and directions has the same regions."""
    net = MLP(15, 1)
    params = random_params(net, (5,))
    a, b, c = np.random.default_rng(0).normal(size=(3, 5))
    found = regions(net, params, through=(a, b, c))
    np.testing.assert_allclose(found.inputs_at([[0, 0], [1, 0], [0, 1]]), [a, b, c], atol=1e-15)
    assert found.box == ((-0.5, 1.5), (-0.5, 1.5))
    same = regions(net, params, origin=a, directions=[b - a, c - a], box=((-0.5, 1.5), (-0.5, 1.5)))
    assert len(same) == len(found)
    np.testing.assert_allclose(np.sort(same.areas), np.sort(found.areas))


def test_the_record_prints_itself():
    net, params = folding_network((4, 4))
    found = regions(net, params, box=UNIT)
    assert repr(found).splitlines() == [
        " 44  linear regions for u in [0, 1], v in [0, 1]",
        " 44  activation regions",
        "121  at most, for layers that compare 4, 4",
        " 44  reached by folding, with hidden layers of these widths",
    ]
    assert "<table>" in found._repr_html_()
    assert "44  linear regions along" not in repr(regions_along(net, params, [0.0, 0.0], [1.0, 1.0]))


def test_the_level_set_is_exact():
    """A diamond's sides; and on every segment of a net's boundary its output is zero, at both ends."""
    sides = regions(lambda x: jnp.abs(x[0]) + jnp.abs(x[1]) - 0.5).level_set()
    np.testing.assert_allclose(np.linalg.norm(sides[:, 0] - sides[:, 1], axis=1), np.full(4, math.sqrt(0.5)))
    net = MLP(10, 10, 1)
    params = random_params(net, (2,), seed=1)
    found = regions(net, params)
    segments = found.level_set(0.1)
    assert len(segments) > 5
    np.testing.assert_allclose(np.asarray(net.apply(params, jnp.asarray(segments))), 0.1, atol=1e-13)
    with pytest.raises(ValueError, match="has 1 outputs, but output 1 was asked for"):
        found.level_set(0.1, output=1)


@pytest.mark.parametrize(
    ("net", "count"),
    [
        (lambda x: jnp.abs(x[0]), 1),  # an edge seen from both sides
        (lambda x: -jnp.abs(x[0]), 1),
        (lambda x: relu(x[0]), 1),  # the border of a polygon that is at the level throughout
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
def test_a_level_set_that_runs_along_edges(net, count):
    """Every segment once, whichever side the net is higher on."""
    found = regions(net, box=((-1, 1), (-1, 1))).level_set()
    assert found.shape == (count, 2, 2)
    assert len({tuple(sorted(map(tuple, segment.round(9) + 0.0))) for segment in found}) == count
    length = np.linalg.norm(found[:, 0] - found[:, 1], axis=1).sum()
    np.testing.assert_allclose(length, 2 if count else 0, atol=1e-12)


def test_plots():
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
    line = regions_along(net, params, [-1.0, -1.0], [1.0, 1.0])
    assert len(line.plot(output=1).lines[1].get_xdata()) == len(line.kinks)
    with pytest.raises(ValueError, match='color_by="region" and "output", but \'slope\' came'):
        found.plot(left, color_by="slope")
    plt.close("all")


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [regions, lambda net, params: regions_along(net, params, [0.0, 0.0], [1.0, 2.0])])
def test_a_net_that_is_not_piecewise_linear_is_named(count):
    net = Serial(Dense(3), tanh, Dense(1))
    params = random_params(net, (2,))
    with pytest.raises(
        ValueError, match=r"expects a piecewise linear net, but the layer 1\.tanh is not: it takes tanh"
    ):
        count(net, params)
    repaired = Serial(Dense(3), leaky_relu, Dense(1))
    assert count(repaired, params).linear_count > 1
    with pytest.raises(ValueError, match="multiplies two arrays that depend on its input"):
        count(lambda x: x @ x, ())
    norm = LayerNorm(use_scale=False, use_bias=False)
    with pytest.raises(ValueError, match="but the layer LayerNorm is not: it"):  # alone, in no place of a Serial
        count(norm, norm.init(jax.random.key(0), jnp.zeros(2)))
    with pytest.raises(ValueError, match="divides by what depends on its input"):
        count(lambda x: 1 / (2 + x), ())
    with pytest.raises(ValueError, match="expects a net with one output, but 2 came"):
        count(lambda x: (x, x), ())


def test_layers_with_state_are_refused():
    net = Serial(Dense(3), BatchNorm(), relu)
    with pytest.raises(TypeError, match="regions expects a layer without state, but Serial has one; fix it: lambda x:"):
        regions(net, ())


def test_params_that_are_not_finite_are_refused():
    net = MLP(3, 1)
    params = random_params(net, (2,))
    params[0]["bias"][0] = np.nan
    with jax.debug_nans(False), pytest.raises(ValueError, match="expects finite params"):
        regions(net, params)


def test_slices_that_are_none():
    net = lambda x: relu(x)
    with pytest.raises(ValueError, match="its directions are parallel, or one is zero; along a line use regions_along"):
        regions(net, directions=[[1.0, 1.0], [2.0, 2.0]])
    with pytest.raises(ValueError, match="parallel"):
        regions(net, through=([0.0, 0.0], [1.0, 1.0], [2.0, 2.0]))
    with pytest.raises(ValueError, match="three inputs of the net in through, but 2 came"):
        regions(net, through=([0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(ValueError, match="leave one out"):
        regions(net, through=np.eye(3), origin=np.zeros(3))
    with pytest.raises(TypeError, match=r"of shape \(2,\). For a net of other inputs pass origin and directions"):
        regions(lambda x: jnp.ones((1, 3)) @ x)
    assert len(regions(lambda x: jnp.ones((1, 3)) @ x, origin=np.zeros(3), directions=np.eye(3)[:2])) == 1
    with pytest.raises(ValueError, match=r"two directions where an input is \(3,\) in shape"):
        regions(net, origin=np.zeros(3))
    with pytest.raises(
        ValueError, match=r"directions of shape \(2, 3\), two in the shape of the origin, but shape \(3, 3\)"
    ):
        regions(net, origin=np.zeros(3), directions=np.eye(3))
    with pytest.raises(ValueError, match="lowest v, highest v"):
        regions(net, box=((0, 1), (1, 0)))
    with pytest.raises(ValueError, match="finite numbers"):
        regions(net, origin=np.array([np.inf, 0.0]))
    with pytest.raises(ValueError, match="that differ; choose another stop"):
        regions_along(net, (), [0.0, 1.0], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"one shape, but \(2,\) and \(3,\) came"):
        regions_along(net, (), np.zeros(2), np.ones(3))
