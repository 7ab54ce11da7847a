"""The laws that every layer satisfies, as checks for your own layers."""

from jaxblocks.testing.laws import LAWS, Case, check_layer

__all__ = [
    "Case",
    "LAWS",
    "check_layer",
]
