"""Formulas of docstrings, which ``help`` shows as they are, as TeX and MathML.

A docstring writes ``$y_j = ∑_i x_i W_{ij} + b_j$``, in letters and signs of Unicode, and displays a formula below
``.. math::``, one equation on a line. Both are readable as text; the site converts them to TeX and then to MathML.

>>> tex("‖g‖^2 ≤ √(1 + ε) log n")
'\\\\Vert g\\\\Vert ^2 \\\\le \\\\sqrt{1 + \\\\varepsilon } \\\\log n'
"""

import re

LETTERS = dict(
    zip(
        "αβγδϵεζηθϑκλμνξπρστϕφχψωΓΔΘΛΞΠΣΦΨΩℓ",
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi pi rho sigma tau phi "
        "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell".split(),
        strict=True,
    )
)
SIGNS = {
    **{
        "∑": "sum",
        "∏": "prod",
        "∫": "int",
        "∂": "partial",
        "∇": "nabla",
        "∞": "infty",
        "⊙": "odot",
        "⊗": "otimes",
    },
    **{
        "∘": "circ",
        "·": "cdot",
        "×": "times",
        "±": "pm",
        "≤": "le",
        "≥": "ge",
        "≠": "ne",
        "≈": "approx",
        "∼": "sim",
    },
    **{
        "∝": "propto",
        "∈": "in",
        "→": "to",
        "←": "leftarrow",
        "↦": "mapsto",
        "≪": "ll",
        "≫": "gg",
        "∣": "mid",
    },
    **{
        "…": "dots",
        "⋯": "cdots",
        "⟨": "langle",
        "⟩": "rangle",
        "‖": "Vert",
        "⌊": "lfloor",
        "⌋": "rfloor",
    },
    **{
        "⌈": "lceil",
        "⌉": "rceil",
        "⊤": "top",
        "ᵀ": "^top",
        "⊕": "oplus",
        "⊥": "perp",
        "≡": "equiv",
        "∪": "cup",
    },
    **{"∩": "cap", "⊂": "subset", "∖": "setminus", "⋆": "star", "∧": "wedge"},
}
ACCENTS = {"\u0303": "tilde", "\u0304": "bar", "\u0302": "hat", "\u0307": "dot"}
FUNCTIONS = "log exp cos sin tan tanh sinh cosh max min det sup inf lim arg ln dim arctan arccos".split()
RELATION = re.compile(r"[=≤≥≈∼∝←→<>]|\\(?:le|ge|approx|sim|propto|leftarrow|gets|to)\b")


def in_roles(text: str) -> str:
    """Running text with the role of mathematics in place of dollars.

    >>> in_roles("for $n ≤ 2$ and ``$HOME``")
    'for :math:`n ≤ 2` and ``$HOME``'
    """
    parts = re.split(r"(``.+?``)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"\$([^$`]+)\$", r":math:`\1`", part) for part in parts[::2]]
    return "".join(parts)


def tex(text: str) -> str:
    """The TeX of a formula in Unicode; commands of TeX in it stay as they are."""
    text = _roots(text)
    for accent, command in ACCENTS.items():
        text = re.sub(rf"(\w){accent}", rf"\\{command}{{\1}} ", text)
    for sign, command in {**LETTERS, **SIGNS}.items():
        text = text.replace(
            sign, f"^\\{command[1:]} " if command[0] == "^" else f"\\{command} "
        )
    text = re.sub(r"(?<![\\A-Za-z])binom\((.+?), (.+?)\)", r"\\binom{\1}{\2}", text)
    text = re.sub(rf"(?<![\\A-Za-z])({'|'.join(FUNCTIONS)})(?![A-Za-z])", r"\\\1", text)
    words = r"(?<![\\A-Za-z{])([A-Za-z]*(?:Agg|Beta|Dense|MLP|Neigh|Proj|ReLU|Var)|argmin|conv|depth|diag|elu|features"
    words += r"|layers?|forward|reverse|product|mean|relu|sign|silu|softmax|tr|var)(?![A-Za-z])"
    return re.sub(words, r"\\mathrm{\1} ", text)


def lines(text: str) -> str:
    """The TeX of a displayed formula: one equation on a line; indented lines continue."""
    rows: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        if rows and line.startswith(" "):
            rows[-1] += f" {line.strip()}"
        else:
            rows.append(line.strip())
    found = [tex(row) for row in rows]
    if len(found) < 2:
        return "".join(found)
    aligned = [_align(row) for row in found]
    return r"\begin{align*}" + r"\\ ".join(aligned) + r"\end{align*}"


def _align(row: str) -> str:
    """An equation with the sign of alignment before its first relation, or before it all."""
    start = RELATION.search(_without_groups(row))
    place = start.start() if start else 0
    return f"{row[:place]}&{row[place:]}"


def _without_groups(row: str) -> str:
    """The text with spaces in place of what braces enclose: sums have relations below them."""
    while found := re.search(r"\{[^{}]*\}", row):
        row = row[: found.start()] + " " * len(found.group()) + row[found.end() :]
    return row


def _roots(text: str) -> str:
    """Square roots: ``√x`` and ``√(x + 1)``."""
    while "√" in text:
        start = text.rindex("√")
        end = start + 2
        if text[start + 1 : end] == "(":
            depth = 1
            while depth and end < len(text):
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            inside = text[start + 2 : end - 1]
        else:
            inside = text[start + 1 : end]
        text = f"{text[:start]}\\sqrt{{{inside}}}{text[end:]}"
    return text
