# ruff: noqa: RUF001
"""The interactive page and the built site in headless Chromium: `make browser` runs these tests.

They need playwright and a Chromium, and the part about the site also the site that ``make docs`` builds.
"""

import importlib.util
import json
import os
import re
import shutil
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import ROOT

import jaxblocks as jb
from jaxblocks.ad import binomial_steps, chain_cost, chain_memory, cost_table, explore, optimal_order, trace_table
from jaxblocks.ad.page.exploration import CHAINS

SITE = ROOT / "docs" / "_build" / "html"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 820, 1440)


def _reason() -> str:
    if not os.environ.get("JAXBLOCKS_BROWSER"):
        return "tests in a browser are a group of their own: make browser"
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: make browser installs it"
    return "" if CHROMIUM else "no Chromium is installed: apt-get install chromium"


pytestmark = [
    pytest.mark.skipif(bool(_reason()), reason=_reason() or "-"),
    pytest.mark.filterwarnings("ignore"),  # of playwright
]
on_site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """A function that opens a file; at the end of the test the console must have shown no error."""
    errors, contexts = [], []

    def open_page(path, width=1440, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
        page.goto(f"file://{path}" if str(path).startswith("/") else str(path))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


# ---- three functions of our own, with counts by hand ----------------------------------------------


def waves(x, y):
    """Of 5 and 5 numbers: 5 sines, 5 products, 4 additions."""
    return jnp.sum(jnp.sin(x) * y)


ONE_TO_THREE = np.arange(1.0, 4.0, dtype=np.float32)


def square(w):
    """The square of w @ x, (4, 3) by (3,): 12 products, 12 additions, 4 squares, 3 additions."""
    return jnp.sum((w @ ONE_TO_THREE) ** 2)


def stack(x):
    """Two layers, 6 to 3 to 2."""
    with jax.named_scope("first"):
        h = jnp.tanh(jnp.ones((3, 6)) @ x)
    with jax.named_scope("second"):
        return jnp.ones((2, 3)) @ h


@pytest.fixture(scope="module")
def explored():
    x = jnp.linspace(0.1, 1.0, 5)
    return [
        explore(waves, x, x, argnums=(0, 1), repeats=3),
        explore(square, jnp.arange(12.0).reshape(4, 3) / 10, measure=False),
        explore(stack, jnp.arange(6.0) / 10, measure=False, name='<img src=x onerror="alert(1)">'),
    ]


@pytest.fixture(scope="module")
def page_file(explored, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    explored[0].save(path, *explored[1:])
    return path


def text(page, selector):
    return page.locator(selector).inner_text()


def set_widths(page, dims):
    """Bring the chain to a number of layers, and type its widths."""
    while page.locator(".width").count() > len(dims):
        page.click("#chain-remove")
    while page.locator(".width").count() < len(dims):
        page.click("#chain-add")
    for i, d in enumerate(dims):
        page.fill(f"#width-{i}", str(d))


def subscripted(formula):
    return formula.translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


# ---- the chain ----------------------------------------------------------------------------------


def check_chain(page, dims):
    best = optimal_order(dims)
    for mode in ("forward", "reverse", "best"):
        assert text(page, f"#chain-{mode}") == f"{chain_cost(dims, order=mode):,}"
        assert text(page, f"#chain-{mode}-memory") == f"{chain_memory(dims, order=mode):,}"
    assert text(page, "#chain-best-order") == subscripted(best.bracketing)


def test_the_presets_of_the_chain_show_the_numbers_of_python(opened, page_file):
    page = opened(page_file)
    for name, dims in CHAINS.items():
        page.click(f'button[data-chain="{name}"]')
        check_chain(page, dims)
    for dims in ((50, 1, 50, 50, 50), (7, 7, 7, 7), (3, 1, 4, 1, 5, 9, 2, 6)):
        set_widths(page, dims)
        check_chain(page, dims)


def test_the_chain_agrees_with_python_on_many_chains(opened, page_file):
    """Ties too: small widths have many of them."""
    page = opened(page_file)
    rng = np.random.default_rng(0)
    chains = [rng.integers(1, rng.choice([4, 30, 4096]), rng.integers(2, 10)).tolist() for _ in range(300)]
    shown = page.evaluate(
        """(chains) => chains.map((dims) => { const c = costsOf(dims);
           return [c.forward.cost, c.reverse.cost, c.best.cost, c.best.formula, crossover(dims)]; })""",
        chains,
    )
    for dims, (forward, reverse, cost, formula, crossing) in zip(chains, shown, strict=True):
        best = optimal_order(dims)
        assert (forward, reverse, cost, formula) == (
            best.forward,
            best.reverse,
            best.cost,
            subscripted(best.bracketing),
        )
        assert crossing == pytest.approx(best.crossover) if best.crossover is not None else crossing is None


def test_the_page_says_in_words_why_a_mode_is_cheaper(opened, page_file):
    page = opened(page_file)
    because = "Reverse mode is cheaper here because the output is narrower: 10 pullbacks against 784 pushforwards."
    assert because in text(page, "#chain-verdict")
    assert "Forward: 784 × 8,832 multiplications. Reverse: 10 × 108,544" in text(page, "#chain-verdict")
    page.click('button[data-chain="Decoder, wider to the output"]')
    assert "Forward mode is cheaper here because the input is narrower: 10 pushforwards" in text(page, "#chain-verdict")
    page.click('button[data-chain="Autoencoder with a bottleneck"]')
    assert "(J₄ J₃) (J₂ J₁) takes" in text(page, "#chain-verdict")
    assert "the bottleneck of width 8" in text(page, "#chain-verdict")
    page.click('button[data-chain="One output, yet forward is best"]')
    assert "Forward mode is cheaper here" in text(page, "#chain-verdict")


def test_dragging_the_output_through_the_crossing_of_the_modes(opened, page_file):
    """784-128-64-d: the modes cross at d = 110; below it reverse mode is cheaper."""
    page = opened(page_file)
    crossing = optimal_order((784, 128, 64, 10)).crossover
    assert f"the modes cross at {crossing:.4g}" in text(page, "#chain")
    page.locator(".chart").scroll_into_view_if_needed()
    box = page.locator(".chart").bounding_box()
    seen = []
    page.mouse.move(box["x"] + 0.12 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    for part in np.linspace(0.12, 0.95, 12):
        page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
        width = int(page.input_value("#width-3"))
        kind = page.locator("#chain-verdict").get_attribute("class").split()[-1]
        forward, reverse = (chain_cost((784, 128, 64, width), order=mode) for mode in ("forward", "reverse"))
        seen.append((width, kind))
        assert (text(page, "#chain-forward"), text(page, "#chain-reverse")) == (f"{forward:,}", f"{reverse:,}")
        assert (kind == "reverse") == (reverse < forward)
    page.mouse.up()
    assert [width for width, _ in seen] == sorted(width for width, _ in seen)
    assert {kind for _, kind in seen} == {"reverse", "forward"}


# ---- the graph and the costs -----------------------------------------------------------------------


def test_the_graph_steps_through_the_rows_of_the_trace(opened, page_file, explored):
    """Forward and backward with the keyboard alone; the bytes on the tape are those of the data."""
    page = opened(page_file)
    table = explored[0].trace
    again = trace_table(waves, jnp.linspace(0.1, 1.0, 5), jnp.linspace(0.1, 1.0, 5))
    assert list(map(str, table.adjoint)) == list(map(str, again.adjoint))
    rows = [*table.primal, *table.adjoint]
    for row in rows:
        page.keyboard.press("ArrowRight")
        assert str(row) in text(page, "#graph-now")
    assert text(page, "#graph-count") == f"Step {len(rows)} of {len(rows)}, backward"
    page.keyboard.press("ArrowLeft")
    assert str(rows[-2]) in text(page, "#graph-now")
    page.keyboard.press("Home")
    assert "Step 0" in text(page, "#graph-now")
    page.keyboard.press("End")
    alive = explored[0].data["levels"][0]["tapes"][0]["alive"]
    page.evaluate(
        "() => { document.querySelector('#graph-step').value = 5; "
        "document.querySelector('#graph-step').dispatchEvent(new Event('input')); }"
    )
    unit = explored[0].data["levels"][0]["forward"][4]["unit"]
    assert int(page.locator("#tape-sum").get_attribute("data-bytes")) == alive[unit]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_bill_shows_the_cost_table(opened, page_file, explored, number):
    page = opened(page_file)
    page.select_option("#function", str(number))
    for row in explored[number].table:
        shown = page.locator(f'#costs-rows tr[data-row="{row.name}"]')
        assert shown.locator('[data-cell="operations"]').inner_text() == f"{row.flops:,}"
    plan = explored[number].plan
    for mode, operations in plan.operations.items():
        cell = page.locator(f'#plan-costs tr[data-mode="{mode}"] [data-cell="operations"]')
        assert cell.inner_text() == f"{operations:,}"
    assert plan.reason in text(page, "#plan-verdict")


def test_counts_by_hand(opened, page_file):
    page = opened(page_file)
    counted = []
    for number in range(3):
        page.select_option("#function", str(number))
        counted.append(text(page, '#costs-rows tr[data-row="function"] [data-cell="operations"]'))
    assert counted == ["14", "31", str(2 * 18 + 3 + 2 * 6)]
    layers = page.locator("#costs-layers tbody tr")
    assert [layers.nth(i).get_attribute("data-layer") for i in range(2)] == ["first", "second"]
    page.select_option("#costs-derivative", "jacrev")
    costs = cost_table(stack, jnp.arange(6.0) / 10, rows="jacrev", measure=False)
    shown = [
        int(cell.replace(",", "")) for cell in page.locator('#costs-layers [data-cell="operations"]').all_inner_texts()
    ]
    assert sum(shown) == costs.jacrev.flops


def test_names_are_text(opened, page_file):
    page = opened(page_file)
    page.on("dialog", lambda dialog: pytest.fail("a name ran as a script"))
    page.select_option("#function", "2")
    assert page.locator('img[src="x"]').count() == 0
    assert "onerror" in page.locator("#function option").nth(2).inner_text()


def test_the_schedule_counts_its_steps(opened, page_file):
    page = opened(page_file)
    for length, snapshots in ((10, 3), (16, 2), (48, 6)):
        page.select_option("#checkpointing-length", str(length))
        page.select_option("#checkpointing-snapshots", str(snapshots))
        steps = f"{binomial_steps(length, snapshots):,}"
        assert text(page, "#checkpointing-steps") == text(page, "#checkpointing-so-far") == steps
    moves = page.evaluate(
        "() => JSON.parse(document.getElementById('data').textContent).schedules.map((s) => "
        "{ const { moves, kept } = movesOf(s); return [s.length, s.snapshots, "
        "moves.filter((m) => m.kind === 'back').map((m) => m.at), Math.max(...moves.map((m) => "
        "kept.filter((k) => k.from <= m.time && k.to > m.time).length))]; })"
    )
    for length, snapshots, reversed_steps, most in moves:
        assert reversed_steps == list(range(length))[::-1]
        assert most <= snapshots


# ---- keyboard, colors, widths -----------------------------------------------------------------------


def test_everything_is_reached_by_the_keyboard(opened, page_file):
    """Each control has a name and gets the focus; sliders move by their arrows."""
    page = opened(page_file)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, a[href], [tabindex]')].filter((e) =>
           !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
           .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id || document.activeElement.textContent.slice(0, 40)"))
    assert {
        "theme",
        "slider-0",
        "width-3",
        "graph-step",
        "graph-play",
        "function",
        "checkpointing-length",
        "tape",
    } <= reached
    page.focus("#slider-3")
    page.keyboard.press("ArrowRight")
    assert page.input_value("#width-3") == "11"
    page.focus("#graph-step")
    page.keyboard.press("ArrowRight")
    assert text(page, "#graph-count").startswith("Step 1 of")
    page.click("#graph-play")
    page.wait_for_function("() => /^Step [2-9]/.test(document.querySelector('#graph-count').textContent)")


CONTRAST = """() => {
  const light = (c) => { const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]); };
  const parse = (s) => { const c = (s.match(/[\\d.]+/g) || []).map(Number);
    return s.startsWith('rgb') ? c : [0, 0, 0, 0]; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest('script, style, option, :disabled')) continue;
    const svg = e instanceof SVGElement;
    const [a, b] = [light(parse(svg ? getComputedStyle(e).fill : getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([e.tagName, e.textContent.slice(0, 30), ratio]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_width_and_has_contrast(opened, page_file, width, scheme):
    page = opened(page_file, width, scheme)
    page.keyboard.press("End")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []


# ---- large functions ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """The page of a transformer of 48 layers."""
    block = jb.models.TransformerBlock(
        attention=jb.Attention(2, causal=True), mlp=jb.models.TransformerMLP(16, 8, activation=jb.gelu)
    )
    net = jb.Serial(jb.Dense(8), jb.Repeat(block, 48, checkpoint=None), jb.Dense(4))
    x = jnp.ones((6, 8))
    params = net.init(jax.random.key(0), x)
    path = tmp_path_factory.mktemp("transformer") / "page.html"
    exploration = explore(lambda p: jnp.mean(jnp.square(net.apply(p, x))), params, measure=False, name="transformer")
    exploration.save(path)
    return path, exploration


def test_a_transformer_of_48_layers_opens_in_two_seconds_and_steps_smoothly(opened, transformer):
    path, exploration = transformer
    page = opened("about:blank")
    start = time.perf_counter()
    page.goto(f"file://{path}")
    page.wait_for_selector("html[data-ready]")
    seconds = time.perf_counter() - start
    assert seconds < 2
    [level] = exploration.data["levels"]
    assert 48 <= len(level["nodes"]) <= 64
    assert page.locator(".node").count() == len(level["nodes"])
    assert page.evaluate("() => document.querySelectorAll('*').length") < 5000
    frame = page.evaluate(
        """() => { const start = performance.now();
           for (let i = 0; i < 60; i++) document.querySelector('#graph-next').click();
           document.body.getBoundingClientRect(); return (performance.now() - start) / 60; }"""
    )
    assert frame < 50  # milliseconds a step


# ---- the site -------------------------------------------------------------------------------------

SEARCHES = {
    "Dense": "reference/",
    "LayerNorm": "reference/",
    "attention": "reference/",
    "cost_table": "reference/",
    "jacobian_plan": "reference/",
    "trace_table": "reference/",
    "explore": "reference/",
    "hvp": "reference/",
    "Serial": "reference/",
    "LSTM": "reference/",
    "softmax_cross_entropy": "reference/",
    "lanczos": "reference/",
    "BatchNorm": "reference/",
    "ntk": "reference/",
    "Getting started": "guides/getting_started",
    "Debugging": "guides/debugging",
    "Performance": "guides/performance",
    "Bibliography": "bibliography",
    "Coming from PyTorch": "coming_from/pytorch",
    "Gallery": "gallery/index",
}


@on_site
@pytest.mark.parametrize("query", SEARCHES)
def test_search_finds_the_page_first_or_second(opened, query):
    page = opened(f"file://{SITE}/search.html?q={query.replace(' ', '+')}")
    page.wait_for_selector("#search-results li a", timeout=20_000)
    page.wait_for_timeout(300)
    first = [link.get_attribute("href") for link in page.locator("#search-results li > a").all()[:2]]
    wanted = SEARCHES[query]
    assert any(wanted in href for href in first), first
    if wanted == "reference/":  # a name: the link goes to its entry
        assert any(re.search(rf"[#.]{query}$", href) for href in first), first


@on_site
def test_no_page_of_the_site_has_an_error_in_the_console_or_a_dead_link(opened):
    """Every page opens; links inside the site are followed by their files, as check_site.py checks anchors too."""
    page = opened("about:blank")
    files = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
    dead = []
    for path in files:
        page.goto(f"file://{path}", wait_until="load")
        for href in page.evaluate("() => [...document.querySelectorAll('a[href]')].map((a) => a.href)"):
            if href.startswith("file://") and not Path(href[7:].partition("#")[0].partition("?")[0]).exists():
                dead.append((path.name, href))
    assert dead == []
    assert len(files) > 20


@on_site
def test_the_page_of_the_cost_of_derivatives_is_on_the_site(opened):
    page = opened(SITE / "index.html")
    page.click('a[href="ad_cost.html"]')
    page.wait_for_selector("html[data-ready]")
    check_chain(page, CHAINS["Classifier of digits"])
    data = json.loads(page.locator("#data").text_content())
    assert page.locator("#function option").count() == len(data["functions"]) >= 4


@on_site
@pytest.mark.parametrize("width", WIDTHS)
def test_the_pages_of_the_site_fit_the_screen(opened, width):
    for name in ("index.html", "guides/getting_started.html", "ad_cost.html"):
        page = opened(SITE / name, width)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, name
