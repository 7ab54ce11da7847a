r"""Gradients of one example as factors u and v at the sites of each parameter, and their products.

    G_b = sum_p u_bp v_bp^T                    for each of the matrices b in a parameter, see `sites`

`pullback_at` evaluates a function and returns the cotangents at the sites, from which `at_site` makes u and v. Norms
and inner products of gradients follow from them (`inner`), without the gradients themselves (`product`).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from jaxblocks.ad.per_example.sites import Reading, Site, fit
from jaxblocks.ad.programs.jaxprs import Step, dtype_of, interpret, interpret_scan, shape_of
from jaxblocks.backend.sliding_windows import slices_of_entries
from jaxblocks.backend.varying import varying_like

__all__ = ["Factors", "at_site", "at_site_of_each", "inner", "inner_and_bound", "product", "pullback_at"]


class Factors(NamedTuple):
    """The factors of a gradient at one site: u, (b, p, c) or row indices (b, p), and v, (e, b, p, n)."""

    u: Any
    v: Any


def pullback_at(reading: Reading, by_sites: Sequence[int], leaves: Sequence, inputs: Sequence):
    """The outputs of a function for one example, its pullback, and the other operands at the sites of some leaves.

    Args:
        reading: of the function.
        by_sites: the leaves (by index) whose sites are used; the others are differentiated directly.
        leaves, inputs: flat lists of the arrays of the parameters and of the example.

    Returns:
        ``(outputs, pullback, records)``. The pullback returns the cotangents at the sites, by path, and the
        gradients of the other leaves, by index; the records are further inputs of `at_site`.
    """
    sites = [site for leaf in by_sites for site in reading.sites[leaf]]
    wanted: dict[tuple, list[Site]] = {}
    for site in sites:
        wanted.setdefault(site.path, []).append(site)
    scalars = {path: operand for site in sites for path, operand, _ in site.view.scales}
    inside = {path[:depth] for path in [*wanted, *scalars] for depth in range(1, len(path))}
    zeros = {}
    for path, [site, *_] in wanted.items():
        out, lengths = site.equation.outvars[0], [length for length, _ in site.view.loops]
        # The cotangent of a zero that is added to the product is the factor v.
        zeros[path] = varying_like(jnp.zeros((*lengths, *shape_of(out)), dtype_of(out)), out.aval)
    # Leaves with sites are constants of this program: their gradients follow from the factors.
    others = {i: leaf for i, leaf in enumerate(leaves) if i not in by_sites}

    def run(zeros, others):
        values = [others.get(i, leaf) for i, leaf in enumerate(leaves)]
        recorder = _Recorder(_Wanted(wanted, inside, scalars), zeros)
        outputs = recorder.run(reading.closed_jaxpr, [*values, *inputs])
        return outputs, recorder.records

    return jax.vjp(run, zeros, others, has_aux=True)


class _Wanted(NamedTuple):
    """Paths of equations: the products of the sites, the equations around them, and those of a scale (its operand)."""

    sites: dict[tuple, list[Site]]
    inside: set[tuple]
    scalars: dict[tuple, int]


class _Recorder:
    """Evaluates a jaxpr, adds a zero to each wanted product and records its other operand."""

    def __init__(self, wanted: _Wanted, zeros: dict):
        self.wanted, self.zeros = wanted, zeros
        self.records: dict = {}
        self.scalars: dict = {}

    def run(self, closed_jaxpr: ClosedJaxpr, values: Sequence, around: Step | None = None) -> list:
        return interpret(closed_jaxpr, values, self.rule, opens=lambda step: False, around=around)

    def rule(self, step: Step) -> list:
        path, wanted = step.path, self.wanted
        if path in wanted.scalars:
            self.scalars[path] = step.operands[wanted.scalars[path]]
        if path not in wanted.inside:
            results = step.evaluate()
        elif step.name == "scan":
            results = self.scan(step)
        else:
            results = self.run(step.body, step.operands, around=step)
        if path in wanted.sites:
            results = [results[0] + self.zeros[path]]
            self.records[path] = {
                (site.operand, site.view.scales): _record(site, step.operands, self.scalars)
                for site in wanted.sites[path]
            }
        return results

    def scan(self, step: Step) -> list:
        """The same scan, with separate zeros and records for each iteration."""
        path = step.path

        def run(body, operands, zeros):
            recorder = _Recorder(self.wanted, zeros)
            return recorder.run(body, operands, around=step), recorder.records

        own = {place: zero for place, zero in self.zeros.items() if place[: len(path)] == path}
        results, records = interpret_scan(step, run, own)
        self.records.update(records)
        return results


def _record(site, operands, scalars):
    # The derivative with respect to the parameter has the scalars between it and the product as factors.
    scale = jnp.ones((), dtype_of(site.equation.outvars[0]))
    for path, _, multiplies in site.view.scales:
        value = jnp.asarray(scalars[path]).astype(scale.dtype)
        scale = scale * value if multiplies else scale / value
    return (operands[1 - site.operand], scale) if site.view.scales else (operands[1 - site.operand],)


def at_site(site: Site, records: dict, cotangents: dict, dtype) -> Factors:
    """The factors, in one dtype, of one example's gradient at a site, from its record and the cotangent there."""
    other, *scale = records[site.path][site.operand, site.view.scales]
    v = cotangents[site.path]
    layout = {"dense": _dense_factors, "convolution": _convolution_factors, "rows": _rows_factors}[site.kind]

    def one(other, scale, v):
        u, v = layout(site, other, v)
        for factor in scale:
            v = v * factor
        return u if site.kind == "rows" else u.astype(dtype), v.astype(dtype)

    for _ in site.view.loops:
        # Each enclosing scan stacks its iterations on a leading axis.
        one = jax.vmap(one)
    u, v = one(other, scale, v)  # (*loops, b, p, c), (*loops, b, p, n)
    return Factors(_gather_loops(site, u), _gather_loops(site, v)[None])


def at_site_of_each(site: Site, records: dict, cotangents: dict, dtype) -> Factors:
    """The same for several cotangents of one example: u is that of all, and v has them as its axis e."""
    of_one = functools.partial(at_site, site, records, dtype=dtype)
    u, v = jax.vmap(of_one, out_axes=Factors(None, 0))(cotangents)  # v (e, 1, b, p, n)
    return Factors(u, v[:, 0])


def _gather_loops(site, x):
    """Move the axes of loops with separate weights to b, those of loops with shared weights to p."""
    depth, shape = len(site.view.loops), x.shape
    own = [i for i, (_, stacked) in enumerate(site.view.loops) if stacked]
    shared = [i for i in range(depth) if i not in own]
    x = x.transpose(*own, depth, *shared, *range(depth + 1, x.ndim))
    b, p = math.prod(shape[i] for i in [*own, depth]), math.prod(shape[i] for i in [*shared, depth + 1])
    return x.reshape(b, p, *shape[depth + 2 :])


def _dense_factors(site, other, v):
    contracted, batch = site.equation.params["dimension_numbers"]
    here, there = site.operand, 1 - site.operand
    b, c, n = site.orders
    shape = site.shape
    batch_there = [batch[there][batch[here].index(axis)] for axis in b]
    contracted_there = [contracted[there][contracted[here].index(axis)] for axis in c]
    free = [axis for axis in range(other.ndim) if axis not in batch_there + contracted_there]
    own_free = [axis for axis in range(len(shape)) if axis not in b + c]
    sizes = [math.prod(shape[axis] for axis in axes) for axes in (b, c, n)]
    # The window of the parameter, in an operand that is concatenated from several arrays.
    for axis, (start, length) in enumerate(site.view.window):
        whole = shape_of(site.equation.invars[here])[axis]
        if length == whole:
            continue
        if axis in c:
            other = jax.lax.slice_in_dim(other, start, start + length, axis=contracted_there[c.index(axis)])
        else:
            if axis in b:
                other = jax.lax.slice_in_dim(other, start, start + length, axis=batch_there[b.index(axis)])
                place = batch[here].index(axis)
            else:
                place = len(b) + (0 if here == 0 else len(free)) + own_free.index(axis)
            v = jax.lax.slice_in_dim(v, start, start + length, axis=place)
    positions = math.prod(other.shape[axis] for axis in free)
    u = other.transpose(*batch_there, *free, *contracted_there).reshape(sizes[0], positions, sizes[1])
    # The product's axes: batch, the left operand's free ones, the right one's.
    first = len(b) + (0 if here == 0 else len(free))
    places = [first + own_free.index(axis) for axis in n]
    others = [axis for axis in range(len(b), v.ndim) if axis not in places]
    v = v.transpose(*(batch[here].index(axis) for axis in b), *others, *places)
    return u, v.reshape(sizes[0], positions, sizes[2])


def _convolution_factors(site, image, v):
    params, kernel = site.equation.params, shape_of(site.equation.invars[1])
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    image = image.transpose(numbers.lhs_spec)  # (batch, channels, *space)
    v = v.transpose(numbers.out_spec)
    taps = [kernel[axis] for axis in numbers.rhs_spec[2:]]
    holes = [
        (before, after, dilation - 1)
        for (before, after), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
    ]
    image = jax.lax.pad(image, jnp.zeros((), image.dtype), [(0, 0, 0), (0, 0, 0), *holes])
    # One strided slice for each tap: the entries that it multiplies, at all positions.
    geometry = [(1, 1, *each) for each in (taps, params["window_strides"], params["rhs_dilation"])]
    patches, space = [*slices_of_entries(image, *geometry)], v.shape[2:]
    u = jnp.stack(patches, axis=2)  # (batch, channels, taps, *space)
    batch, channels, size = u.shape[0], u.shape[1], math.prod(space)
    u = u.reshape(batch, groups, channels // groups, len(patches), size).transpose(1, 0, 4, 2, 3)
    features = v.shape[1] // groups
    v = v.reshape(batch, groups, features, size).transpose(1, 0, 3, 2)
    return (
        u.reshape(groups, batch * size, (channels // groups) * len(patches)),
        v.reshape(groups, batch * size, features),
    )


def _rows_factors(site, indices, v):
    numbers, shape = site.equation.params["dimension_numbers"], shape_of(site.equation.invars[0])
    [axis] = numbers.start_index_map
    offset = numbers.offset_dims
    v = v.transpose(*(a for a in range(v.ndim) if a not in offset), *offset)
    indices = indices.reshape(1, -1)
    v = v.reshape(1, indices.size, -1)
    clipped = jnp.clip(indices, 0, shape[axis] - 1)
    if site.equation.params["mode"] != jax.lax.GatherScatterMode.CLIP:  # a row outside the table has no gradient
        v = jnp.where((indices == clipped)[..., None], v, 0)
    return clipped, v


def product(site: Site, own: Factors):
    """The gradient itself, from its factors: (e, b, c, n)."""
    if own.u.ndim == 3:
        return jnp.einsum("bpc,ebpn->ebcn", own.u, own.v)
    rows = jnp.zeros((*own.v.shape[:2], site.sizes[2], own.v.shape[3]), own.v.dtype)
    # A row that is read several times has the sum of its cotangents.
    add = jax.vmap(lambda rows, u, v: rows.at[u].add(v))  # over b
    return jax.vmap(add, in_axes=(0, None, 0))(rows, own.u, own.v)


def inner(one: Site, left: Factors, other: Site, right: Factors, *, through: bool = False):
    """The inner product of two gradients of one leaf, from their factors, summed over e.

    With ``through`` the sums over the positions are computed one after the other, which is cheaper for short v.
    """
    if through and fit(one, other) == "alike":
        weights = _dots(left.u, right.u).astype(left.v.dtype)  # (b, p, q)
        return jnp.sum(left.v * jnp.einsum("bpq,ebqn->ebpn", weights, right.v))
    return inner_and_bound(one, left, other, right)[0]


def inner_and_bound(one: Site, left: Factors, other: Site, right: Factors):
    """The inner product of two gradients of one leaf, and the sum of its terms without signs."""
    how = fit(one, other)
    if how == "apart":
        return (jnp.zeros((), left.v.dtype),) * 2
    if how == "swapped":
        terms = _dots(left.u, right.v) * _swap(_dots(right.u, left.v))
    else:
        weights = _dots(left.u, right.u).astype(left.v.dtype)  # (b, p, q)
        terms = weights * jnp.einsum("ebpn,ebqn->bpq", left.v, right.v)
    return jnp.sum(terms), jnp.sum(jnp.abs(terms))


def _swap(x):
    return jnp.swapaxes(x, -1, -2)


def _dots(left, right):
    """Products of u (b, p, c) or (b, p) with u (b, q, c) or (b, q), or with v (e, b, q, n)."""
    if right.ndim == 4:
        if left.ndim == 3:
            return jnp.einsum("bpk,ebqk->ebpq", left, right)
        chosen = jax.vmap(lambda u, v: v[..., u], in_axes=(0, 1), out_axes=1)(left, right)  # (e, b, q, p)
        return _swap(chosen)
    if left.ndim == right.ndim == 3:
        return jnp.einsum("bpk,bqk->bpq", left, right)
    if left.ndim == right.ndim == 2:
        return left[:, :, None] == right[:, None, :]
    rows, dense = (left, right) if left.ndim == 2 else (right, left)
    chosen = jax.vmap(lambda u, v: v[:, u])(rows, dense)  # (b, dense, rows)
    return _swap(chosen) if left.ndim == 2 else chosen
