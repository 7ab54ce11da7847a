"""jaxblocks: composable pure-function layers for JAX, and tools that show what their derivatives cost.

This file is the map. ``CamelCase`` builds a layer, a pair of pure functions ``init`` and
``apply``; ``snake_case`` is a function, on arrays or on functions::

    net = Serial(Dense(128), relu, Dense(10))
    params = net.init(jax.random.key(0), x)
    logits = jax.jit(net.apply)(params, x)
"""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

# The contract: two kinds of pair.
from jaxblocks.core import Layer, StatefulLayer, as_layer, side_inputs, stateful

# Layers made of layers.
from jaxblocks.layers.combinators import Parallel, Recurrent, Repeat, Residual, Serial, Wire

# Dense layers and linear models.
from jaxblocks.layers.dense import Bias, Dense, affine, fuse_affine
from jaxblocks.layers.mlp import MLP
from jaxblocks.layers.linear_models import linear_regression, logistic_regression

# Convolution and pooling.
from jaxblocks.layers.conv import Conv, ConvTranspose, DepthwiseConv, conv, conv_transpose
from jaxblocks.layers.pool import (
    GlobalMaxPool,
    GlobalAvgPool,
    MaxPool,
    AvgPool,
    adaptive_max_pool,
    adaptive_avg_pool,
    global_max_pool,
    global_avg_pool,
    max_pool,
    avg_pool,
)

# Normalization: of inputs, batches, examples, weights.
from jaxblocks.layers.norm import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from jaxblocks.statistics import fit_standardizer, moments, standardize
from jaxblocks.layers.weight_norm import SpectralNorm, WeightNorm

# Dropout: of values, feature maps, examples.
from jaxblocks.layers.dropout import Dropout, FeatureDropout, StochasticDepth, dropout

# Graphs.
from jaxblocks.layers.graph import (
    GAT,
    GCN,
    GIN,
    Graph,
    GraphBlock,
    GraphMapFeatures,
    adjacency_graph,
    aggregate,
    batch_graphs,
    check_graph,
    complete_graph,
    unbatch_graphs,
)

# Embeddings, features, activations with params.
from jaxblocks.layers.embedding import Embedding, embed, unembed
from jaxblocks.layers.features import (
    RBF,
    RandomFourierFeatures,
    knn_predict,
    random_fourier_features,
    rbf_kernel,
    taylor_features,
)
from jaxblocks.layers.learned_activations import Maxout, PReLU, Swish, swish

# Recurrent layers.
from jaxblocks.layers.recurrent import (
    GRU,
    LSTM,
    RNN,
    Bidirectional,
    GRUCell,
    LSTMCell,
    RNNCell,
    gru_step,
    lstm_step,
    rnn_step,
)

# Attention, and where things are.
from jaxblocks.layers.attention import Attention, attention, attention_weights, hard_lookup, soft_lookup
from jaxblocks.layers.linear_attention import linear_attention
from jaxblocks.layers.positions import LearnedPositions, SinusoidalPositions, alibi, rotary, sinusoidal_positions

# Activations, entry by entry.
from jaxblocks.activations import (
    activation_moments,
    cosine,
    elu,
    gelu,
    identity,
    leaky_relu,
    leaky_relu_inverse,
    maxout,
    relu,
    selu,
    sigmoid,
    silu,
    softplus,
    softplus_inverse,
    tanh,
)

# To and on the probability simplex.
from jaxblocks.probabilities import (
    is_distribution,
    log_softmax,
    logsumexp,
    one_hot,
    smooth_labels,
    softargmax,
    softmax,
    softmax_fixed,
    softmax_mean,
)

# Losses, divergences, penalties: one number per example.
from jaxblocks.losses import (
    cross_entropy,
    distillation_loss,
    entropy,
    gaussian_nll,
    hinge_loss,
    huber_loss,
    jensen_gap,
    jensen_shannon,
    kl_divergence,
    l1_penalty,
    l2_penalty,
    lp_distance,
    mae,
    mse,
    nll,
    sigmoid_cross_entropy,
    soft_threshold,
    softmax_cross_entropy,
    total_variation,
    zero_one_loss,
)

# Metrics.
from jaxblocks.metrics import (
    accuracy,
    confusion_matrix,
    perplexity,
    precision_recall_f1,
    predict_class,
    r_squared,
    top_k_accuracy,
)

# Tensors.
from jaxblocks.tensors import (
    cp_decompose,
    cp_tensor,
    einsum,
    flattening,
    flattening_ranks,
    pure_tensor,
    rank_bounds,
    tensor_product,
)

# Derivatives and what they cost; all of them are in jaxblocks.ad.
from jaxblocks.ad import (
    cost_table,
    count_flops,
    directional_curvature,
    hessian,
    hvp,
    jacobian,
    laplacian,
    ntk,
    per_example_gradients,
    per_example_norms,
    trace_table,
    value_grad_hvp,
)

# How weights are drawn at first, and how some of them are chosen by their paths.
from jaxblocks import initializers
from jaxblocks.selectors import paths, select

# What a net is made of.
from jaxblocks.inspection import count_params, layer_outputs, summary, variance_report
from jaxblocks.structure import as_dense, receptive_field

__version__ = "0.1.0"

_LATER = {  # loaded at the first use, with the libraries that they need
    # Training; brings optax.
    "fit": "training",
    "init_train_state": "training",
    "train_step": "training",
    "evaluate": "training",
    "minibatches": "training",
    "train_val_test_split": "training",
    "early_stopping": "training",
    "random_flip": "training",
    "random_shift": "training",
    "gaussian_noise": "training",
    "proximal_l1": "training",
    "prefetch": "training",
    "ema_params": "training",
    "get_ema": "training",
    "save_checkpoint": "training",
    "load_checkpoint": "training",
    "csv_log": "training",
    "tensorboard_log": "training",
    "terminal_log": "training",
    # The laws, for layers of your own.
    "check_layer": "testing",
}


# Whole wings: the models of the field, text, diffusion, data, theorems as code, pictures.
_MODULES = {"models", "text", "diffusion", "datasets", "theory", "training", "testing", "plotting"}


def __getattr__(name):
    if name in _MODULES:
        return _import_module(f"jaxblocks.{name}")
    if name in _LATER:
        return getattr(_import_module(f"jaxblocks.{_LATER[name]}"), name)
    raise AttributeError(f"module 'jaxblocks' has no attribute {name!r}")


def __dir__():
    return __all__


__all__ = [
    name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _ModuleType)
] + list(_LATER)
