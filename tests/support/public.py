"""The modules whose names users import, their functions, and the parameters of these."""

import inspect

import jaxblocks
from jaxblocks.checks.annotations import union_members

_NAMES = (
    "activations ad backend datasets diffusion initializers inspection interop layers losses metrics models plotting "
    "probabilities tensors testing text theory training"
)
PUBLIC_MODULES = [jaxblocks, *(getattr(jaxblocks, name) for name in _NAMES.split())]


def functions():
    """Each public function and builder of the library once, by its path."""
    found = {}
    for module in PUBLIC_MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            of_jax = inspect.isfunction(value) and inspect.unwrap(value).__module__.startswith("jax.")
            if inspect.isfunction(value) and value.__module__.startswith("jaxblocks") and not of_jax:
                found.setdefault(value, f"{module.__name__}.{name}")
    return {path: function for function, path in found.items()}


def parameters():
    """(path, function, name, the members of its annotation, whether None is allowed) of each annotated parameter."""
    for path, function in functions().items():
        for p in inspect.signature(function, eval_str=True).parameters.values():
            if p.annotation is not p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                yield path, function, p.name, union_members(p.annotation)
