"""Reading jaxprs: the interpreter, and what is determined from a program before it runs.

Read `jaxprs` first: the one interpreter of jaxprs. `dependence` and `liveness` find what an output needs, `coloring`
the columns of a sparse matrix that can share a product; `linearization` and `propagation` transform programs, and
`order_of_products` the order of the operands of products; `arguments` checks functions and points.
"""
