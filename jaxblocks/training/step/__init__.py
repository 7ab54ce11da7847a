"""One training step: the state, the objective, and the step itself.

Read `step` first. `state` is the pytree that a step changes, `objective` the loss as a function of params, and
`accumulation` the same from parts of a batch.
"""
