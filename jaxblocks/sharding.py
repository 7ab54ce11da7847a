"""Which device holds which part of an array: rules over the paths of params, as shardings of JAX.

A mesh is a grid of devices with named axes. The batch is sharded along the first axis of the mesh; rules say how the
params are sharded, and without rules every device holds all of them::

    mesh = jax.make_mesh((4, 2), ("data", "model"))
    rules = [tensor_parallel("model"), fully_sharded("data")]
    fitted = fit(net, loss, optimizer, data, key=key, epochs=10, mesh=mesh, sharding=rules)

A rule is a dict from patterns over paths (those of `jaxblocks.select`) to ``PartitionSpec``s, or a function
``rule(path, shape, spec, mesh) -> spec``. Several rules are applied in turn, each to the result of the one before.

The shardings are automatic: XLA derives those of all other arrays, and inserts the communication. In a training step
and in evaluation the products of layers keep their inputs and outputs sharded by batch; in a program of your own they
do so under ``jax.set_mesh`` of a mesh with automatic axes. For a mesh with explicit axes, the default of
``jax.make_mesh``, rules give shardings with automatic ones, and `jaxblocks.training` computes with automatic ones.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxblocks.backend.varying import is_tracing
from jaxblocks.checks.errors import describe, require
from jaxblocks.checks.expectations import NonNegativeInt, checked
from jaxblocks.core.lazy import explain_missing_names
from jaxblocks.core.recording import recorded
from jaxblocks.core.selection import paths, select

__all__ = [
    "Rule",
    "batch_sharding",
    "fully_sharded",
    "mesh_of",
    "shardings",
    "tensor_parallel",
    "with_automatic_axes",
    "without_explicit_axes",
]
explain_missing_names(__name__)


Rule: TypeAlias = Mapping[str, PartitionSpec] | Callable[[str, tuple[int, ...], PartitionSpec, Any], PartitionSpec]
"""A dict from patterns to specs, or a function ``rule(path, shape, spec, mesh) -> spec``."""


@checked
def shardings(tree: PyTree, mesh: Any, rules: Rule | Sequence[Rule] = ()) -> PyTree:
    """The sharding of every array of a tree by rules over its paths, without allocating anything.

    Args:
        tree: params, as arrays or as their shapes (``jax.eval_shape(net.init, key, x)``).
        mesh: a ``jax.sharding.Mesh``, or an ``AbstractMesh``.
        rules: a rule or a list of rules. Arrays that no rule selects are replicated. As everywhere in JAX, the entries
            of a spec are the mesh axes of the first axes of an array; the params of a `Repeat` have one more axis in
            front.

    Returns:
        A tree of ``NamedSharding``s, for ``jax.device_put``, for ``out_shardings`` of ``jax.jit``, and for
        `load_checkpoint`.

    Raises:
        TypeError, ValueError: for a pattern that matches nothing, `tensor_parallel` for a net without transformer
            blocks, a spec with more entries than the array has axes, an axis that is not in the mesh or occurs twice,
            and a size that it does not divide; with the path.

    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jax.make_mesh((1,), ("model",))
    >>> params = jax.eval_shape(Dense(6).init, jax.random.key(0), jnp.zeros((2, 4)))
    >>> found = shardings(params, mesh, {"kernel": P(None, "model")})
    >>> tuple(found["kernel"].spec), tuple(found["bias"].spec)
    ((None, 'model'), ())
    >>> shardings(params, mesh, {"kernel": P(None, "modle")})
    Traceback (most recent call last):
    ...
    ValueError: shardings expected a spec that fits kernel, float32 (4, 6), and the mesh {'model': 1}, got \
P(None, 'modle') (Resource axis: modle of ...); correct the rule for this path, or use another mesh.
    """
    _check_mesh(mesh)
    leaves, structure = jax.tree.flatten(tree)
    leaves = [leaf if hasattr(leaf, "shape") else np.asarray(leaf) for leaf in leaves]  # numbers of Python
    names = paths(tree)
    specs = [PartitionSpec()] * len(leaves)  # replicated
    several: Sequence[Any] = rules if isinstance(rules, Sequence) and not isinstance(rules, str) else [rules]
    for rule in several:
        if isinstance(rule, Mapping):
            for pattern, spec in rule.items():
                # select raises an error where a pattern matches no path.
                chosen = jax.tree.leaves(select(tree, pattern))
                specs = [spec if selected else before for selected, before in zip(chosen, specs, strict=True)]
        else:
            _check_rule(rule)
            specs = [rule(name, leaf.shape, spec, mesh) for name, leaf, spec in zip(names, leaves, specs, strict=True)]
            made_by = getattr(getattr(rule, "call", None), "function", None)
            if names and getattr(made_by, "__name__", "") == "tensor_parallel":
                # From no spec, since an earlier rule may have given the same one.
                alone = [rule(name, a.shape, PartitionSpec(), mesh) for name, a in zip(names, leaves, strict=True)]
                expected = "a net with transformer blocks for tensor_parallel"
                repair = "leave it out, or use fully_sharded()"
                require(any(alone), expected, f"arrays such as {names[0]}", repair)
    for name, leaf, spec in zip(names, leaves, specs, strict=True):
        _check_spec(name, leaf, spec, mesh)
    mesh = _automatic(mesh)
    return jax.tree.unflatten(structure, [NamedSharding(mesh, spec) for spec in specs])


@recorded
@checked
def fully_sharded(axis: str = "data", *, min_size: NonNegativeInt = 4096) -> Callable:
    """The rule that shards every array along its largest axis that the mesh axis divides (ZeRO-3, FSDP).

    Each device holds a part of the params and of the optimizer's state. Where a layer is computed, its params are
    gathered, once forward and once backward, and their gradients are reduced. `jaxblocks.training.sharding_report`
    lists all of this communication.

    Args:
        axis: the mesh axis.
        min_size: arrays with fewer numbers stay as they are, replicated unless an earlier rule shards them.

    >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))
    >>> params = {
    ...     "kernel": jax.ShapeDtypeStruct((64, 128), "float32"),
    ...     "bias": jax.ShapeDtypeStruct((128,), "float32"),
    ... }
    >>> found = shardings(params, mesh, fully_sharded())
    >>> tuple(found["kernel"].spec), tuple(found["bias"].spec)
    ((None, 'data'), ())

    Source: Rajbhandari et al. 2020, ZeRO: memory optimizations toward training trillion parameter models,
    arXiv:1910.02054.
    """

    def rule(path, shape, spec, mesh):
        size = _size_of(axis, mesh)
        entries = _entries(spec, len(shape))
        # Axes that an earlier rule shards, such as `tensor_parallel`, are left to it.
        free = [i for i, entry in enumerate(entries) if not entry and shape[i] % size == 0]
        used = jax.tree.leaves(entries)  # names of mesh axes, also those in tuples
        if axis in used or math.prod(shape) < max(min_size, 1) or not free:
            return spec
        entries[max(free, key=lambda i: shape[i])] = axis
        return PartitionSpec(*entries)

    return rule


@recorded
@checked
def tensor_parallel(axis: str = "model") -> Callable:
    """The rule that splits attention and MLP of each `TransformerBlock` over the devices of a mesh axis (Megatron-LM).

    The maps into the heads (``query``, ``key``, ``value``) and into the hidden features (``up``, ``gate``) are split by
    their outputs, the maps back (``attention/out``, ``down``) by their inputs, so a block communicates twice in the
    forward pass. Where the axis divides the size of the vocabulary, the table ``tokens/embedding`` is split by its rows
    and the output layer ``out/kernel`` by its outputs. The rule fits all transformers of `jaxblocks.models`, stacked by
    `Repeat` or not. The number of heads (of keys and values) must be a multiple of the size of the axis, since one head
    is not split.

    >>> mesh = jax.sharding.AbstractMesh((2,), ("model",))
    >>> net = jaxblocks.models.TransformerMLP(8, 4)
    >>> params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((3, 4)))
    >>> found = shardings({"mlp": params}, mesh, tensor_parallel())
    >>> tuple(found["mlp"]["up"]["kernel"].spec), tuple(found["mlp"]["down"]["kernel"].spec)
    ((None, 'model'), ('model', None))

    Source: Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053.
    """

    def rule(path, shape, spec, mesh):
        size = _size_of(axis, mesh)
        # Padded, since a path may have fewer than three labels.
        block, part, name = ["", "", *path.split("/")][-3:]
        from_end = None
        # By output features: each device computes some of the heads, or of the hidden features, biases included.
        if (part in ("query", "key", "value") and block.endswith("attention")) or part in ("up", "gate"):
            from_end = 1
        # By input features: partial products are summed over devices, so that the bias (added once) stays whole.
        elif name == "kernel" and (part == "down" or (part == "out" and block.endswith("attention"))):
            from_end = 2
        # By rows, one part of the vocabulary on each device, where the devices divide it.
        elif (part, name) == ("tokens", "embedding") and shape[-2] % size == 0:
            from_end = 2
        elif path == "out/kernel" and shape[-1] % size == 0:
            from_end = 1
        if from_end is None:
            return spec
        entries = _entries(spec, len(shape))
        # Counted from the end, since `Repeat` adds a leading axis.
        entries[-from_end] = axis
        return PartitionSpec(*entries)

    return rule


@checked
def batch_sharding(mesh: Any) -> NamedSharding:
    """The sharding of a batch: its first axis along the first axis of the mesh.

    >>> tuple(batch_sharding(jax.make_mesh((1, 1), ("data", "model"))).spec)
    ('data',)
    """
    _check_mesh(mesh)
    return NamedSharding(_automatic(mesh), PartitionSpec(mesh.axis_names[0]))


def mesh_of(tree: PyTree) -> Mesh | None:
    """The mesh of several devices over which the arrays of a tree are sharded; ``None`` for arrays of one device.

    >>> mesh_of(jnp.zeros(3)) is None
    True
    """
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) and sharding.mesh.size > 1:
            return sharding.mesh
    return None


# ---- meshes and specs ------------------------------------------------------------------------


def with_automatic_axes(tree: PyTree) -> PyTree:
    """A tree whose arrays on meshes with explicit axes are on the same devices with automatic ones.

    While JAX traces a function the tree is returned as it is.

    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    >>> x = jax.device_put(jnp.zeros(3), NamedSharding(mesh, PartitionSpec("data")))
    >>> with_automatic_axes(x).sharding.mesh.axis_types
    (Auto,)
    """

    def placed(x):
        sharding = NamedSharding(_automatic(x.sharding.mesh), x.sharding.spec)
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        return jax.device_put(x, sharding)

    if not any(map(_is_explicit, jax.tree.leaves(tree))) or is_tracing():
        return tree  # the same object
    return jax.tree.map(lambda leaf: placed(leaf) if _is_explicit(leaf) else leaf, tree)


def _is_explicit(leaf) -> bool:
    sharding = None if isinstance(leaf, Tracer) else getattr(leaf, "sharding", None)
    return isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types


@contextlib.contextmanager
def without_explicit_axes() -> Iterator[None]:
    """The context in which the mesh of ``jax.set_mesh``, if it has explicit axes, has automatic ones.

    While JAX traces a function the mesh stays as it is, since JAX allows no change of it there.

    >>> with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))):
    ...     with without_explicit_axes():
    ...         jax.sharding.get_mesh().axis_types
    (Auto,)
    """
    if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types or is_tracing():
        yield
        return
    with jax.set_mesh(cast(Mesh, _automatic(jax.sharding.get_mesh()))):
        yield


def _check_mesh(mesh) -> None:
    repair = 'pass for instance jax.make_mesh((jax.device_count(),), ("data",))'
    require(isinstance(mesh, Mesh | AbstractMesh), "a mesh of devices", describe(mesh), repair, error=TypeError)


def _check_rule(rule: Any) -> None:
    repair = 'pass for instance {"**/kernel": PartitionSpec(None, "model")}'
    require(callable(rule), "rules that are dicts or functions", describe(rule), repair, error=TypeError)
    if getattr(rule, "makes_functions", False):
        name = getattr(rule, "__name__", "rule")
        require(False, "a rule", f"the function {name}, which makes one", f"call it: {name}()", error=TypeError)
    try:
        inspect.signature(cast(Callable, rule)).bind("path", (), PartitionSpec(), None)
    except TypeError as error:
        expected, repair = "a rule of four arguments", "write rule(path, shape, spec, mesh) -> spec"
        require(False, expected, f"{describe(rule)} ({error})", repair, error=TypeError)
    except ValueError:  # a function of C has no signature
        pass


def _automatic(mesh):
    """The same mesh with automatic axes."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _size_of(axis: str, mesh) -> int:
    if axis not in mesh.shape:
        listed = ", ".join(map(repr, mesh.axis_names))
        require(False, f"an axis of the mesh ({listed})", repr(axis), "pass the name of one of its axes")
    return mesh.shape[axis]


def _entries(spec: PartitionSpec, ndim: int) -> list:
    return [*spec, *[None] * (ndim - len(spec))]  # a spec may have fewer entries than the array has axes


def _check_spec(path: str, leaf, spec, mesh) -> None:
    """Raise an error that names the path for a spec that does not fit the array or the mesh."""
    repair = 'write for instance PartitionSpec(None, "model")'
    require(isinstance(spec, PartitionSpec), f"a PartitionSpec for {path}", spec, repair, error=TypeError)
    if len(spec) > len(leaf.shape):  # JAX accepts further entries that split nothing, until it places the array
        expected = f"a spec of at most {len(leaf.shape)} entries for {path}, {describe(leaf)}"
        kept = f"PartitionSpec{tuple(spec)[len(spec) - len(leaf.shape) :]}"
        require(False, expected, str(spec), f"end the rules with {{{path!r}: {kept}}}")
    try:
        NamedSharding(mesh, spec).shard_shape(leaf.shape)
    except Exception as error:  # of several kinds; JAX says what is wrong, but not for which array
        expected = f"a spec that fits {path}, {describe(leaf)}, and the mesh {dict(mesh.shape)}"
        require(False, expected, f"{spec} ({error})", "correct the rule for this path, or use another mesh")
