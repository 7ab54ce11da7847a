"""All bracketings of a chain of stages, by brute force: the reference of the planner of Jacobians."""


def every_price(chain, first, last):
    """The prices of all bracketings of the stages from ``first`` to ``last - 1``."""
    if last - first == 1:
        return [chain.own[first]]
    prices = []
    for k in range(first + 1, last):
        lefts, rights = every_price(chain, k, last), every_price(chain, first, k)
        m, middle, n = chain.sizes[last], chain.sizes[k], chain.sizes[first]
        prices += [a + b + chain.product(m, middle, n) for a in lefts for b in rights]
        prices += [b + sum(chain.forward[stage][first] for stage in range(k, last)) for b in rights]
        prices += [a + sum(chain.reverse[stage][last] for stage in range(first, k)) for a in lefts]
    return prices
