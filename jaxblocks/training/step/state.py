"""The training state: one pytree of all values that a training step changes."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Key, PyTree

from jaxblocks.backend.jit_cache import kept
from jaxblocks.backend.platforms import platform
from jaxblocks.backend.varying import is_tracing
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import checked
from jaxblocks.checks.layer_inputs import reject_shapes
from jaxblocks.checks.values import has_values
from jaxblocks.core.keys import child_key
from jaxblocks.core.lifting import as_layer, declared_by, stateful
from jaxblocks.core.pairs import Layer, LayerLike, Params, State, StatefulLayer
from jaxblocks.core.selection import paths
from jaxblocks.core.shapes import as_inputs
from jaxblocks.sharding import Rule, batch_sharding, shardings
from jaxblocks.training.data.rows import check_devices
from jaxblocks.training.optimizers.ema import check_ema_is_last
from jaxblocks.training.optimizers.transformations import check_optimizer, is_optimizer

__all__ = [
    "TrainState",
    "as_typed_key",
    "check_no_carry",
    "check_not_donated",
    "check_opt_state",
    "copy_tree",
    "init_train_state",
    "train_state_shapes",
    "without_weak_types",
]


class TrainState(NamedTuple):
    """The training state, a pytree for ``jit``, ``vmap`` and checkpoints.

    `init_train_state` makes the first training state; each training step returns the next one.

    Args:
        params, state: the params and the state of the net; ``state`` is ``()`` for a net without state.
        opt_state: the state of the optimizer.
        key: the key of the whole run; step ``t`` draws from ``fold_in(key, t)``, so a run that is restarted at a step
            repeats it. It is stored as ``jax.random.key_data``, because ``jit`` dispatches typed keys slowly (a tiny
            step takes 1.27 times as long as one without a key, compared with 1.07 times for key data;
            `benchmarks/RESULTS.md`). A key of another generator than threefry2x32 and rbg, which its data would not
            identify, stays typed.
        step: the number of steps made, int32.
    """

    params: Params
    state: State
    opt_state: Any
    key: Array
    step: Array

    if not TYPE_CHECKING:  # a type checker reports such names itself

        def __getattr__(self, name):
            repairs = {
                "apply_gradients": "; write ts, loss = step(ts, x, y) with the step of train_step",
                "apply_fn": "; write net.apply(ts.params, x)",
            }
            words = f"'TrainState' object has no attribute {name!r}{repairs.get(name, '')}"
            raise AttributeError(words, name=name, obj=self)

    def __repr__(self):
        # A summary, since the repr of all arrays is pages long, and a donated array cannot be printed.
        at = self.step if has_values(self.step, 0) else describe(self.step)
        named = zip(self._fields[:3], self[:3], strict=True)
        return f"TrainState(step {at}, {', '.join(f'{name}: {_size_of(tree)}' for name, tree in named)})"


def _size_of(tree) -> str:
    sizes = [math.prod(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(tree)]
    arrays = f"{len(sizes)} array{'s' * (len(sizes) != 1)}"
    return f"{sum(sizes):,} numbers in {arrays}" if sizes else "empty"


@checked
def init_train_state(
    key: Key[Array, ""],
    net: LayerLike,
    optimizer: optax.GradientTransformation,
    *inputs: PyTree,
    mesh: Any = None,
    sharding: Rule | Sequence[Rule] = (),
    **side: Any,
) -> TrainState:
    """The training state at step 0: params (and state) from the net's ``init``, the optimizer's state, a key.

    Params are drawn from ``child_key(key, "init")`` and the key of training is ``child_key(key, "training")``
    (`jaxblocks.core.keys.child_key`), so the same key can be passed to ``init_train_state``, ``minibatches`` and
    ``train_val_test_split``.

    Args:
        inputs: one batch of the inputs of the net; arrays or ``jax.ShapeDtypeStruct``s, of which only shapes and dtypes
            are read.
        mesh: the devices that hold the training state, by default one device. No device holds more than its part, at
            no time.
        sharding: the rules for the params on the mesh (`jaxblocks.sharding`), by default replicated. The arrays of the
            optimizer's state that belong to params are sharded as these; everything else is replicated.
        side: side inputs that ``init`` of the net reads; ``train`` is passed automatically.

    Raises:
        TypeError: unless ``key`` is a typed key and ``optimizer`` an optimizer.
        ValueError: for rules that do not fit the params or the mesh, as in `jaxblocks.sharding.shardings`, and for
            rules without a mesh.

    >>> from jaxblocks.layers.dense import Dense
    >>> x = jnp.zeros((8, 2))
    >>> ts = init_train_state(jax.random.key(0), Dense(3), optax.adam(1e-3), x)
    >>> ts.params["kernel"].shape, ts.state, int(ts.step)
    ((2, 3), (), 0)
    """
    begin = _beginning(key, net, optimizer, inputs, side, nested=mesh is not None)
    data = jax.random.key_data(key)
    # One compilation for all params, and distinct buffers, since a shared buffer cannot be donated.
    if mesh is None:
        require(not sharding, "a mesh for the sharding", mesh, 'pass mesh=jax.make_mesh((8,), ("data",)) as well')
        return begin(data)
    check_devices(mesh)
    # NumPy data are the same in all processes; an array would belong to the devices of this process.
    return jax.jit(begin, out_shardings=_shardings(jax.eval_shape(begin, data), mesh, sharding))(np.asarray(data))


@checked
def train_state_shapes(
    net: LayerLike,
    optimizer: optax.GradientTransformation,
    *inputs: PyTree,
    mesh: Any,
    sharding: Rule | Sequence[Rule] = (),
    **side: Any,
) -> TrainState:
    """The shapes, dtypes and shardings of the training state that `init_train_state` makes; nothing is allocated.

    The result is a valid ``like`` of `load_checkpoint`, which reads each array to the devices that hold it. The key is
    that of the default generator.

    Args:
        net, optimizer, inputs, sharding, side: as in `init_train_state`.
        mesh: the devices, or a ``jax.sharding.AbstractMesh``.

    Raises:
        TypeError, ValueError: as `init_train_state`.

    >>> from jaxblocks.layers.dense import Dense
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> x = jax.ShapeDtypeStruct((8, 2), jnp.float32)
    >>> ts = train_state_shapes(Dense(3), optax.sgd(0.1), x, mesh=mesh)
    >>> ts.params["kernel"].shape
    (2, 3)
    """
    key = jax.random.key(0)
    ts = jax.eval_shape(_beginning(key, net, optimizer, inputs, side), jax.random.key_data(key))
    shape = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return jax.tree.map(shape, ts, _shardings(ts, mesh, sharding))


def _beginning(key, net, optimizer, inputs, side, *, nested: bool = False) -> Callable:
    """The function from the data of a key to the training state at step 0; ``nested``, it is called under ``jit``."""
    if not is_optimizer(optimizer) and any(map(is_optimizer, (net, *inputs))):
        repair = "pass the optimizer after the net, before the inputs"
        require(False, "an optimizer of optax", optimizer, repair, error=TypeError)
    check_optimizer(optimizer)
    reject_shapes(inputs)
    repair = "write init_train_state(...)._replace(params=params)"
    require("params" not in side, "side inputs of the net", "params", repair, error=TypeError)
    takes_train = "train" in declared_by(net.init) if isinstance(net, (Layer, StatefulLayer)) else False
    # Some inits read train (statistics, for example); a net is initialized as it is trained.
    side = {"train": True, **side} if takes_train else side
    inputs = jax.eval_shape(lambda inputs: inputs, inputs)  # shapes, with the dtypes that a jitted step will have
    leaves, structure = jax.tree.flatten(inputs)
    as_layer(net)  # raises if it is none
    static = net, optimizer, jax.random.key_impl(key), structure, tuple(leaves), tuple(side.items())
    if side.keys() <= {"train"} and not is_tracing():
        return _jitted_beginning(platform() == "cpu" and not nested, *static)
    return jax.jit(functools.partial(_begin, *static))  # which may hold traced values, so that it is not stored


def check_no_carry(net, optimizer, state, x) -> None:
    """Raise a ``ValueError`` where a part of the state belongs to the examples of the batch ``x``: carries, caches.

    These parts have another shape for another number of examples.
    """
    inputs, key = as_inputs(x), jax.random.key(0)
    rows = {jnp.shape(a)[0] for a in jax.tree.leaves(inputs)}
    if not any(rows.intersection(leaf.shape) for leaf in jax.tree.leaves(state)):  # init is not traced again
        return

    def of(inputs):
        return jax.eval_shape(_beginning(key, net, optimizer, inputs, {}), jax.random.key_data(key)).state

    twice = jax.tree.map(lambda a: jax.ShapeDtypeStruct((2 * a.shape[0], *a.shape[1:]), a.dtype), inputs)
    first = of(inputs)
    try:
        of_more = of(twice)
    except (TypeError, ValueError):  # of a net for this number of examples alone
        return
    both = zip(paths(first), jax.tree.leaves(first), jax.tree.leaves(of_more), strict=True)
    named = [path or "state" for path, leaf, other in both if leaf.shape != other.shape]
    repair = "leave out stateful=True and caches, or pass pieces of sequences in their order to train_step"
    expected = "state that belongs to no example, since batches are drawn in random order"
    require(not named, expected, f"a row for each example in {', '.join(named[:4])}", repair)


@kept(8)
def _jitted_beginning(quickly, *static):
    # It runs once. LLVM compiles random numbers in a third of the time at its first level; they are the same.
    options = {"xla_backend_optimization_level": 1} if quickly else None
    return jax.jit(functools.partial(_begin, *static), compiler_options=options)


def _begin(net, optimizer, implementation, structure, inputs, side, data):
    key = jax.random.wrap_key_data(data, impl=implementation)
    inputs = jax.tree.unflatten(structure, inputs)
    params, state = stateful(net).init(child_key(key, "init"), *inputs, **dict(side))
    for path, leaf in jax.tree.leaves_with_path((params, state)):
        expected = f"init to make arrays, at {'state' if path[0].idx else 'params'}{jax.tree_util.keystr(path[1:])}"
        require(hasattr(leaf, "dtype"), expected, leaf, f"write jnp.asarray({leaf!r}) there", error=TypeError)
    params, state, opt_state = without_weak_types((params, state, optimizer.init(params)))
    check_ema_is_last(opt_state)
    return TrainState(params, state, opt_state, _stored_key(child_key(key, "training")), jnp.zeros((), jnp.int32))


def _shardings(ts: TrainState, mesh, rules) -> TrainState:
    """The sharding of each array of a training state: the optimizer's arrays are sharded as the params of their paths.

    The path of such an array ends with the path of its param, and it has the shape of the param.
    """
    params = shardings(ts.params, mesh, rules)
    # By path and shape: a factored moment has the path of a param, but another shape, and is replicated.
    of_param = {
        (path, leaf.shape): sharding
        for path, leaf, sharding in zip(paths(ts.params), *map(jax.tree.leaves, (ts.params, params)), strict=True)
    }
    replicated = NamedSharding(batch_sharding(mesh).mesh, PartitionSpec())

    def of_optimizer(path, leaf):
        names = path.split("/")
        # The path of a moment ends with that of its param: "0/mu/dense/kernel" with "dense/kernel".
        ends = ["/".join(names[start:]) for start in range(len(names) + 1)]
        return next((of_param[end, leaf.shape] for end in ends if (end, leaf.shape) in of_param), replicated)

    leaves, structure = jax.tree.flatten(ts.opt_state)
    found = map(of_optimizer, paths(ts.opt_state), leaves)
    rest = jax.tree.map(lambda _: replicated, ts)
    return rest._replace(params=params, opt_state=jax.tree.unflatten(structure, found))


@jax.jit
def copy_tree(tree: Any) -> Any:
    """A copy of the tree with new buffers."""
    return jax.tree.map(jnp.copy, tree)


def without_weak_types(tree: Any) -> Any:
    """The same tree without weak types, which some optimizers return and which would cause another compilation."""
    return jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), tree)


_GENERATORS = {2: "threefry2x32", 4: "rbg"}  # by the number of words in the data of a key


def _stored_key(key):
    """The data of a key of these generators; a key of another generator unchanged."""
    return jax.random.key_data(key) if jax.random.key_impl(key) in _GENERATORS.values() else key


def as_typed_key(key):
    """The typed key of ``TrainState.key``."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key, impl=_GENERATORS[key.shape[-1]])


def check_not_donated(tree, name: str = "ts") -> None:
    """Raise a ``ValueError`` if a step has donated arrays of a training state, or of a part of it."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)]
    if any(a.is_deleted() for a in arrays):
        repair = "pass those that the step returned, or pass a copy to the step: jax.tree.map(jnp.copy, ts)"
        require(False, f"arrays with values in {name}", "some that a step has donated", repair)


def check_opt_state(optimizer, ts) -> None:
    """Raise a ``ValueError`` unless the state of the optimizer has the structure that this optimizer gives it."""
    expected = jax.tree.structure(jax.eval_shape(optimizer.init, ts.params))
    if expected != jax.tree.structure(ts.opt_state):
        repair = "pass a ts that init_train_state made with it, or ts._replace(opt_state=optimizer.init(ts.params))"
        require(False, "ts to hold the state of this optimizer", "that of another", repair)
    check_ema_is_last(ts.opt_state)
