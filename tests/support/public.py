"""The modules whose names users import."""

import jaxblocks

_NAMES = (
    "activations ad backend datasets diffusion initializers inspection interop layers losses metrics models plotting "
    "probabilities tensors testing text theory training"
)
PUBLIC_MODULES = [jaxblocks, *(getattr(jaxblocks, name) for name in _NAMES.split())]
