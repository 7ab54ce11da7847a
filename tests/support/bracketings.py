"""All bracketings of a chain of stages, by brute force: the reference of the planner of Jacobians."""

import numpy as np


def every_price(chain, first, last):
    """The prices of all bracketings of the stages from ``first`` to ``last - 1``; low-rank factors replace products."""
    if last - first == 1:
        return [chain.own[first]]
    factored = np.full((last, last + 1), np.inf) if chain.factored is None else chain.factored
    prices = []
    for k in range(first + 1, last):
        lefts, rights = every_price(chain, k, last), every_price(chain, first, k)
        m, middle, n = chain.sizes[last], chain.sizes[k], chain.sizes[first]
        if k == last - 1 and np.isfinite(factored[k, first]):
            prices += [b + factored[k, first] for b in rights]
        elif k == first + 1 and np.isfinite(factored[first, last]):
            prices += [a + factored[first, last] for a in lefts]
        else:
            prices += [a + b + chain.product(m, middle, n) for a in lefts for b in rights]
        prices += [b + sum(chain.forward[stage][first] for stage in range(k, last)) for b in rights]
        prices += [a + sum(chain.reverse[stage][last] for stage in range(first, k)) for a in lefts]
    return prices
