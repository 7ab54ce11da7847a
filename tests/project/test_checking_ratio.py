"""The mathematics of a layer is what a reader sees first: lines of checks are counted against all other lines."""

import ast
import inspect

import jaxblocks as jb

FUNCTIONS = {  # the main layers, each with its function of arrays
    jb.Dense: jb.affine,
    jb.Dropout: jb.dropout,
    jb.LayerNorm: jb.layer_norm,
    jb.GroupNorm: jb.group_norm,
    jb.BatchNorm: jb.batch_norm,
    jb.Conv: jb.conv,
    jb.ConvTranspose: jb.conv_transpose,
    jb.MaxPool: jb.max_pool,
    jb.LSTMCell: None,
    jb.GRUCell: None,
    jb.Attention: jb.attention,
    jb.Embedding: jb.embed,
    jb.Serial: None,
}


def lines(nodes) -> set[int]:
    """The lines of some nodes."""
    return {i for node in nodes for i in range(node.lineno, node.end_lineno + 1)}


def only_checks(node) -> bool:
    """Whether a statement raises an error or does nothing."""
    if isinstance(node, ast.If | ast.For):
        return all(map(only_checks, [*node.body, *node.orelse]))
    call = node.value if isinstance(node, ast.Expr) else None
    name = ast.unparse(call.func).rpartition(".")[2].lstrip("_") if isinstance(call, ast.Call) else ""
    return isinstance(node, ast.Raise | ast.Assert) or name.startswith(("require", "check", "reject"))


def count(function: ast.FunctionDef) -> tuple[int, int]:
    """Lines of checks, with the assignments that only they read, and the other lines of the body."""
    body = function.body[ast.get_docstring(function) is not None :]
    if only_checks(ast.parse(f"{function.name}()").body[0]):
        return len(lines(body)), 0
    statements = [node for one in body for node in ast.walk(one) if isinstance(node, ast.stmt)]
    names = [node for one in body for node in ast.walk(one) if isinstance(node, ast.Name)]
    checks, before = lines(n for n in statements if only_checks(n)), set()
    while checks != before:
        before = set(checks)
        for assigned in (n for n in statements if isinstance(n, ast.Assign)):
            targets = {n.id for target in assigned.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            reads = {n.lineno for n in names if n.id in targets and isinstance(n.ctx, ast.Load)}
            if reads and reads <= checks:
                checks |= lines([assigned])
    return len(checks), len(lines(body) - checks)


def ratio_of(*functions) -> tuple[int, int]:
    """The two counts of some functions and of the private functions of their files that they call."""
    checks = others = 0
    for function in filter(None, functions):
        module = ast.parse(inspect.getsource(inspect.getmodule(inspect.unwrap(function))))
        defined = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}  # the last overload
        wanted, counted = [function.__name__], set()
        while wanted:
            name = wanted.pop()
            if name in defined and name not in counted:
                counted.add(name)
                more = count(defined[name])
                checks, others = checks + more[0], others + more[1]
                calls = (node.func for node in ast.walk(defined[name]) if isinstance(node, ast.Call))
                wanted += [f.id for f in calls if isinstance(f, ast.Name) and f.id.startswith("_")]
    return checks, others


def test_lines_of_checks_are_counted():
    source = """
def f(x, kind):
    letters = "ab"
    names = tuple(letters)
    require(kind in names, f"kind to be one of {names}")
    if x.ndim < 1:
        require(False, "an axis")
    y = x + 1
    return y
"""
    assert count(ast.parse(source).body[0]) == (5, 2)


def test_checks_are_less_than_a_third_of_the_mathematics():
    counts = {layer.__name__: ratio_of(layer, function) for layer, function in FUNCTIONS.items()}
    assert {name: found for name, found in counts.items() if found[0] > 0.6 * found[1]} == {}
    checks, others = map(sum, zip(*counts.values(), strict=True))
    assert checks <= 0.3 * others, f"{checks} lines of checks, {others} other lines: state shapes in the annotations"
