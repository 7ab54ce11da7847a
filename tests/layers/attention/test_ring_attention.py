"""Ring attention is attention: values and all derivatives, whatever the number of devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from jax.sharding import AxisType

import jaxblocks as jb
from jaxblocks.backend import linear_maps
from jaxblocks.layers import attention, ring_attention
from jaxblocks.sharding import shardings, tensor_parallel


def mesh_of_devices(*shape, names=("time",)):
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape), devices=devices)


def inputs(time, heads=4, kv_heads=2):
    rng = np.random.default_rng(0)
    shapes = (2, time, heads, 4), (2, time, kv_heads, 4), (2, time, kv_heads, 3), (2, time, heads, 3)
    return [rng.normal(size=shape).astype(jax.dtypes.canonicalize_dtype(float)) for shape in shapes]


@pytest.mark.parametrize(("devices", "causal"), [(3, True), (2, False)])
def test_values_and_derivatives_are_those_of_one_device(devices, causal):
    """Gradients, and with causal order their derivatives, in float64, with grouped heads, chunks, biases, masks."""
    with jax.enable_x64(True):
        q, k, v, weights = inputs(12)
        sink = np.array([0.5, -1.0, 0.0, 2.0])
        kept = jnp.asarray(np.random.default_rng(1).random(k.shape[:2]) < 0.8)
        segments = jnp.asarray(np.broadcast_to(np.arange(k.shape[1]) // 9, k.shape[:2]))
        bent = lambda scores, offset: scores + scores**2 * jb.alibi(*scores.shape[-3:], offset)[None]
        same = dict(causal=causal, bias=jb.alibi, segment_ids=segments, soft_cap=2.0, score_fn=bent)
        same = same if causal else {}
        one = lambda q, k, v, sink: attention(q, k, v, mask=kept[:, None, None], sink=sink, **same)
        ring = lambda q, k, v, z: ring_attention(q, k, v, axis_name="time", mask=kept, chunk=1, sink=z, **same)

        def all_of(f):
            """Outputs and gradients, and with causal order the derivatives of both along a direction."""

            def loss(*x):
                out = f(*x)
                return jnp.sum(jnp.sin(out) * weights), out

            directions = tuple(map(np.cos, (q, k, v, sink)))
            gradient = jax.grad(loss, (0, 1, 2, 3), has_aux=True)
            both = lambda x, directions: jax.jvp(gradient, x, directions) if causal else gradient(*x)
            return jax.jit(both)((q, k, v, sink), directions)

        expected = all_of(one)
        with jax.set_mesh(mesh_of_devices(devices)):
            found = all_of(ring)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, expected)


def test_gradients_in_half_precision_are_rounded_once():
    """Where one weight is near 1, its derivative is a difference of terms, of the keys of one and of all devices."""
    r = np.random.default_rng(1)
    q, k, v, w = (jnp.asarray(s * r.normal(size=(16, 2, 32)), jnp.bfloat16) for s in (8, 8, 1, 1))
    gradients = lambda f: jax.jit(
        jax.grad(lambda *x: jnp.sum(f(*x) * w.astype(x[0].dtype), dtype=jnp.float32), (0, 1, 2))
    )
    expected = gradients(attention)(*(x.astype(jnp.float32) for x in (q, k, v)))
    with jax.set_mesh(mesh_of_devices(2)):
        found = gradients(lambda *x: ring_attention(*x, axis_name="time"))(q, k, v)
    for got, wanted in zip(found, expected, strict=True):
        error = np.linalg.norm(got.astype(np.float32) - wanted) / np.linalg.norm(wanted)
        assert error < float(jnp.finfo(jnp.bfloat16).eps)


def test_parts_in_the_order_of_the_sequence():
    """Each device passes its part and gets the result of its part, in `jax.vmap` as in `jax.shard_map`."""
    q, k, v, _ = inputs(12)
    split = lambda x: np.stack(np.split(x, 3, axis=1))
    sink = np.array([0.5, -1.0, 0.0, 2.0], np.float32)
    ring = functools.partial(ring_attention, axis_name="time", causal=True, sink=sink)
    parts = jax.jit(jax.vmap(ring, axis_name="time"))(*map(split, (q, k, v)))
    expected = compiled(attention)(q, k, v, causal=True, sink=sink)
    np.testing.assert_allclose(np.concatenate(parts, 1), expected, rtol=1e-5, atol=1e-6)
    without_mesh = jax.jit(ring)(q, k, v, mask=np.ones((2, 1, 1, 12), bool))
    np.testing.assert_array_equal(without_mesh, expected)


def test_queries_without_keys_are_zero():
    """Also where some of the devices have only masked keys."""
    q, k, v, _ = inputs(8)
    mask = np.zeros((2, 8), bool)
    mask[0, :2] = True
    with jax.set_mesh(mesh_of_devices(4)):
        run = lambda q: ring_attention(q, k, v, axis_name="time", mask=mask)
        out, gradient = map(np.asarray, jax.jit(lambda q: (run(q), jax.grad(lambda q: jnp.sum(run(q) ** 2))(q)))(q))
    expected = compiled(attention)(q, k, v, mask=mask[:, None, None])
    np.testing.assert_allclose(out[0], expected[0], rtol=1e-5, atol=1e-6)
    assert not np.any(out[1]) and not np.any(gradient[1]) and np.any(gradient[0])


def test_a_layer_on_a_mesh_of_three_axes(monkeypatch):
    """Batch, heads and sequence in parts at once; no device gathers a sequence."""
    monkeypatch.setattr(linear_maps, "_on_one_device", lambda: False)
    layer = functools.partial(jb.Attention, 4, causal=True, positions=jb.rotary, use_sink=True)
    ring = layer(attention_fn=functools.partial(ring_attention, axis_name="time"))
    x = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)
    params = {"attention": jax.tree.map(lambda p: p / 4, drawn(ring, x))}
    gradient = lambda net: jax.jit(jax.value_and_grad(lambda params: jnp.sum(net.apply(params["attention"], x) ** 2)))
    value, expected = gradient(layer())(params)
    mesh = mesh_of_devices(2, 2, 2, names=("data", "time", "model"))
    with jax.set_mesh(mesh):
        program = gradient(ring).lower(jax.device_put(params, shardings(params, mesh, tensor_parallel()))).compile()
        found_value, found = program(jax.device_put(params, shardings(params, mesh, tensor_parallel())))
    np.testing.assert_allclose(found_value, value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    assert "collective-permute" in program.as_text() and "all-gather" not in program.as_text()


def test_arguments_that_do_not_fit_are_rejected(sentences):
    q, k, v, _ = map(jnp.asarray, inputs(12))
    ring = functools.partial(ring_attention, axis_name="time")
    mesh = jax.sharding.AbstractMesh((4,), ("time",), axis_types=(AxisType.Auto,))
    shape = lambda **options: jax.eval_shape(lambda: ring(q, k, v, **options))
    with jax.sharding.use_abstract_mesh(mesh):
        with pytest.raises(ValueError, match=r"an axis of the mesh \('time'\), got 'tim'"):
            jax.eval_shape(lambda: ring_attention(q, k, v, axis_name="tim"))
        with pytest.raises(ValueError, match="an even number of positions on each device.*; pad the sequence"):
            shape(causal=True)
        with pytest.raises(ValueError, match="a length that the 4 devices of 'time' divide.*pad the sequence"):
            jax.eval_shape(lambda: ring(q[:, :6], k[:, :6], v[:, :6]))
        longer = [jnp.pad(x, [(0, 0), (0, 4), (0, 0), (0, 0)]) for x in (q, k, v)]
        padded = jax.eval_shape(lambda: ring(*longer, causal=True))
    assert padded.shape == (2, 16, 4, 3)
    with pytest.raises(ValueError, match=r"a mask of keys, \(2, 12\) or \(2, 1, 1, 12\).*as bias"):
        ring(q, k, v, mask=jnp.ones((2, 4, 12, 12), bool))
    with pytest.raises(TypeError, match="ring_attention expected bias to be a function"):
        ring(q, k, v, bias=jnp.zeros((4, 12, 12)))
    assert jax.eval_shape(lambda: ring(q, k, v, bias=jb.alibi)).shape == (2, 12, 4, 3)  # as the errors advise
