"""The columns of the table: laws that the derivatives of a function of arrays satisfy.

Each row has one program in float64 and one in the narrower dtypes, which compute all derivatives at all points of the
row: ordinary, moved along a direction, scaled, and the corners of the domain. The laws compare the results in NumPy.

    s(x) = <w, f(x)>     with fixed weights w, so that it is scalar-valued
    value f(x)           tangent J d           gradient of s           curvature H d, the Hessian of s times d
    laplacian of s       taylor: the second and third derivative of s along d
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import mpmath
import numpy as np
from derivative_laws.nestings import gradient_in_loop, gradient_outside
from derivative_laws.row import Row
from jax.extend.core import jaxpr_as_fun

from jaxblocks.ad import directional_derivatives, laplacian
from jaxblocks.ad.counting.counts import equations
from jaxblocks.backend.precision import widen

STEP = 2.0**-17
# Half precision by float16, which has the smaller range; bfloat16 takes the same code paths.
NARROW = (np.dtype("float32"), np.dtype("float16"))


class Derivatives(NamedTuple):
    """Results at one point, or at many on a leading axis."""

    value: Any
    tangent: Any
    gradient: Any
    curvature: Any
    laplacian: Any = None
    taylor: Any = None


class Case:
    """A row with the function that it calls; programs run at their first use, and the laws share the results."""

    def __init__(self, function: Callable, row: Row, dtypes: tuple = NARROW, *, higher: bool = True):
        """``higher``: whether all modes are computed, and second derivatives in half precision."""
        self.row, self.dtypes = row, dtypes
        # Tracing takes most of the time of this table: the function is traced once for each dtype.
        self.jaxpr = functools.cache(self.trace)
        self.function = lambda *args: row.call(function, *args)
        self.z = _flat(row.point)
        # Numbers of few bits, none of which is 0, and no two of which are equal.
        self.direction = _bits(len(self.z), 3, 5)
        self.first = np.dtype("float32" if dtypes else "float64")
        self.weights = _bits(*self.jaxpr(self.first).out_avals[0].shape, 5, 7)
        self.higher = higher

    def trace(self, dtype):
        """The program of `flat` for a dtype."""
        with jax.enable_x64(dtype == np.float64):
            return jax.make_jaxpr(self.flat)(jax.ShapeDtypeStruct(self.z.shape, dtype))

    def flat(self, z):
        """The floating-point results as one vector, for the arguments as one vector."""
        args, start = [], 0
        for leaf in self.row.point:
            size = np.size(leaf)
            args.append(z[start : start + size].reshape(np.shape(leaf)))
            start += size
        leaves = [y for y in jax.tree.leaves(self.function(*args)) if jnp.issubdtype(y.dtype, jnp.floating)]
        return jnp.concatenate([y.ravel() for y in leaves])

    def traced(self, z):
        """The same by the program that was traced for this dtype."""
        return jaxpr_as_fun(self.jaxpr(z.dtype))(z)[0]

    def scalar(self, z):
        """s(x)."""
        return self.weighted(self.flat(z))

    def weighted(self, y):
        """The scalar product with the weights."""
        y = widen(y)
        return jnp.sum(y * jnp.asarray(self.weights, y.dtype))

    def by_jax(self, z, d, *, second=True) -> Derivatives:
        """The derivatives at one point along one direction by forward mode over reverse mode."""

        def s(z):
            y = self.traced(z)
            return self.weighted(y), y

        gradient = jax.grad(s, has_aux=True)
        if not second:
            found, value = gradient(z)
            return Derivatives(value, None, found, None)
        (found, value), (curvature, tangent) = jax.jvp(gradient, (z,), (d,))
        return Derivatives(value, tangent, found, curvature)

    def taylor(self, z, d, order) -> jax.Array:
        """The derivatives of orders 2 and above of s along the direction, by Taylor mode."""
        return jnp.stack(directional_derivatives(lambda z: self.weighted(self.traced(z)), z, d, order=order)[2:])

    def laplacian(self, z, slopes) -> jax.Array:
        """The Laplacian of u -> s(slopes * u), at the point where slopes * u = z."""
        return laplacian(lambda u: self.weighted(self.traced(slopes * u)), z / slopes)

    def each(self, f, *points):
        """f of each point, by calls of one program: its trace has no batch and no loop, which `nestings` check."""
        if self.row.in_batch:
            return jax.tree.map(np.asarray, jax.jit(jax.vmap(f))(*points))
        program = jax.jit(f)
        return jax.tree.map(lambda *found: np.stack(found), *[program(*point) for point in zip(*points, strict=True)])

    @functools.cached_property
    def rules(self) -> set[str]:
        """The functions of jaxblocks in the program with a rule, as ``"file.function"``, and kinds of its loops."""
        found = set()
        for equation, _, _ in equations(self.jaxpr(self.first)):
            kind = equation.primitive.name
            if kind in ("custom_jvp_call", "custom_vjp_call"):
                name, path, *_ = equation.params["call_jaxpr"].jaxpr.debug_info.func_src_info.split(" at ")
                if "/jax/_src/" not in path:  # the rules of JAX are not those of the table
                    found.add(f"{pathlib.Path(path).stem}.{name}")
            elif kind in ("scan", "while", "cond"):
                found.add(kind)
        return found

    @functools.cached_property
    def points(self) -> dict[str, np.ndarray]:
        """The points of the row by name."""
        points = {"ordinary": self.z}
        for exponent in self.row.exponents:
            moved = [
                np.ldexp(x, exponent) if not self.row.scaled or i in self.row.scaled else x
                for i, x in enumerate(self.row.point)
            ]
            points[f"times 2^{exponent}"] = _flat(moved)
        points |= {name: _flat(corner) for name, corner in self.row.corners.items()}
        for name, z in points.items():
            assert np.array_equal(z.astype(ml_dtypes.bfloat16).astype(np.float64), z, equal_nan=True), (
                f"{name} has too many digits"
            )
        return points

    @functools.cached_property
    def wide(self) -> Derivatives:
        """In float64: at the points, at the ordinary point moved by a step and back, then at some along each axis."""
        z, d, points = self.z, self.direction, [*self.points.values()]
        pairs = [(point, d) for point in (*points, z + STEP * d, z - STEP * d)]
        pairs += [(point, axis) for point in points[: None if self.higher else 1] for axis in np.eye(len(z))]

        def run(z, d):
            found = self.by_jax(z, d)
            if not self.higher:
                return found
            value, tangent = jax.jvp(self.traced, (z,), (d,))  # forward mode alone
            taylor = self.taylor(z, d, 3)  # the Hessian takes the place of the Laplacian
            return found._replace(value=value, tangent=tangent, taylor=taylor)

        with jax.enable_x64(True), jax.debug_nans(False), jax.debug_key_reuse(False):
            return self.each(run, *map(np.stack, zip(*pairs, strict=True)))

    @functools.cached_property
    def hessians(self) -> np.ndarray:
        """The Hessian of s in float64, at each point or at the ordinary one."""
        n = len(self.z)
        return self.wide.curvature[len(self.points) + 2 :].reshape(-1, n, n)

    def sizes(self, i: int) -> tuple[float, float, float]:
        """The numbers to which rounding errors of value, first and second derivatives are relative, at point i.

        A function whose value is 1 has slopes of about 1, and of 1 / |x| at a large scale |x|, unless it is steep.
        """
        name, z = [*self.points.items()][i]
        reach = max(1.0, np.abs(z).max()) if name.startswith("times") and not self.row.steep else 1.0
        largest = lambda x: np.abs(x[np.isfinite(x)]).max(initial=0.0)
        value = max(self.row.magnitude, largest(self.wide.value[i]))
        first = max(largest(self.wide.gradient[i]), value / reach)
        second = max(largest(self.wide.curvature[i]), first / reach)
        return value, first, second

    @functools.cached_property
    def slopes(self) -> np.ndarray:
        """For each point the factors of its entries at a scale above 1, as if a steep map came before."""
        found = np.ones((len(self.points), len(self.z)))
        for slopes, (name, z) in zip(found, self.points.items(), strict=True):
            if name.startswith("times") and np.abs(z).max() > 1:
                np.divide(z, self.z, out=slopes, where=self.z != 0)
        return found

    @functools.cached_property
    def narrow(self) -> dict[np.dtype, Derivatives]:
        """In the narrower dtypes, at the points."""

        def at(z, d, slopes):
            found = self.by_jax(z, d, second=self.higher or z.dtype != jnp.float16)
            if z.dtype == jnp.float32 and self.higher:
                found = found._replace(laplacian=self.laplacian(z, slopes))
            return found

        def run(slopes, *numbers):
            return [at(z, d, slopes) for z, d in zip(numbers[::2], numbers[1::2], strict=True)]

        points = np.stack([*self.points.values()])
        directions = np.broadcast_to(self.direction, points.shape)
        with np.errstate(over="ignore"):
            numbers = [x.astype(dtype) for dtype in self.dtypes for x in (points, directions)]
        with jax.debug_nans(False), jax.debug_key_reuse(False):
            found = self.each(run, self.slopes.astype(np.float32), *numbers)
        widened = jax.tree.map(lambda x: x.astype(np.float64), found)
        return dict(zip(self.dtypes, widened, strict=True))


# ---- the columns ----------------------------------------------------------------------------------


def modes_agree(case: Case) -> None:
    """Forward mode is reverse mode: at every point, in float64."""
    for i, name in enumerate(case.points):
        tangent, gradient = case.wide.tangent[i], case.wide.gradient[i]
        if np.isfinite(tangent).all() and np.isfinite(gradient).all():  # `finite` tells whether they may not be
            _compare(
                f"<w, J d>, {name}",
                case.weights @ tangent,
                case.direction @ gradient,
                np.float64,
                case.row.tolerance,
                case.sizes(i)[1],
            )


def finite_differences(case: Case) -> None:
    """Tangent, curvature and third derivative are central differences of value, gradient and second derivative."""
    n, wide = len(case.points), case.wide
    pairs = [(wide.value, wide.tangent), (wide.gradient, wide.curvature)]
    pairs += [(wide.taylor[:, 0], wide.taylor[:, 1])] if case.higher else []
    for of, derivative in pairs[:1] if case.row.second else pairs:
        difference = (of[n] - of[n + 1]) / (2 * STEP)
        size = 1 + np.abs(of[0]).max() + np.abs(derivative[0]).max()
        np.testing.assert_allclose(difference, derivative[0], rtol=0, atol=2e-7 * size)


def hessian(case: Case) -> None:
    """H d is the sum of columns of the symmetric Hessian; Taylor mode computes d'H d."""
    if case.row.second:
        return
    columns, curvature = case.hessians[0], case.wide.curvature[0]
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12 * (1 + np.abs(columns).sum()))
    close(columns, columns.T)
    close(case.direction @ columns, curvature)
    for i, name in enumerate(case.points if case.higher else ()):
        second, found = case.wide.taylor[i, 0], case.direction @ case.wide.curvature[i]
        if np.isfinite(case.wide.curvature[i]).all():
            _compare(f"d'H d, {name}", second, found, np.float64, case.row.tolerance, case.sizes(i)[2])


def formula(case: Case) -> None:
    """Value, tangent and second derivative along d, in float64, are those of the formula, in 300 digits."""
    if case.row.formula is None:
        return
    with mpmath.workdps(300):
        for i, (name, z) in enumerate(case.points.items()):
            if name in case.row.choices or name in case.row.infinite or not np.isfinite(z).all():
                continue
            found = case.wide.value[i], case.wide.tangent[i], case.direction @ case.wide.curvature[i]
            kinds = ("value", "tangent", "second derivative")[: 2 if case.row.second else 3]
            for kind, got, expected, size in zip(kinds, found, _by_formula(case, z), case.sizes(i), strict=False):
                _compare(f"{kind} of the formula, {name}", got, expected, np.float64, case.row.tolerance, size)


def finite(case: Case) -> None:
    """All derivatives are finite at all points, in all dtypes of the case, and those of float64 rounded."""
    slopes = case.slopes
    wide = case.wide
    if case.higher:
        wide = wide._replace(laplacian=np.einsum("pii,pi->p", case.hessians, slopes**2))
    results = {np.dtype("float64"): wide, **case.narrow}
    for i, (name, z) in enumerate(case.points.items()):
        value, first, second = case.sizes(i)
        sizes = Derivatives(value, first, first, second, second * slopes[i].max() ** 2, second)
        for dtype, found in results.items():
            for kind in _kinds(case, name, dtype) if _holds(dtype, z) else ():
                got, expected = getattr(found, kind)[i], getattr(wide, kind)[i]
                what = f"{kind} in {dtype}, {name}"
                _compare(what, got, expected, dtype, case.row.tolerance, getattr(sizes, kind))


def nestings(case: Case) -> None:
    """Derivatives outside of every transformation, and inside of a loop, are those of a plain call, in float32.

    One gradient traces the function inside of the nesting. The loop has the program that was traced before.
    """
    z, d = case.z.astype(np.float32), case.direction.astype(np.float32)

    def run(z, d):
        f = lambda z: case.weighted(case.traced(z))
        return gradient_outside(case.scalar, z), *jax.jvp(gradient_in_loop(f), (z,), (d,))

    outside, inside, curvature = jax.jit(run)(z, d)
    wide, sizes = case.wide, case.sizes(0)
    compare = functools.partial(_compare, dtype=np.float32, tolerance=case.row.tolerance * len(z))
    compare(
        "gradient of custom_vjp, jit, checkpoint, scan, cond, shard_map, vmap", outside, wide.gradient[0], size=sizes[1]
    )
    compare("while_loop of gradient", inside, wide.gradient[0], size=sizes[1])
    compare("jvp of while_loop of gradient", curvature, wide.curvature[0], size=sizes[2])


LAWS = (modes_agree, finite_differences, hessian, formula, finite)


# ---- tools ----------------------------------------------------------------------------------------


def _kinds(case: Case, point: str, dtype) -> tuple[str, ...]:
    """The derivatives that a point of a row has, and that were computed in this dtype."""
    row = case.row
    if point in row.infinite:
        return ("value",)
    if dtype == np.float16 and not case.higher:
        return "value", "gradient"
    if row.second or (point in row.wide_only and dtype != np.float64):
        return Derivatives._fields[:3]
    return Derivatives._fields[: 5 if case.higher and dtype in (np.float32, np.float64) else 4]


def _holds(dtype, z) -> bool:
    """Whether the numbers are normal numbers of the dtype."""
    with np.errstate(over="ignore", under="ignore"):
        cast = z.astype(dtype).astype(np.float64)
    normal = (np.abs(z) >= float(ml_dtypes.finfo(dtype).smallest_normal)) | (z == 0) | ~np.isfinite(z)
    return bool((normal & ((cast == z) | np.isnan(z))).all())


def _compare(what, got, expected, dtype, tolerance, size) -> None:
    """Equal up to rounding errors of numbers of this size, unless the result is beyond the range of the dtype."""
    info = ml_dtypes.finfo(dtype)
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    infinite = np.isinf(expected) if what.startswith("value") else np.zeros(expected.shape, bool)
    assert (got[infinite] == expected[infinite]).all(), f"{what}: {got} instead of {expected}."
    got, expected = got[~infinite], expected[~infinite]
    assert np.isfinite(expected).all(), f"{what}: {expected} in float64."
    size = max(size, np.abs(expected).max(initial=1e-100))
    if size > float(info.max):
        return  # no number of this dtype
    assert np.isfinite(got).all(), f"{what}: {got} is not finite, expected {expected}."
    error = np.abs(got - expected).max(initial=0.0)
    accepted = tolerance * (float(info.eps) * size + float(info.smallest_normal))
    assert error <= accepted, f"{what}: {got} instead of {expected}, an error of {error / size:.1g}."


def _by_formula(case: Case, z):
    """Value and tangent, and the second derivative of s along d, by differences in many digits."""
    d = case.direction
    step = mpmath.mpf(10) ** -60 * max(map(abs, z[np.isfinite(z)]), default=1) or mpmath.mpf(10) ** -60

    def f(t):
        flat = np.array([mpmath.mpf(float(a)) + t * mpmath.mpf(float(b)) for a, b in zip(z, d, strict=True)], object)
        args, start = [], 0
        for leaf in case.row.point:
            args.append(flat[start : start + np.size(leaf)].reshape(np.shape(leaf)))
            start += np.size(leaf)
        results = case.row.formula(*args)
        results = results if isinstance(results, tuple) else (results,)
        return np.concatenate([np.asarray(y, object).ravel() for y in results])

    behind, here, ahead = f(-step), f(mpmath.mpf(0)), f(step)
    tangent = (ahead - behind) / (2 * step)
    second = np.dot(case.weights, ahead - 2 * here + behind) / step**2
    return tuple(np.asarray(x, object).astype(np.float64) for x in (here, tangent, second))


def _flat(leaves) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def _bits(n: int, factor: int, modulus: int) -> np.ndarray:
    """n numbers from 1/2 to 3/2 of both signs, which have five significant bits."""
    i = np.arange(n)
    return (0.5 + (factor * i % modulus) / 8 + (i % 3) / 16) * np.where(i % 2, -1.0, 1.0)
