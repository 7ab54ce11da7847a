"""jaxblocks."""
