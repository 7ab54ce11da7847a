"""Checkpointed scans: values, derivatives, numbers of steps and bytes."""

import functools
import math

import arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxblocks import Dense, LSTMCell, Recurrent, Repeat, Residual
from jaxblocks.ad import binomial_schedule, binomial_steps, equations, hvp, scan

close = functools.partial(arrays.close, tolerance=1e-11)

SCHEDULES = ["dots", "body", "sqrt", 1, 2, 100]


# ---- the schedule --------------------------------------------------------------------------


@functools.cache
def fewest_steps(snapshots, longest):
    """The optimum by dynamic programming over the position of the next snapshot."""
    if snapshots == 1:
        return [0, *(length * (length - 1) // 2 for length in range(1, longest + 1))]
    fewer, own = fewest_steps(snapshots - 1, longest), [0, 0]
    for length in range(2, longest + 1):
        own.append(min(m + fewer[length - m] + own[m] for m in range(1, length)))
    return own


@pytest.mark.parametrize("snapshots", [1, 2, 3, 12])
def test_binomial_steps_are_minimal(snapshots):
    best = fewest_steps(snapshots, 200)
    assert [binomial_steps(length, snapshots) for length in range(1, 201)] == best[1:]


def replay(schedule, length, snapshots):
    """Run the schedule on indices instead of carries; returns the number of forward steps."""
    store = {schedule.slot[0]: 0}
    steps = 0
    for i in reversed(range(length)):
        here = 0 if i == length - 1 else store[schedule.slot[schedule.begins[i]]]
        assert i == length - 1 or here == schedule.begins[i]
        while here < i:
            here, steps = here + 1, steps + 1
            if schedule.stored_for[here] == i:
                assert schedule.slot[here] < snapshots
                store[schedule.slot[here]] = here
    return steps


@pytest.mark.parametrize("snapshots", [1, 3, 12, 500])
def test_schedules_take_the_minimum_number_of_steps(snapshots):
    """Each snapshot is stored before it is read, and at most ``snapshots`` slots are used."""
    for length in [*range(1, 40), 100, 200]:
        schedule = binomial_schedule(length, snapshots)
        assert replay(schedule, length, snapshots) == binomial_steps(length, snapshots)


def test_published_optima():
    assert binomial_steps(10, 3) == 15
    assert binomial_steps(1024, 16) == 2956 == replay(binomial_schedule(1024, 16), 1024, 16)
    assert binomial_steps(math.comb(7, 3), 3) == 4 * 35 - math.comb(7, 4)  # r = 4 exactly


@pytest.mark.parametrize("function", [binomial_steps, binomial_schedule])
@pytest.mark.parametrize(("sizes", "words"), [((0, 2), "length .* >= 1"), ((4, 0), "snapshots .* >= 1")])
def test_wrong_lengths_are_rejected(function, sizes, words):
    with pytest.raises(ValueError, match=words):
        function(*sizes)


# ---- values and gradients ------------------------------------------------------------------


def example(length):
    """Differentiable arguments, and a loss whose scan has closures, integers, tuples and outputs."""
    draw = np.random.default_rng(0).normal
    args = {
        "shared": {"kernel": draw(size=(3, 3)), "bias": np.ones(3)},
        "init": draw(size=3),
        "xs": draw(size=(length, 3)),
    }

    def loss(args, table=None, scan=scan, **options):
        shared = args["shared"]
        table = jnp.arange(5) if table is None else table  # a closure that is not differentiated

        def body(carry, now):
            (h, n), (x, position) = carry, now
            h = jnp.tanh(shared["kernel"] @ h + x) + shared["bias"] * (n % 3).astype(h.dtype)
            return (h, n + table[position % 5]), {"sum": h.sum(), "count": n, "none": None}

        (h, n), ys = scan(body, (args["init"], jnp.asarray(0)), (args["xs"], jnp.arange(length)), **options)
        return (h**2).sum() + (ys["sum"] * jnp.arange(1.0, length + 1)).sum(), (n, ys)

    return loss, args


@pytest.mark.parametrize(("length", "reverse"), [(0, False), (1, True), (7, False), (9, True)])
def test_values_and_gradients_equal_those_of_the_plain_scan(length, reverse):
    """In float64, of carries, slices and closures; lengths are squares or leave a remainder."""
    with jax.enable_x64(True):
        loss, args = example(length)
        schedules = SCHEDULES if length == 7 else ["sqrt", 3]
        each = [functools.partial(scan, checkpoint=checkpoint) for checkpoint in schedules]
        of = lambda scan: jax.value_and_grad(functools.partial(loss, scan=scan, reverse=reverse), has_aux=True)
        expected, *found = jax.jit(lambda args: [of(scan)(args) for scan in (lax.scan, *each)])(args)
        for one in found:
            close(one, expected)


def test_recomputed_steps_draw_the_same_numbers():
    """Keys may be in the carry, the slices, the outputs and closures."""

    def loss(x, scan):
        closed_over = jax.random.key(9)

        def body(carry, now):
            h, key = carry
            x, own = now
            key, draw = jax.random.split(key)
            three = (draw, own, jax.random.fold_in(closed_over, 3))
            bits = sum(jax.random.bits(key, dtype=jnp.uint8).astype(x.dtype) for key in three)
            return (jnp.sin(h * x + bits), key), jax.random.fold_in(closed_over, bits.astype(jnp.uint32))

        keys = jax.random.split(jax.random.key(7), len(x))
        (h, key), ys = scan(body, (1.0, jax.random.key(8)), (x, keys))
        return h, (jax.random.key_data(key), jax.random.key_data(ys))

    x = np.linspace(0.5, 1.5, 5, dtype=np.float32)
    of = lambda scan: jax.value_and_grad(functools.partial(loss, scan=scan), has_aux=True)
    every = [of(functools.partial(scan, checkpoint="sqrt")), of(functools.partial(scan, checkpoint=2)), of(lax.scan)]
    *found, expected = jax.jit(lambda x: [f(x) for f in every])(x)
    for one in found:
        close(one, expected, tolerance=1e-6)


def products(x, **options):
    return scan(lambda h, x: (jnp.sin(h * x), None), 1.0, x, **options)[0]


def test_vmap_and_batches_of_integers():
    """vmap of the gradient, the gradient of a vmap, and batches of integers."""
    with jax.enable_x64(True):
        loss, args = example(7)
        batch, tables = (
            jax.tree.map(lambda a: np.stack([a, 0.5 * a]), args),
            np.stack([np.arange(5), np.arange(5, 0, -1)]),
        )
        value = lambda *args, **options: loss(*args, **options)[0]
        own, plain = functools.partial(value, checkpoint=3), functools.partial(value, scan=lax.scan)
        of = lambda f, batch, tables: (jax.vmap(jax.grad(f))(batch), jax.vmap(jax.grad(f), (None, 0))(args, tables))
        swapped = lambda f, batch: jax.grad(lambda batch: jax.vmap(f)(batch).sum())(batch)
        expected, found, other = jax.jit(lambda *x: (of(plain, *x), of(own, *x), swapped(own, x[0])))(batch, tables)
        close(found, expected)
        close(other, expected[0])


def test_second_derivatives():
    """Forward over reverse, as in hvp."""
    with jax.enable_x64(True):
        loss, args = example(7)
        of = lambda args, **options: hvp(lambda a: loss(a, **options)[0], args, args)
        every = [{"checkpoint": "sqrt"}, {"checkpoint": 3}, {"scan": lax.scan}]
        *found, expected = jax.jit(lambda args: [of(args, **options) for options in every])(args)
        for one in found:
            close(one, expected, tolerance=1e-10)


def test_forward_mode_and_reverse_over_reverse():
    """Also without jit, with and without snapshots."""
    with jax.enable_x64(True):
        jvp = lambda f, x: jax.jvp(f, (x,), (x,))
        of = lambda f, x: (jvp(f, x), jax.jacrev(jax.jacrev(f))(x))
        both = functools.partial(products, checkpoint="sqrt"), functools.partial(products, checkpoint=None)
        x = np.linspace(0.5, 1.5, 6)
        found, expected, gradient = jax.jit(lambda x: (*(of(f, x) for f in both), jax.grad(both[1])(x)))(x)
        close(found, expected)
        for checkpoint in ("sqrt", 3):
            close(jax.grad(functools.partial(products, checkpoint=checkpoint))(x), gradient)


def test_snapshots_reject_forward_mode():
    """Forward mode and reverse over reverse mode are rejected, as documented."""
    f, x = functools.partial(products, checkpoint=2), jnp.ones(6)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x)
    with pytest.raises(ValueError, match="Reverse-mode differentiation"):
        jax.jit(jax.jacrev(jax.jacrev(f)))(x)


def test_custom_rules_of_the_body_are_used():
    """A custom derivative rule inside the body is used."""

    @jax.custom_vjp
    def doubled(x):
        return x

    doubled.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))
    f = lambda x, checkpoint: scan(lambda h, x: (h + doubled(x), None), 0.0, x, checkpoint=checkpoint)[0]
    x = np.ones(4, np.float32)
    for gradient in jax.jit(lambda x: [jax.grad(f)(x, checkpoint) for checkpoint in ("sqrt", 2)])(x):
        close(gradient, 2 * x)


def test_types_equal_those_of_lax_scan():
    """A weakly typed carry, half precision, no slices, an empty carry, empty outputs."""

    def types(scan):
        with jax.numpy_dtype_promotion("standard"):
            weak = scan(lambda h, x: (h * x, h), 1.0, jnp.ones(4, jnp.float32))
        low = lambda x: scan(lambda h, x: (h * x + x, None), jnp.ones(2, jnp.bfloat16), x)[0].sum()
        counted = scan(lambda h, _: (h + 1, None), 0, length=5)
        empty = scan(lambda h, x: (h, x + 1), (), jnp.arange(4))
        return weak, jax.grad(low)(jnp.ones((6, 2), jnp.bfloat16)), counted, empty

    scans = functools.partial(scan, checkpoint="sqrt"), functools.partial(scan, checkpoint=2), lax.scan
    *each, expected = jax.jit(lambda: [types(scan) for scan in scans])()
    for found in each:
        assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(expected)]
        assert not found[0][0].weak_type
        close(*jax.tree.map(lambda x: np.asarray(x, np.float32), (found, expected)))
        assert found[2][1] is None and int(found[2][0]) == 5
        assert found[3][0] == () and found[3][1].tolist() == [1, 2, 3, 4]


def test_scans_over_a_mesh():
    """Inside shard_map, and with explicit axes: gradients of replicated and of sharded arrays."""
    draw = np.random.default_rng(0).normal
    kernel, init, xs = (draw(size=shape).astype(np.float32) for shape in ((3, 3), (2, 3), (7, 2, 3)))

    def gradients(kernel, init, xs, checkpoints=("sqrt", 3)):
        def f(kernel, xs, checkpoint):
            h, y = scan(lambda h, x: (jnp.tanh(h @ kernel + x), h.sum()), init, xs, checkpoint=checkpoint)
            return (h**2).sum() + y.sum()

        return [jax.grad(f, argnums=(0, 1))(kernel, xs, checkpoint) for checkpoint in checkpoints]

    expected = jax.jit(functools.partial(gradients, checkpoints=[None]))(kernel, init, xs) * 2
    spread = P(), P("batch"), P(None, "batch")
    auto = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(gradients, mesh=auto, in_specs=spread, out_specs=[spread[::2]] * 2)
    close(jax.jit(mapped)(kernel, init, xs), [tuple(each) for each in expected], tolerance=1e-5)
    explicit = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        placed = [jax.device_put(x, spec) for x, spec in zip((kernel, init, xs), spread, strict=True)]
        close(jax.jit(gradients)(*placed), expected, tolerance=1e-5)


# ---- steps and bytes -----------------------------------------------------------------------


def residual_tanh(length, width=64, batch=64):
    """A stack of residual tanh layers, and the shapes of its weights."""

    def loss(w, checkpoint=None):
        h = jnp.full((batch, width), 0.5)
        return jnp.sum(scan(lambda h, w: (h + jnp.tanh(h @ w), None), h, w, checkpoint=checkpoint)[0] ** 2)

    return loss, jax.ShapeDtypeStruct((length, width, width), jnp.float32)


def temporary(f, *args):
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("checkpoint", "products"), [(None, 3), ("dots", 3), ("body", 4), ("sqrt", 5)])
def test_number_of_matrix_products(checkpoint, products):
    """A gradient has three products per layer; "body" recomputes each step once, "sqrt" twice."""
    loss, w = residual_tanh(64)
    jaxpr = jax.make_jaxpr(jax.grad(loss), static_argnums=1)(w, checkpoint)
    dots = sum(times for equation, _, times in equations(jaxpr) if equation.primitive.name == "dot_general")
    assert dots == products * 64


@pytest.mark.parametrize(("length", "snapshots"), [(10, 3), (7, 1)])
def test_number_of_steps_run(length, snapshots):
    """The steps that run are the optimum, the last step (for the value), and one in each pullback."""
    ran = []

    def body(h, x):
        jax.debug.callback(lambda: ran.append(None))
        return jnp.sin(h * x), None

    f = lambda x, **options: scan(body, 1.0, x, **options)[0]
    jax.block_until_ready(jax.jit(f, static_argnames="checkpoint")(jnp.ones(length), checkpoint=snapshots))
    jax.effects_barrier()
    assert len(ran) == length  # without a gradient each step runs once
    ran.clear()
    jax.block_until_ready(jax.jit(jax.grad(f), static_argnames="checkpoint")(jnp.ones(length), checkpoint=snapshots))
    jax.effects_barrier()
    assert len(ran) == binomial_steps(length, snapshots) + 1 + length


def test_memory_at_depth_1024():
    """16 snapshots need less than 1/130 of the memory of the plain gradient, which stores three arrays per layer."""
    loss, w = residual_tanh(1024)
    bytes_of = lambda checkpoint: temporary(jax.grad(lambda w: loss(w, checkpoint)), w)
    one_carry = 64 * 64 * 4
    plain = 3 * 1024 * one_carry
    kept = 3 if jax.__version_info__ < (0, 11) else 2  # later versions store tanh(x) only, not 1 - tanh(x)
    assert bytes_of(None) == pytest.approx(kept * 1024 * one_carry, rel=0.01)
    assert bytes_of("dots") == pytest.approx(plain * 2 / 3, rel=0.01)
    assert bytes_of("body") == pytest.approx(plain / 3, rel=0.01)
    assert bytes_of("sqrt") < 0.064 * plain
    sixteen = bytes_of(16)
    assert 130 * sixteen < plain
    assert bytes_of(32) - sixteen == 16 * one_carry


def test_the_program_does_not_grow_with_the_length():
    size = lambda length: len(
        jax.jit(jax.grad(residual_tanh(length)[0]), static_argnums=1)
        .lower(residual_tanh(length)[1], 8)
        .as_text()
        .splitlines()
    )
    assert size(1024) == size(64)


# ---- layers --------------------------------------------------------------------------------


def test_repeat_stores_according_to_its_checkpoint_policy():
    """The memory decreases along a list of policies, at 64 layers."""
    x = jnp.ones((64, 32))

    def bytes_of(checkpoint):
        net = Repeat(Residual(Dense(32), jnp.tanh), 64, checkpoint=checkpoint)
        params = jax.eval_shape(net.init, jax.random.key(0), x)
        return temporary(jax.grad(lambda params: jnp.sum(net.apply(params, x) ** 2)), params)

    kept = [bytes_of(checkpoint) for checkpoint in (None, "body", "sqrt", 4)]
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 4
    assert kept[3] < kept[0] / 12


def test_recurrent_stores_according_to_its_checkpoint_policy():
    """Values and gradients in float64 equal those of the plain recurrence, also with a mask and in reverse."""
    with jax.enable_x64(True):
        x, mask = np.random.default_rng(0).normal(size=(2, 6, 3)), np.arange(6)[None] < np.array([[6], [4]])

        net = lambda checkpoint: Recurrent(LSTMCell(4, param_dtype=jnp.float64), reverse=True, checkpoint=checkpoint)
        params = drawn(net(None), x)
        f = lambda params, x, net: jnp.sum(net.apply(params, x, mask=mask) ** 2)
        of = lambda *x: [jax.value_and_grad(f, argnums=(0, 1))(*x, net(way)) for way in (3, None)]
        close(*jax.jit(of)(params, x))


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["some", 2.5, True, ["body"]])
def test_unknown_checkpoints_are_rejected(checkpoint, sentences):
    expected = "scan expected checkpoint to be 'dots' or 'body' or 'sqrt' or an integer >= 1 or a function or None"
    with pytest.raises((ValueError, TypeError), match=expected):
        scan(lambda h, x: (h, None), 0.0, jnp.ones(3), checkpoint=checkpoint)


def test_fewer_than_one_snapshot_is_rejected(sentences):
    with pytest.raises(ValueError, match="scan expected checkpoint to be .* an integer >= 1 .* got 0"):
        scan(lambda h, x: (h, None), 0.0, jnp.ones(3), checkpoint=0)
    assert float(scan(lambda h, x: (h + x, None), 0.0, jnp.ones(3), checkpoint=np.int64(1))[0]) == 3


@pytest.mark.parametrize("checkpoint", ["sqrt", 2])
def test_other_errors_come_from_lax_scan(checkpoint):
    def wide(h, x):
        return jnp.stack([h, x]), None

    with pytest.raises(TypeError, match="carry"):
        scan(wide, jnp.ones(()), jnp.ones(3), checkpoint=checkpoint)
    with pytest.raises(ValueError, match="size"):
        scan(lambda h, x: (h, None), 0.0, (jnp.ones(3), jnp.ones(4)), checkpoint=checkpoint)
    with pytest.raises(ValueError, match="length"):
        scan(lambda h, x: (h, None), 0.0, jnp.ones(3), length=4, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="length"):
        scan(lambda h, x: (h, None), 0.0, checkpoint=checkpoint)


def test_sqrt_stores_a_block_of_slices():
    """If a slice is large compared with the carry, "sqrt" stores a block of ``xs`` and of its gradient."""
    length, width = 64, 1024

    def loss(xs, checkpoint):
        step = lambda h, x: (jnp.tanh(h + h * x.sum()), None)
        return jnp.sum(scan(step, jnp.ones(4), xs, checkpoint=checkpoint)[0])

    def held(checkpoint):
        gradient = jax.grad(functools.partial(loss, checkpoint=checkpoint))
        return jax.jit(gradient).lower(jnp.ones((length, width))).compile().memory_analysis().temp_size_in_bytes

    assert held("sqrt") >= 8 * 4 * width > held("body")
