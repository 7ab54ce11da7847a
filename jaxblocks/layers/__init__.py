"""Layers, one file per family; layers made of layers are in `jaxblocks.layers.combinators`."""
