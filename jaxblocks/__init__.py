"""jaxblocks: composable pure-function layers for JAX, and tools that show what their derivatives cost.

The top level exports the names that every user needs: layers, combinators, activations, losses, metrics, the training
step, the common derivatives. All other names are in submodules (``jaxblocks.layers``, ``jaxblocks.ad``, ...).
A name in ``CamelCase`` builds a layer, a pair of pure functions ``init`` and ``apply``. A name in ``snake_case`` is a
function of arrays or of functions::

    net = Serial(Dense(128), relu, Dense(10))
    params = net.init(jax.random.key(0), x)
    logits = jax.jit(net.apply)(params, x)
"""

from pkgutil import iter_modules as _iter_modules
import typing as _typing

# The contract: the two kinds of layers.
from jaxblocks.core import Layer, LayerLike, StatefulLayer, as_layer, builder, side_inputs, stateful

# Combinators: layers that contain layers.
from jaxblocks.layers import Frozen, Parallel, Recurrent, Repeat, Residual, Serial, Wire

# Dense layers.
from jaxblocks.layers import GLU, MLP, Bias, Dense, affine

# Convolution, pooling, resizing.
from jaxblocks.layers import Conv, ConvTranspose, DepthwiseConv, conv, conv_transpose
from jaxblocks.layers import AvgPool, GlobalAvgPool, GlobalMaxPool, MaxPool, avg_pool, max_pool
from jaxblocks.layers import Flatten, Pad, Resize, UpSample

# Normalization of batches, of examples, of weights.
from jaxblocks.layers import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm, SpectralNorm, WeightNorm
from jaxblocks.layers import batch_norm, group_norm, instance_norm, layer_norm, rms_norm

# Dropout of values, of feature maps, of examples.
from jaxblocks.layers import AlphaDropout, Dropout, FeatureDropout, StochasticDepth, dropout

# Embeddings, and activations with params.
from jaxblocks.layers import Embedding, Maxout, PReLU, Swish, embed, swish, unembed

# Recurrent layers.
from jaxblocks.layers import GRU, LSTM, RNN, Bidirectional, GRUCell, LSTMCell, RNNCell

# Attention and positions.
from jaxblocks.layers import Attention, CachedAttention, attention, attention_weights, linear_attention
from jaxblocks.layers import LearnedPositions, SinusoidalPositions, alibi, rotary, sinusoidal_positions

# Graphs.
from jaxblocks.layers import GAT, GCN, GIN, Graph, GraphBlock

# Activations, entry by entry.
from jaxblocks.activations import elu, gelu, glu, identity, leaky_relu, relu, selu, sigmoid, silu, softplus, tanh

# Probabilities.
from jaxblocks.probabilities import log_softmax, logsumexp, one_hot, smooth_labels, softmax

# Losses and penalties: one number per example.
from jaxblocks.losses import cross_entropy, distillation_loss, entropy, gaussian_nll, hinge_loss, huber_loss
from jaxblocks.losses import info_nce_loss, jensen_shannon, kl_divergence, l1_penalty, l2_penalty, mae, mse, nll
from jaxblocks.losses import poisson_nll, sigmoid_cross_entropy, softmax_cross_entropy, weighted_mean, zero_one_loss

# Metrics.
from jaxblocks.metrics import accuracy, confusion_matrix, perplexity, precision_recall_f1, predict_class, r_squared
from jaxblocks.metrics import top_k_accuracy

# Initializers of params, and selection of params by path.
from jaxblocks import initializers
from jaxblocks.core import paths, select

if _typing.TYPE_CHECKING:  # imported at first use
    # Derivatives and their cost.
    from jaxblocks.ad import cost_table, count_flops, directional_curvature, hessian, hvp, jacobian, laplacian, ntk
    from jaxblocks.ad import per_example_gradients, trace_table

    # Inspection of nets.
    from jaxblocks.inspection.nets import count_params, layer_outputs, summary, variance_report

    # Checks of the contract for your own layers.
    from jaxblocks.testing.laws import check_layer

    # Training; imports optax.
    from jaxblocks.training import evaluate, fit, init_train_state, load_checkpoint, minibatches, predict
    from jaxblocks.training import save_checkpoint, train_step, train_val_test_split

    # The second name says that it is public.
    from jaxblocks import activations as activations, ad as ad, backend as backend, checks as checks, core as core
    from jaxblocks import datasets as datasets, diffusion as diffusion, inspection as inspection, interop as interop
    from jaxblocks import layers as layers, losses as losses, metrics as metrics, models as models, plotting as plotting
    from jaxblocks import probabilities as probabilities, sharding as sharding, statistics as statistics
    from jaxblocks import tensors as tensors, testing as testing, text as text, theory as theory, training as training

__version__ = "0.1.0"

_SUBMODULES = tuple(module.name for module in _iter_modules(__path__))

if not _typing.TYPE_CHECKING:  # so that type checkers report names that do not exist
    from jaxblocks.core.lazy import lazy_names as _lazy_names

    _LATER = {
        "ad": (
            "cost_table count_flops directional_curvature hessian hvp jacobian laplacian ntk per_example_gradients "
            "trace_table"
        ),
        "inspection": "count_params layer_outputs summary variance_report",
        "testing": "check_layer",
        "training": (
            "evaluate fit init_train_state load_checkpoint minibatches predict save_checkpoint train_step "
            "train_val_test_split"
        ),
    }
    __getattr__ = _lazy_names("jaxblocks", dict.fromkeys(_SUBMODULES, "") | _LATER)[0]


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES, "__version__"})


__all__ = [
    "AlphaDropout",
    "Attention",
    "AvgPool",
    "BatchNorm",
    "Bias",
    "Bidirectional",
    "CachedAttention",
    "Conv",
    "ConvTranspose",
    "Dense",
    "DepthwiseConv",
    "Dropout",
    "Embedding",
    "FeatureDropout",
    "Flatten",
    "Frozen",
    "GAT",
    "GCN",
    "GIN",
    "GLU",
    "GRU",
    "GRUCell",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "Graph",
    "GraphBlock",
    "GroupNorm",
    "InstanceNorm",
    "LSTM",
    "LSTMCell",
    "Layer",
    "LayerLike",
    "LayerNorm",
    "LearnedPositions",
    "MLP",
    "MaxPool",
    "Maxout",
    "PReLU",
    "Pad",
    "Parallel",
    "RMSNorm",
    "RNN",
    "RNNCell",
    "Recurrent",
    "Repeat",
    "Residual",
    "Resize",
    "Serial",
    "SinusoidalPositions",
    "SpectralNorm",
    "StatefulLayer",
    "StochasticDepth",
    "Swish",
    "UpSample",
    "WeightNorm",
    "Wire",
    "accuracy",
    "affine",
    "alibi",
    "as_layer",
    "attention",
    "attention_weights",
    "avg_pool",
    "batch_norm",
    "builder",
    "check_layer",
    "confusion_matrix",
    "conv",
    "conv_transpose",
    "cost_table",
    "count_flops",
    "count_params",
    "cross_entropy",
    "directional_curvature",
    "distillation_loss",
    "dropout",
    "elu",
    "embed",
    "entropy",
    "evaluate",
    "fit",
    "gaussian_nll",
    "gelu",
    "glu",
    "group_norm",
    "hessian",
    "hinge_loss",
    "huber_loss",
    "hvp",
    "identity",
    "info_nce_loss",
    "init_train_state",
    "initializers",
    "instance_norm",
    "jacobian",
    "jensen_shannon",
    "kl_divergence",
    "l1_penalty",
    "l2_penalty",
    "laplacian",
    "layer_norm",
    "layer_outputs",
    "leaky_relu",
    "linear_attention",
    "load_checkpoint",
    "log_softmax",
    "logsumexp",
    "mae",
    "max_pool",
    "minibatches",
    "mse",
    "nll",
    "ntk",
    "one_hot",
    "paths",
    "per_example_gradients",
    "perplexity",
    "poisson_nll",
    "precision_recall_f1",
    "predict",
    "predict_class",
    "r_squared",
    "relu",
    "rms_norm",
    "rotary",
    "save_checkpoint",
    "select",
    "selu",
    "side_inputs",
    "sigmoid",
    "sigmoid_cross_entropy",
    "silu",
    "sinusoidal_positions",
    "smooth_labels",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "stateful",
    "summary",
    "swish",
    "tanh",
    "top_k_accuracy",
    "trace_table",
    "train_step",
    "train_val_test_split",
    "unembed",
    "variance_report",
    "weighted_mean",
    "zero_one_loss",
]
