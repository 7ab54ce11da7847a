"""Select params by path: masks for freezing, weight decay, learning rates, casting, tying, counting.

The path of an array consists of its keys in the tree, joined by ``/``: ``"hidden/kernel"`` for layers with
names, ``"0/kernel"`` for layers by position. Inside a ``Repeat`` one path stands for all copies.

A mask is a tree of Python bools with the structure of the params, as optax and ``jax.tree.map`` take it::

    frozen = select(params, "encoder/**")     # to freeze batch statistics and dropout, too: Frozen(layer)
    optimizer = optax.chain(optax.adam(1e-3), optax.masked(optax.set_to_zero(), frozen))   # freezing
    optimizer = optax.adamw(1e-3, weight_decay=0.1, mask=select(params, "**/kernel"))      # weight decay
    penalty = 1e-4 * l2_penalty(params, mask=select(params, "**/kernel"))                    # the same, in the loss
    rates = jax.tree.map({True: "slow", False: "fast"}.get, frozen)                        # learning rates
    optimizer = optax.partition({"slow": optax.sgd(1e-4), "fast": optax.sgd(1e-2)}, rates)
    half = jax.tree.map(lambda p, chosen: p.astype(jnp.bfloat16) if chosen else p, params, frozen)     # casting
    count_params(jax.tree.map(lambda p, chosen: p if chosen else None, params, frozen))                # counting
"""

import difflib
import re
from typing import Any

import jax
from jaxtyping import PyTree

from jaxblocks.checks.errors import require
from jaxblocks.core.pairs import Layer, StatefulLayer, layer_name

__all__ = ["WILDCARD", "compiled_pattern", "layer_at", "paths", "select"]

WILDCARD = re.compile(r"\*\*|\*|\?|\[!?[^]]+\]")


def paths(params: PyTree) -> tuple[str, ...]:
    """The path of every array of a tree, in the order of ``jax.tree.leaves``.

    >>> paths(
    ...     {
    ...         "hidden": {"kernel": jnp.zeros((2, 5)), "bias": jnp.zeros(5)},
    ...         "out": (jnp.zeros(5),),
    ...     }
    ... )
    ('hidden/bias', 'hidden/kernel', 'out/0')
    """
    if isinstance(params, (Layer, StatefulLayer)):
        require(False, "params", params, "write paths(params), with the params of net.init(key, x)", error=TypeError)
    keyed, _ = jax.tree_util.tree_flatten_with_path(params)
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in keyed)


def layer_at(net: Any, place: Any) -> Any:
    """The layer at a place in a combinator: its position, its name, or its path.

    >>> layer_at(Serial(block=Serial(Dense(5), relu), out=Dense(1)), "block/0")
    Dense(5)
    """
    label, _, rest = place.partition("/") if isinstance(place, str) else (place, "", "")
    labels = {**dict(enumerate(net.inner)), **{str(own): own for own in net.inner}}
    position = label + len(net.inner) if isinstance(label, int) and label < 0 else label
    if isinstance(position, slice) or position not in labels:
        known = ", ".join(map(str, net.inner)) or "none; unpack the pair as init, apply = layer"
        repair = f"there is {known}"
        if isinstance(place, slice):
            repair = f"write Serial(*(net[i] for i in {range(*place.indices(len(net.inner)))!r}))"
        raise LookupError(f"{layer_name(net)} expected the place of a layer inside, got {place!r}; {repair}.")
    found = net.inner[labels[position]]
    return found[rest] if rest else found


def select(params: PyTree, *patterns: str) -> PyTree[bool]:
    """Select params by patterns: a tree of bools with the structure of ``params``.

    An array is selected if its path matches any of the patterns, and none of those that begin with ``!``. If all
    patterns begin with ``!``, all other arrays are selected. The order of patterns does not matter.

    Args:
        params: a tree of arrays (or of their shapes, as ``jax.eval_shape(net.init, ...)`` returns it).
        patterns: names joined by ``/``. ``*`` matches any one name, ``**`` zero or more names; ``b*s``, ``?`` and
            ``[ab]`` match as in file names, with case. The pattern must match the whole path: ``"**/kernel"`` matches
            all kernels, ``"kernel"`` only a kernel at the top level.

    Raises:
        ValueError: for a pattern that matches nothing, such as a misspelled name.

    >>> params = MLP(5, 1).init(jax.random.key(0), jnp.zeros(2))
    >>> select(params, "**/kernel")
    ({'bias': False, 'kernel': True}, (), {'bias': False, 'kernel': True})
    >>> select(params, "**/kernel", "!2/*")
    ({'bias': False, 'kernel': True}, (), {'bias': False, 'kernel': False})
    >>> select(params, "!**/bias") == select(params, "**/kernel")
    True
    >>> select(params[0], "kernle")
    Traceback (most recent call last):
    ...
    ValueError: select expected a pattern that matches a path, got 'kernle'; did you mean 'kernel'? The paths are \
bias, kernel.

    Source: Goodfellow, Bengio & Courville 2016, Deep learning, section 7.1; Krapac & Segvic, Deep feed-forward models
    (regularization: weights are penalized, offsets are not).
    """
    require(len(patterns) > 0, 'at least one pattern, such as "**/kernel"', "none", '"**" matches everything')
    for pattern in patterns:
        repair = "write select(params, *patterns) for a list of them"
        require(isinstance(pattern, str), 'strings such as "**/kernel" as patterns', pattern, repair, error=TypeError)
    known = paths(params)
    wanted = [_find(known, pattern) for pattern in patterns if not pattern.startswith("!")]
    # Exclusions apply after all inclusions, in any order.
    unwanted = [_find(known, pattern[1:]) for pattern in patterns if pattern.startswith("!")]
    chosen = [
        # Only exclusions: all others are chosen.
        (not wanted or any(found[i] for found in wanted)) and not any(found[i] for found in unwanted)
        for i in range(len(known))
    ]
    return jax.tree.unflatten(jax.tree.structure(params), chosen)


def compiled_pattern(pattern: str) -> re.Pattern:
    """A pattern of `select` as a regular expression for paths that end with a slash, with a group for each wildcard.

    >>> compiled_pattern("**/mlp/*").fullmatch("blocks/mlp/up/").groups()
    ('blocks/', 'up')
    """

    def one(piece: str) -> str:
        if not WILDCARD.fullmatch(piece):
            return re.escape(piece)
        if piece[0] != "[":
            return "([^/])" if piece == "?" else "([^/]*)"
        # In a class of characters a backslash and ^ have other meanings than in a glob.
        characters = re.sub(r"([\\^])", r"\\\1", piece[1:-1])
        return f"([^/{characters[1:]}])" if characters[0] == "!" and len(characters) > 1 else f"([{characters}])"

    parts = []
    for segment in pattern.split("/") if pattern else ():
        pieces = re.split(f"({WILDCARD.pattern})", segment)
        # Each label ends with a slash, so that ** (any number of whole labels, also none) needs no special case at the
        # ends.
        parts.append("((?:[^/]+/)*)" if segment == "**" else "".join(map(one, pieces)) + "/")
    try:
        return re.compile("".join(parts))
    except re.error as error:
        require(False, "a pattern of paths", f"{pattern!r}: {error}", "write [a-z] for a range of characters")
        raise AssertionError from None


def _find(known, pattern):
    """Whether each path matches; at least one must."""
    compiled = compiled_pattern(pattern)
    found = [compiled.fullmatch(f"{path}/" * bool(path)) is not None for path in known]  # an array alone has no path
    if any(found):
        return found
    expected = "a pattern that matches a path"
    require(len(known) > 0, "params with at least one array", "none", "pass those that net.init returns")
    listed = ", ".join(known) if len(known) <= 20 else f"{', '.join(known[:20])} and {len(known) - 20} more"
    better = _better(known, pattern)
    hint = f"did you mean {better!r}? " if better else ""
    require(False, expected, repr(pattern), f"{hint}{'The' if hint else 'the'} paths are {listed}")
    raise AssertionError


def _better(known, pattern):
    """A similar pattern that matches a path, or ``None``."""
    names = sorted({name for path in known for name in path.split("/")})
    words = pattern.strip("/").split("/")
    spelled = [w if any(compiled_pattern(w).fullmatch(f"{n}/") for n in names) else _nearest(w, names) for w in words]
    # In this order: slashes at the ends, dots as in PyTorch, misspelled labels; then parts of a path.
    for written in (pattern.strip("/"), pattern.replace(".", "/"), "/".join(spelled)):
        for candidate in (written, f"**/{written}", f"{written}/**", f"**/{written}/**"):
            if any(compiled_pattern(candidate).fullmatch(f"{path}/") for path in known):
                return candidate
    # A whole path that is spelled alike.
    near = difflib.get_close_matches(pattern, known, 1, 0.8)
    return near[0] if near else None


def _nearest(word, names):
    return word if word == "**" else next(iter(difflib.get_close_matches(word, names, 1)), word)
