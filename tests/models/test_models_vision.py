"""Models of images and graphs: published numbers of params, logits of PyTorch nets with the same weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks.ad.counting import equations
from jaxblocks.core import StatefulLayer
from jaxblocks.core.lifting import side_inputs
from jaxblocks.layers.graph import Graph, adjacency_graph, batch_graphs
from jaxblocks.models import (
    CLIP,
    VGG,
    ConvNeXt,
    GraphClassifier,
    LeNet5,
    MLPMixer,
    ResNet,
    UNet,
    ViT,
    readout,
    time_features,
)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is the reference here; install the parity extra")


def shapes_of(net, *inputs, **side):
    """The shapes of the result of init; inputs may be shapes."""
    inputs = [jax.ShapeDtypeStruct(x, jnp.float32) if type(x) is tuple else x for x in inputs]
    return jax.eval_shape(functools.partial(net.init, **side), jax.random.key(0), *inputs)


def drawn(shapes):
    """Params of these shapes without compiling init: normal random numbers, and zeros for integers."""
    rng = np.random.default_rng(2)
    draw = lambda leaf: 0.5 * rng.normal(size=leaf.shape) if leaf.dtype == jnp.float32 else np.zeros(leaf.shape)
    return jax.tree.map(lambda leaf: draw(leaf).astype(leaf.dtype), shapes)


def number_of_params(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


# ---- published numbers of params ----------------------------------------------------------------

PUBLISHED = {
    "LeNet-5": (LeNet5(), (28, 28, 1), 61_706),
    "ResNet-18": (ResNet(18), (1, 224, 224, 3), 11_689_512),
    "ResNet-50-C": (ResNet(50, stem="deep"), (1, 224, 224, 3), 25_576_264),
    "ResNeXt-50 32x4d": (ResNet(50, groups=32, bottleneck_width=128), (1, 224, 224, 3), 25_028_904),
    "VGG-16, batch norm": (VGG(16, batch_norm=True), (224, 224, 3), 138_365_992),
    "ViT-B/16": (ViT(), (224, 224, 3), 86_567_656),
    "ConvNeXt-T": (ConvNeXt(), (224, 224, 3), 28_589_128),
    "Mixer-B/16": (MLPMixer(), (224, 224, 3), 59_880_472),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_number_of_params_is_as_published(name):
    net, shape, published = PUBLISHED[name]
    made = shapes_of(net, shape)
    assert number_of_params(made[0] if isinstance(net, StatefulLayer) else made) == published


def test_clip_has_the_published_number_of_params():
    image, tokens = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32), jax.ShapeDtypeStruct((1, 5), jnp.int32)
    assert number_of_params(jax.eval_shape(CLIP().init, jax.random.key(0), image, tokens)) == 151_277_313  # ViT-B/32


def test_unet_of_ho_et_al_has_the_published_number_of_params():
    assert (
        number_of_params(shapes_of(UNet(3), (1, 32, 32, 3), time=jax.ShapeDtypeStruct((1,), jnp.float32))) == 35_746_307
    )


@pytest.mark.parametrize(
    ("shallow", "deep", "shape"),
    [
        (ResNet((2,), bottleneck=False), ResNet((4,), bottleneck=False), (2, 64, 64, 3)),
        (MLPMixer(layers=2), MLPMixer(layers=3), (32, 32, 3)),
    ],
    ids=["ResNet", "MLPMixer"],
)
def test_programs_do_not_grow_with_depth(shallow, deep, shape):
    """Equal blocks are one scan: the number of equations does not depend on the number of blocks."""

    def size(net):
        made = shapes_of(net, shape)
        args = (*made, shape) if isinstance(net, StatefulLayer) else (made, shape)
        args = (*args[:-1], jax.ShapeDtypeStruct(shape, jnp.float32))
        return sum(1 for _ in equations(jax.make_jaxpr(net.apply)(*args)))

    assert size(shallow) == size(deep) > 20


# ---- conversion of PyTorch weights --------------------------------------------------------------


def array(tensor):
    return tensor.detach().numpy()


def dense(m):
    return {"kernel": array(m.weight).T, **({} if m.bias is None else {"bias": array(m.bias)})}


def conv(m):
    kernel = array(m.weight).transpose(2, 3, 1, 0)  # (out, in, h, w) to (h, w, in, out)
    return {"kernel": kernel, **({} if m.bias is None else {"bias": array(m.bias)})}


def norm(m):
    return {"scale": array(m.weight), "bias": array(m.bias)}


def mlp(up, down):
    return {"up": dense(up), "activation": (), "dropout": (), "down": dense(down)}


def statistics(m):
    mean, variance = (np.float32(array(value)) for value in (m.running_mean, m.running_var))
    return {"mean": mean, "variance": variance, "updates": np.int32(10_000)}


def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def at_random(torch, module):
    """The module in float64, with random weights in place of the zeros and ones of its init."""
    torch.manual_seed(0)
    module = module.double()
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if not value.is_floating_point():
                continue
            fan_in = value[0].numel() if value.ndim > 1 else 1
            value.copy_(torch.randn_like(value) * (1.5 / fan_in**0.5 if value.ndim > 1 else 0.5))
            if "var" in name:
                value.copy_(0.5 + torch.rand_like(value))
            value.copy_(value.float())  # the state of batch norm is float32
    return module.eval()


def images(*shape):
    return np.random.default_rng(0).normal(size=shape)


def channels_first(torch, x):
    return torch.from_numpy(np.moveaxis(x, -1, 1).copy())


def require_same_tree(made, mapped):
    """Require that the mapped weights have the names and shapes of the params of init."""
    assert jax.tree.map(lambda leaf: leaf.shape, made) == jax.tree.map(np.shape, mapped)


def agree(net, params, x, wanted, *, state=None, **side):
    """Require that outputs under jit in float64 equal the reference; return the next state."""
    made = shapes_of(net, x.shape, **{k: v for k, v in side.items() if k != "train"})
    require_same_tree(made, params if state is None else (params, state))
    train = {"train": side.pop("train")} if "train" in side else {}
    with jax.enable_x64(True):
        apply = jax.jit(functools.partial(net.apply, **train))
        if state is None:
            got, after = apply(params, jnp.asarray(x), **side), None
        else:
            got, after = apply(params, state, jnp.asarray(x), **side)
        wanted = array(wanted)
        assert got.dtype == jnp.float64 and np.ptp(wanted) > 0.1, "the reference is almost constant"
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    return after


# ---- LeNet --------------------------------------------------------------------------------------


def test_lenet_matches_pytorch(torch):
    nn = torch.nn
    layers = [
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
    ]
    layers += [nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)]
    m = at_random(torch, nn.Sequential(*layers))
    first = array(m[7].weight).reshape(120, 16, 5, 5).transpose(2, 3, 1, 0).reshape(400, 120)  # channels are last here
    layer = {"conv_1": conv(m[0]), "conv_2": conv(m[3]), "dense_2": dense(m[9]), "out": dense(m[11])}
    layer["dense_1"] = {"kernel": first, "bias": array(m[7].bias)}
    net, x = LeNet5(), images(3, 28, 28, 1)
    agree(net, {name: layer.get(name, ()) for name in shapes_of(net, (28, 28, 1))}, x, m(channels_first(torch, x)))


# ---- ResNet -------------------------------------------------------------------------------------


def torch_resnet(torch, stages, width, bottleneck):
    """Bottlenecks have groups of channels; other blocks are those for small images, whose shortcuts add zeros."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, into, mid, stride):
            super().__init__()
            out = 4 * mid if bottleneck else mid
            if bottleneck:
                specs = [(into, 2 * mid, 1, 1, 1), (2 * mid, 2 * mid, 3, stride, 3), (2 * mid, out, 1, 1, 1)]
            else:
                specs = [(into, mid, 3, stride, 1), (mid, mid, 3, 1, 1)]
            self.convs = nn.ModuleList(nn.Conv2d(i, o, k, s, k // 2, 1, g, bias=False) for i, o, k, s, g in specs)
            self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, *_ in specs)
            self.down, self.more, self.stride = None, out - into, stride
            if bottleneck and (stride != 1 or into != out):
                self.down = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x):
            y = x
            for i, (c, n) in enumerate(zip(self.convs, self.norms, strict=True)):
                y = n(c(y))
                if i + 1 < len(self.convs):
                    y = y.relu()
            if not bottleneck:
                x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
            return (y + (x if self.down is None else self.down(x))).relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, width, *((7, 2, 3) if bottleneck else (3, 1, 1)), bias=False)
            self.norm = nn.BatchNorm2d(width)
            self.pool = nn.MaxPool2d(3, 2, 1) if bottleneck else nn.Identity()
            into, self.stages = width, nn.ModuleList()
            for i, n in enumerate(stages):
                blocks = nn.ModuleList()
                for j in range(n):
                    blocks.append(Block(into, width * 2**i, 2 if i and not j else 1))
                    into = width * 2**i * (4 if bottleneck else 1)
                self.stages.append(blocks)
            self.fc = nn.Linear(into, 5)

        def forward(self, x):
            x = self.pool(self.norm(self.stem(x)).relu())
            for blocks in self.stages:
                for block in blocks:
                    x = block(x)
            return self.fc(x.mean((2, 3)))

    return at_random(torch, Net())


def mapped_resnet(m, bottleneck):
    def block(b, of_conv, of_norm):
        body = {}
        for i, (c, n) in enumerate(zip(b.convs, b.norms, strict=True), 1):
            body |= {f"conv_{i}": of_conv(c), f"norm_{i}": of_norm(n), f"relu_{i}": ()}
        body.popitem()
        return {
            "body": body,
            **({} if b.down is None else {"skip": {"conv": of_conv(b.down[0]), "norm": of_norm(b.down[1])}}),
        }

    def tree(of_conv, of_norm, of_dense):
        stem = {"conv": of_conv(m.stem), "norm": of_norm(m.norm), "relu": (), **({"pool": ()} if bottleneck else {})}
        net = {"stem": stem, "pool": (), "out": of_dense(m.fc)}
        for i, blocks in enumerate(m.stages, 1):
            first, *rest = [block(b, of_conv, of_norm) for b in blocks]
            net[f"stage_{i}"] = {"first": first, **({"blocks": stack(rest)} if rest else {})}
        return net

    nothing = lambda m: ()
    return tree(conv, norm, dense), tree(nothing, statistics, nothing)


@pytest.mark.parametrize("bottleneck", [True, False])
def test_resnet_matches_pytorch_in_evaluation_and_in_training(torch, bottleneck):
    stages, width = (1, 3), 3
    m = torch_resnet(torch, stages, width, bottleneck)
    options = {"groups": 3, "bottleneck_width": 6} if bottleneck else {"stem": "3x3", "shortcut": "zero_padding"}
    net = ResNet(stages, bottleneck=bottleneck, width=width, classes=5, **options)
    params, state = mapped_resnet(m, bottleneck)
    x = images(4, 19, 18, 3)
    agree(net, params, x, m(channels_first(torch, x)), state=state)
    if not bottleneck:
        return
    m.train()
    after = agree(net, params, x, m(channels_first(torch, x)), state=state, train=True)
    # The running variance of PyTorch is unbiased; the running means are the same.
    for name in ("stem", "deep"):
        ours, theirs = (
            (after["stem"]["norm"]["mean"], m.norm)
            if name == "stem"
            else (after["stage_2"]["blocks"]["body"]["norm_2"]["mean"][1], m.stages[1][2].norms[1])
        )
        np.testing.assert_allclose(ours, array(theirs.running_mean), rtol=1e-6)


def test_resnet_rejects_wrong_options(sentences):
    with pytest.raises(ValueError, match="expected depth to be one of 18, 34, 50, 101, 152, got 20"):
        ResNet(20)
    with pytest.raises(ValueError, match="ResNet expected stride_in to be '3x3' or '1x1', got '5x5'"):
        ResNet(50, stride_in="5x5")
    with pytest.raises(ValueError, match="ResNet expected bottlenecks for groups and .*, got bottleneck=False; pass"):
        ResNet(18, groups=2)
    assert repr(ResNet(18, groups=2, bottleneck=True)) == "ResNet(18, bottleneck=True, groups=2)"
    assert side_inputs(ResNet((1, 1), bottleneck=False)) == ("mask", "train")


# ---- VGG ----------------------------------------------------------------------------------------


def test_vgg_with_batch_norm_matches_pytorch(torch):
    nn, layers, into, width = torch.nn, [], 3, 2
    for i, n in enumerate((1, 1, 2, 2, 2)):
        for _ in range(n):
            out = width * min(2**i, 8)
            layers += [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            into = out
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(16 * 4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 5)]
    m = at_random(torch, nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), *head))

    convs, norms, linears = (
        [part for part in m if isinstance(part, kind)] for kind in (nn.Conv2d, nn.BatchNorm2d, nn.Linear)
    )
    net, x = VGG(11, width=width, hidden=6, pool_size=2, classes=5, batch_norm=True), images(2, 64, 96, 3)
    params, state = shapes_of(net, x.shape)  # leaves are replaced one by one below
    kernel = (
        array(linears[0].weight).reshape(6, 16, 2, 2).transpose(2, 3, 1, 0).reshape(64, 6)
    )  # channels are last here
    params |= {"dense_1": {"kernel": kernel, "bias": array(linears[0].bias)}, "dense_2": dense(linears[1])}
    params |= {"out": dense(linears[2])}
    places = [(f"block_{i}", str(j)) for i, n in enumerate((1, 1, 2, 2, 2), 1) for j in range(1, n + 1)]
    for k, (block, j) in enumerate(places):
        params[block]["conv_" + j] = conv(convs[k])
        params[block]["norm_" + j], state[block]["norm_" + j] = norm(norms[k]), statistics(norms[k])
    agree(net, params, x, m(channels_first(torch, x)), state=state)


# ---- ViT and Mixer ------------------------------------------------------------------------------


def torch_vit(torch, pool, d=12, heads=3, layers=3, patch=4, hidden=20, n=6):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(d, eps=1e-6), nn.LayerNorm(d, eps=1e-6)
            self.look = nn.MultiheadAttention(d, heads, batch_first=True)
            self.fc1, self.fc2 = nn.Linear(d, hidden), nn.Linear(hidden, d)

        def forward(self, x):
            y = self.n1(x)
            x = x + self.look(y, y, y, need_weights=False)[0]
            return x + self.fc2(nn.functional.gelu(self.fc1(self.n2(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, d, patch, patch)
            self.token = nn.Parameter(torch.zeros(1, 1, d))
            self.places = nn.Parameter(torch.zeros(1, n + (pool == "token"), d))
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.fc = nn.LayerNorm(d, eps=1e-6), nn.Linear(d, 5)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            if pool == "token":
                x = torch.cat([self.token.expand(len(x), 1, d), x], 1)
            x = x + self.places
            for block in self.blocks:
                x = block(x)
            x = self.norm(x)
            return self.fc(x[:, 0] if pool == "token" else x.mean(1))

    return at_random(torch, Net())


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_vit_matches_pytorch(torch, pool):
    m = torch_vit(torch, pool)
    blocks = []
    for b in m.blocks:
        attention = {"out": dense(b.look.out_proj)}
        for i, name in enumerate(("query", "key", "value")):
            rows = slice(12 * i, 12 * (i + 1))
            attention[name] = {"kernel": array(b.look.in_proj_weight)[rows].T, "bias": array(b.look.in_proj_bias)[rows]}
        block = {"attention_norm": norm(b.n1), "attention": attention, "dropout": ()}
        blocks.append({**block, "mlp_norm": norm(b.n2), "mlp": mlp(b.fc1, b.fc2)})
    params = {
        "patches": conv(m.patches),
        "flatten": (),
        "positions": {"embedding": array(m.places)[0]},
        "dropout": (),
        "blocks": stack(blocks),
    }
    params |= {"norm": norm(m.norm), "pool": (), "out": dense(m.fc)}
    if pool == "token":
        params["class_token"] = {"embedding": array(m.token)[0]}
    net = ViT(classes=5, patch_size=4, features=12, layers=3, heads=3, hidden=20, pool=pool)
    x = images(2, 8, 12, 3)
    agree(net, params, x, m(channels_first(torch, x)))
    with pytest.raises(ValueError, match="TokenPositions expected as many tokens as at init, .* resize the images"):
        jax.eval_shape(net.apply, jax.tree.map(jnp.float32, params), jnp.zeros((8, 8, 3)))


def test_mixer_matches_pytorch(torch):
    nn, d, n = torch.nn, 10, 6

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(d, eps=1e-6), nn.LayerNorm(d, eps=1e-6)
            self.t1, self.t2, self.c1, self.c2 = nn.Linear(n, 7), nn.Linear(7, n), nn.Linear(d, 9), nn.Linear(9, d)

        def forward(self, x):
            gelu = nn.functional.gelu
            x = x + self.t2(gelu(self.t1(self.n1(x).transpose(1, 2)))).transpose(1, 2)
            return x + self.c2(gelu(self.c1(self.n2(x))))

    m = nn.Module()
    m.patches, m.blocks = nn.Conv2d(3, d, 4, 4), nn.ModuleList(Block() for _ in range(2))
    m.norm, m.fc = nn.LayerNorm(d, eps=1e-6), nn.Linear(d, 5)
    m, x = at_random(torch, m), images(2, 8, 12, 3)
    y = m.patches(channels_first(torch, x)).flatten(2).transpose(1, 2)
    for block in m.blocks:
        y = block(y)
    blocks = [
        {
            "token_mlp_norm": norm(b.n1),
            "token_mlp": mlp(b.t1, b.t2),
            "mlp_norm": norm(b.n2),
            "mlp": mlp(b.c1, b.c2),
        }
        for b in m.blocks
    ]
    params = {"patches": conv(m.patches), "flatten": (), "blocks": stack(blocks), "norm": norm(m.norm), "pool": ()}
    net = MLPMixer(classes=5, patch_size=4, features=d, layers=2, token_hidden=7, hidden=9)
    agree(net, {**params, "out": dense(m.fc)}, x, m.fc(m.norm(y).mean(1)))


# ---- U-Net --------------------------------------------------------------------------------------


def torch_unet(torch, width, multipliers, blocks, attention_levels, classes, groups, channels):
    """Written in the order of layers of the paper: lists and a stack of skip connections, no recursion."""
    nn, f = torch.nn, torch.nn.functional
    d = 4 * width

    class Block(nn.Module):
        def __init__(self, into, out, attend):
            super().__init__()
            self.n1, self.n2 = nn.GroupNorm(groups, into, eps=1e-6), nn.GroupNorm(groups, out, eps=1e-6)
            self.c1, self.c2 = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
            self.e = nn.Linear(d, out) if classes is not None else None
            self.skip = nn.Conv2d(into, out, 1) if into != out else None
            if attend:
                self.n3 = nn.GroupNorm(groups, out, eps=1e-6)
                self.look = nn.MultiheadAttention(out, 2, batch_first=True)
            self.attend = attend

        def forward(self, x, e):
            h = self.c1(f.silu(self.n1(x)))
            if self.e is not None:
                h = h + self.e(f.silu(e))[:, :, None, None]
            h = self.c2(f.silu(self.n2(h))) + (x if self.skip is None else self.skip(x))
            if self.attend:
                y = self.n3(h).flatten(2).transpose(1, 2)
                h = h + self.look(y, y, y, need_weights=False)[0].transpose(1, 2).reshape(h.shape)
            return h

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, width, 3, padding=1)
            if classes is not None:
                self.t1, self.t2 = nn.Linear(width, d), nn.Linear(d, d)
                self.table = nn.Embedding(classes + 1, d)
            widths, have, skips = [width * m for m in multipliers], width, [width]
            self.down, self.up, self.shrink, self.grow = (nn.ModuleDict() for _ in range(4))
            for level, w in enumerate(widths):
                for i in range(blocks):
                    self.down[f"{level}_{i}"] = Block(have, w, level in attention_levels)
                    have = w
                    skips.append(have)
                if level + 1 < len(widths):
                    self.shrink[f"{level}"] = nn.Conv2d(have, have, 3, stride=2)
                    skips.append(have)
            self.middle = nn.ModuleList([Block(have, have, bool(attention_levels)), Block(have, have, False)])
            for level, w in reversed(list(enumerate(widths))):
                for i in range(blocks + 1):
                    self.up[f"{level}_{i}"] = Block(have + skips.pop(), w, level in attention_levels)
                    have = w
                if level:
                    self.grow[f"{level - 1}"] = nn.Conv2d(have, have, 3, padding=1)
            self.norm, self.out = nn.GroupNorm(groups, have, eps=1e-6), nn.Conv2d(have, channels, 3, padding=1)

        def forward(self, x, time=None, label=None):
            e = None
            if classes is not None:
                half = width // 2
                rates = torch.exp(-np.log(10000) * torch.arange(half, dtype=torch.float64) / (half - 1))
                angles = 1000 * time[:, None] * rates[None]
                e = self.t2(f.silu(self.t1(torch.cat([angles.sin(), angles.cos()], 1)))) + self.table(label)
            x = self.stem(x)
            seen = [x]
            for level in range(len(multipliers)):
                for i in range(blocks):
                    x = self.down[f"{level}_{i}"](x, e)
                    seen.append(x)
                if level + 1 < len(multipliers):
                    x = self.shrink[f"{level}"](f.pad(x, (0, 1, 0, 1)))  # TensorFlow pads even sizes this way
                    seen.append(x)
            for block in self.middle:
                x = block(x, e)
            for level in reversed(range(len(multipliers))):
                for i in range(blocks + 1):
                    x = self.up[f"{level}_{i}"](torch.cat([x, seen.pop()], 1), e)
                if level:
                    x = self.grow[f"{level - 1}"](f.interpolate(x, scale_factor=2, mode="nearest"))
            return self.out(f.silu(self.norm(x)))

    return at_random(torch, Net())


def mapped_unet(m, drop):
    def block(b):
        second = {"norm": norm(b.n2), "activation": (), "dropout": (), "conv": conv(b.c2)}
        p = {"first": {"norm": norm(b.n1), "activation": (), "conv": conv(b.c1)}, "second": second}
        p["skip"] = () if b.skip is None else conv(b.skip)
        if b.e is not None:
            p["condition"] = {"activation": (), "dense": dense(b.e)}
        if b.attend:
            width, attention = b.look.embed_dim, {"out": dense(b.look.out_proj)}
            for i, name in enumerate(("query", "key", "value")):
                rows = slice(width * i, width * (i + 1))
                kernel, bias = array(b.look.in_proj_weight)[rows].T, array(b.look.in_proj_bias)[rows]
                attention[name] = {"kernel": kernel, "bias": bias}
            p |= {"attention_norm": norm(b.n3), "attention": attention}
        return p

    params = {"stem": conv(m.stem), "out": {"norm": norm(m.norm), "activation": (), "conv": conv(m.out)}}
    if hasattr(m, "table"):
        params["time"] = {"up": dense(m.t1), "activation": (), "down": dense(m.t2)}
        params["label"] = {"table": {"embedding": array(m.table.weight)}}
    for way in ("down", "up"):
        params |= {f"{way}_{name}": block(b) for name, b in getattr(m, way).items()}
    params |= {f"middle_{i}": block(b) for i, b in enumerate(m.middle)}
    params |= {f"downsample_{name}": conv(c) for name, c in m.shrink.items()}
    return params | {f"upsample_{name}": {"nearest": (), "conv": conv(c)} for name, c in m.grow.items()}


def test_unet_matches_pytorch_with_time_and_label(torch):
    shape = dict(width=4, multipliers=(1, 2), blocks=1, attention_levels=(1,), classes=3, groups=2)
    m = torch_unet(torch, **shape, channels=1)
    params, net = mapped_unet(m, 0.1), UNet(1, **shape, heads=2, dropout=0.1)
    x, t, label = images(3, 4, 8, 1), np.array([0.0, 0.3, 1.0]), np.array([0, 2, 3])
    wanted = m(channels_first(torch, x), torch.from_numpy(t), torch.from_numpy(label)).permute(0, 2, 3, 1)
    agree(net, params, x, wanted, time=t, label=label.astype(np.int32))


def test_time_and_label_are_per_image_or_shared_by_all_images():
    net = UNet(1, width=4, multipliers=(1,), blocks=1, attention_levels=(), classes=3, dropout=0)
    x, t = np.float32(images(2, 2, 4, 4, 1)), np.float32([[0.0, 0.3], [0.3, 1.0]])
    label = np.array([[0, 2], [2, 3]], np.int32)

    @jax.jit
    def outputs(params, x, t, label):
        return (
            net.apply(params, x, time=t, label=label),  # all leading axes are batch axes
            net.apply(params, x[1, 0], time=t[1, 0], label=label[1, 0]),
            net.apply(params, x, time=jnp.float32(0.3), label=jnp.int32(2)),
            net.apply(params, x, time=t),
        )

    y, alone, shared, without = map(np.asarray, outputs(drawn(shapes_of(net, x, time=t)), x, t, label))
    np.testing.assert_allclose(alone, y[1, 0], atol=1e-4)
    np.testing.assert_allclose(shared[0, 1], y[0, 1], atol=1e-4)
    # The number after the last label is the null label, which None also selects.
    np.testing.assert_allclose(without[1, 1], y[1, 1], atol=1e-4)
    assert not np.allclose(y[0, 0], without[0, 0], atol=1e-2)


def test_unet_without_time_matches_pytorch(torch):
    shape = dict(width=4, multipliers=(1,), blocks=2, attention_levels=(), classes=None, groups=2)
    m = torch_unet(torch, **shape, channels=3)
    net, x = UNet(3, **shape, time=False, dropout=0), images(2, 8, 4, 1)
    assert side_inputs(net) == ()
    params = mapped_unet(m, 0)
    agree(net, params, x, m(channels_first(torch, x)).permute(0, 2, 3, 1))


def test_unet_is_zero_at_init_and_keeps_the_dtype():
    """The last convolution of each block and of the net is zero, so the net is; outputs have the dtype of the image."""
    net = UNet(2, width=4, multipliers=(1,), blocks=1, attention_levels=(0,), dropout=0.5)
    assert side_inputs(net) == ("key", "time", "train")
    x, t = jax.ShapeDtypeStruct((3, 4, 4, 1), jnp.bfloat16), jnp.zeros(3)

    @jax.jit  # jit removes the sampling of all other params
    def zeros(key):
        params = net.init(key, x, time=t)
        blocks = [p for name, p in params.items() if "_" in name]
        attention = [p["attention"]["out"] for p in blocks if "attention" in p]
        return params["out"]["conv"], [p["second"]["conv"] for p in blocks], attention

    last, blocks, attention = zeros(jax.random.key(0))
    assert len(attention) == 4 and not any(leaf.any() for leaf in jax.tree.leaves(attention))
    assert len(blocks) == 5 and not any(leaf.any() for leaf in jax.tree.leaves((last, blocks)))
    apply = functools.partial(net.apply, train=True, time=t, key=jax.random.key(1))
    y = jax.eval_shape(apply, shapes_of(net, x, time=t), x)
    assert y.dtype == jnp.bfloat16 and y.shape == (3, 4, 4, 2)


def test_unet_rejects_wrong_inputs_and_options(sentences):
    small = dict(width=4, blocks=1, attention_levels=(), dropout=0)
    net = UNet(1, multipliers=(1,), classes=3, **small)
    x, t, key = jnp.zeros((3, 4, 4, 1)), jnp.zeros(3), jax.random.key(0)
    init = lambda x, **side: jax.eval_shape(functools.partial(net.init, **side), key, x)
    with pytest.raises(ValueError, match=r"expected the side input time, got none; pass time=\.\.\., one number"):
        init(x)
    with pytest.raises(ValueError, match=r"time to be one number for each image, of shape \(3,\) .* leave out axes of"):
        init(x, time=t[:, None])
    with pytest.raises(ValueError, match=r"label to be one number for each image"):
        init(x, time=t, label=jnp.zeros(2, jnp.int32))
    init(x, time=t, label=jnp.zeros(3, jnp.int32))
    with pytest.raises(TypeError, match="TimeEmbedding expected a floating-point time, got int32"):
        init(x, time=jnp.zeros(3, jnp.int32))
    halved = UNet(1, multipliers=(1, 1), time=False, **small)
    with pytest.raises(ValueError, match="UNet expected images whose height and width are divisible by 2, .* pad"):
        jax.eval_shape(halved.init, key, x[:, :3])
    jax.eval_shape(halved.init, key, jnp.pad(x[:, :3], ((0, 0), (0, 1), (0, 0), (0, 0))))
    with pytest.raises(ValueError, match="attention_levels from 0 to 1, got 2; count levels from 0"):
        UNet(1, multipliers=(1, 2), attention_levels=(2,))
    with pytest.raises(ValueError, match="at least one level"):
        UNet(1, multipliers=())
    with pytest.raises(ValueError, match="one of heads and head_dim, got heads=2 and head_dim=4; leave out heads"):
        UNet(1, heads=2, head_dim=4)
    with pytest.raises(ValueError, match="even number of features"):
        time_features(t, 3)


# ---- graphs -------------------------------------------------------------------------------------


def random_graphs(sizes, features=3):
    rng = np.random.default_rng(1)
    graphs = []
    for n in sizes:
        adjacency = np.triu(rng.random((n, n)) < 0.5, 1)
        nodes = rng.normal(size=(n, features)).astype(np.float32)
        graphs.append(adjacency_graph(jnp.asarray(nodes), jnp.asarray((adjacency | adjacency.T).astype(np.int32))))
    return graphs


@pytest.mark.parametrize(("kind", "pool"), [("gin", "sum"), ("gcn", "max")])
def test_graph_classifier_equals_its_formulas(kind, pool):
    """In NumPy for each graph: (1 + A) X, or the normalized matrix times X, dense layers, concatenated readouts."""
    graphs = random_graphs([4, 6, 3])
    batch = jax.tree.map(jnp.asarray, batch_graphs(graphs, n_nodes=16, n_edges=60, n_graphs=4))
    net = GraphClassifier(2, kind=kind, features=5, layers=2, pool=pool, batch_norm=False)
    params = drawn(shapes_of(net, batch))
    got = jax.jit(net.apply)(params, batch)
    relu = lambda x: np.maximum(x, 0)
    read = getattr(np, pool)
    for row, graph in zip(got, graphs, strict=False):
        x = np.asarray(graph.nodes)
        a = np.zeros((len(x), len(x)))
        np.add.at(a, (np.asarray(graph.receivers), np.asarray(graph.senders)), 1)
        a += np.eye(len(x))
        if kind == "gcn":
            degree = a.sum(1)
            a = a / np.sqrt(degree[:, None] * degree[None])
        seen = [read(x, 0)]
        for i in (1, 2):
            x, layer = a @ x, params[f"layer_{i}"]
            for p in (layer["mlp"]["dense_1"], layer["mlp"]["dense_2"]) if kind == "gin" else (layer["gcn"],):
                x = relu(x @ np.asarray(p["kernel"]) + np.asarray(p["bias"]))
            seen.append(read(x, 0))
        wanted = np.concatenate(seen) @ np.asarray(params["out"]["kernel"]) + np.asarray(params["out"]["bias"])
        np.testing.assert_allclose(row, wanted, atol=2e-5 * max(1, np.abs(wanted).max()))
    assert got.shape == (4, 2) and np.allclose(got[3], params["out"]["bias"])


def test_padding_of_graphs_does_not_affect_the_statistics():
    """With batch norm, in training, logits and statistics are independent of the amount of padding."""
    graphs = random_graphs([4, 6, 3])
    net = GraphClassifier(2, features=5, layers=1)
    assert side_inputs(net) == ("train",)
    tight, loose = (
        jax.tree.map(jnp.asarray, batch_graphs(graphs, n_nodes=n, n_edges=e, n_graphs=3))
        for n, e in ((13, 40), (20, 64))
    )
    params, state = drawn(shapes_of(net, tight))
    apply = jax.jit(functools.partial(net.apply, train=True))
    (a, after_a), (b, after_b) = apply(params, state, tight), apply(params, state, loose)
    np.testing.assert_allclose(a, b, atol=1e-4)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), after_a, after_b)


def test_readout_needs_the_number_of_graphs(sentences):
    graph = Graph(jnp.ones((3, 1)), jnp.array([0]), jnp.array([1]))
    assert readout(graph, pool="mean").tolist() == [[1.0]]
    several = graph._replace(node_graph=jnp.array([0, 0, 1]))
    with pytest.raises(ValueError, match="readout expected a graph whose shapes .*; give the graph a graph_mask"):
        readout(several)
    assert readout(several._replace(graph_mask=jnp.ones(2, bool))).tolist() == [[2.0], [1.0]]
    assert readout(several._replace(global_features=jnp.ones((2, 5)))).tolist() == [[2.0], [1.0]]
    with pytest.raises(ValueError, match="GraphClassifier expected kind to be 'gin' or 'gcn', got 'gat'"):
        GraphClassifier(2, kind="gat")


def test_unet_drops_after_the_norm_and_the_activation():
    """With the identity as second convolution, a block's branch is dropout(swish(norm(x)))."""
    branch = UNet(1, width=4, multipliers=(1,), blocks=1, time=False, attention_levels=(), dropout=0.5)[
        "down_0_0/second"
    ]
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype(np.float32)
    kernel = np.zeros((3, 3, 4, 4), np.float32)
    kernel[1, 1] = np.eye(4)

    @jax.jit
    def outputs(key, x):
        params = branch.init(key, x)
        params = {**params, "conv": {**params["conv"], "kernel": kernel}}
        return branch.apply(params, x, train=True, key=jax.random.key(2)), branch.apply(params, x)

    y, quiet = map(np.asarray, outputs(jax.random.key(1), x))
    kept = y != 0
    np.testing.assert_allclose(y, np.where(kept, 2 * quiet, 0), rtol=1e-5, atol=1e-6)
    assert 0.2 < kept.mean() < 0.8
