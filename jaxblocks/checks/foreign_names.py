"""Names in other libraries, from which errors find the name here.

`jaxblocks.checks.signatures` and `jaxblocks.checks.annotations` read the options and their values,
`jaxblocks.checks.names` the names of layers and functions.
"""

__all__ = ["ARGUMENTS", "DTYPES", "ELSEWHERE", "MISSING_OPTIONS", "NAMES", "OPTIONS", "VALUES"]

OPTIONS = {
    "features": "units filters out_features out_channels hidden_size embedding_dim embed_dim d_model dim n_embd",
    "layers": "num_layers n_layers n_layer num_hidden_layers",
    "max_length": "block_size n_positions max_position_embeddings n_ctx context_length max_seq_len",
    "sliding_window": "local_window_size window_size",
    "use_bias": "bias with_bias",
    "kernel_init": "kernel_initializer weight_init w_init weight_initializer",
    "bias_init": "bias_initializer b_init",
    "embedding_init": "embeddings_initializer",
    "stride": "strides window_strides",
    "dilation": "dilation_rate kernel_dilation rhs_dilation",
    "window_shape": "kernel_size pool_size",
    "rate": "p prob dropout dropout_rate",
    "dropout": "dropout_rate rate p",
    "epsilon": "eps",
    "axis": "dim",
    "dtype": "torch_dtype",
    "axes": "dim reduction_axes",
    "heads": "num_heads n_heads n_head nhead nheads",
    "head_dim": "key_dim qkv_features key_size",
    "groups": "num_groups feature_group_count",
    "size": "num_embeddings vocab_size input_dim output_size",
    "targets": "labels y y_true target",
    "predictions": "y_pred preds",
    "lengths": "seq_lengths sequence_lengths seq_lens seq_len",
    "ahead": "size buffer_size prefetch_size",
    "causal": "is_causal",
    "negative_slope": "alpha slope",
    "use_scale": "scale affine elementwise_affine",
    "approximate": "approx",
    "class_weights": "weight class_weight",
    "where": "mask",
    "mask": "attn_mask attention_mask",
    "score_fn": "score_mod",
    "sink": "sinks s_aux",
    "initial": "initial_state h0",
    "maximize": "mode",
    "monitor": "metric",
    "log_decay": "gate g decay",
    "modulation": "mask",
    "order": "p ord metric",
    "weights": "where sample_weight",
    "validation": "validation_data val_data",
    "source_mask": "mask attention_mask src_mask encoder_attention_mask",
    "steps": "max_new_tokens max_length max_steps num_steps n_steps",
    "last_batch": "drop_last keep_last drop_remainder",
    "epochs": "num_epochs n_epochs max_epochs nb_epoch",
    "batch_size": "batch batchsize bs train_batch_size",
    "callbacks": "hooks",
    "progress": "verbose progress_bar",
    "checkpoint_dir": "ckpt_dir default_root_dir output_dir",
    "key": "rng rngs seed random_state prng_key",
    "loss": "loss_fn criterion objective",
    "optimizer": "opt tx optim",
    "net": "model module",
}
"""The names of an option elsewhere, by its name here."""

MISSING_OPTIONS = {
    "activation": "apply it as the next layer: Serial({name}(...), relu)",
    "in_features": "leave it out; init reads the size of the input",
    "in_channels": "leave it out; init reads the size of the input",
    "input_shape": "leave it out; init reads the shape of the input",
    "num_features": "leave it out; init reads the size of the input",
    "normalized_shape": "leave it out; init reads the size of the input, and axes=-1 is the last axis",
    **dict.fromkeys(
        ("num_layers", "n_layers", "n_layer", "num_hidden_layers"),
        "write one layer for each: Serial({name}(...), {name}(...))",
    ),
    "return_sequences": "leave it out; take the last output as y[..., -1, :], or at lengths - 1",
    **dict.fromkeys(
        ("carry", "initial_carry", "initial_state"),
        "leave it out; LSTM(..., stateful=True), GRU, RNN and Recurrent take it by apply(params, carry, x)",
    ),
    "return_state": "leave it out; LSTM(..., stateful=True) returns its carry, and so do GRU, RNN and Recurrent",
    "bidirectional": "write Bidirectional(LSTMCell(4), LSTMCell(4))",
    "recurrent_dropout": "wrap the cell: Recurrent(layers.RecurrentDropout(LSTMCell(4), 0.1))",
    "batch_first": "leave it out; leading axes are batch",
    "training": "pass train=True to apply",
    "deterministic": "pass train=not deterministic to apply",
    "use_running_average": "pass train=not use_running_average to apply",
    "validation_split": "split the rows by train_val_test_split, and pass validation=(x, y)",
    "test_size": "write fractions=(0.8, 0, 0.2), for training, validation and test",
    "keep_prob": "write {name}(rate), with rate = 1 - keep_prob",
    "rngs": 'pass key=rngs["dropout"] to apply',
    "rng": "pass key=jax.random.key(0) to apply",
    "attn_mask": "pass mask= to apply",
    "key_padding_mask": "pass mask= to apply, True at valid keys",
    "sliding_window": "leave it out; Attention takes attention_fn=functools.partial(attention, sliding_window=4)",
    "add_zero_attn": "write attention_fn=functools.partial(attention, sink=jnp.zeros(heads))",
    "need_weights": "write attention_fn=attention_with_weights",
    "embed_dim": "leave it out; init reads the size of the input",
    "ignore_index": "write where=targets != {value}",
    "from_logits": "leave it out; softmax_cross_entropy takes logits, nll log-probabilities",
    "donate": "leave it out; train_step has this option",
    "reduction": "leave it out; take the mean of the result",
    "inplace": "leave it out; arrays do not change",
    "lr": "pass it to the optimizer, as in optax.adam(1e-3)",
    "learning_rate": "pass it to the optimizer, as in optax.adam(1e-3)",
    "weight_decay": "pass it to the optimizer, as in optax.adamw(1e-3, weight_decay=1e-4)",
    "momentum": "pass it to the optimizer, as in optax.sgd(0.1, momentum=0.9)",
    "scheduler": "pass a schedule of optax to the optimizer as its learning rate",
    "shuffle": "leave it out; each epoch has a new order",
    "early_stopping": "write callbacks=[early_stopping(patience=3)]",
    "patience": "write callbacks=[early_stopping(patience=3)]",
    **dict.fromkeys(("sample_weight", "class_weight"), "let the loss return the pair (values, weights)"),
    **dict.fromkeys(
        ("senders", "receivers", "edge_index"), "pass one graph: jaxblocks.Graph(nodes, senders, receivers)"
    ),
    "fit(params)": "write fit(..., ts=init_train_state(key, net, optimizer, x)._replace(params=params))",
    **dict.fromkeys(
        [f"gaussian_nll({one})" for one in ("log_variance", "log_var", "logvar")],
        "write variance=jnp.exp(log_variance)",
    ),
    "fit(lengths)": "pass it as an input of the net: data=((x, lengths), y)",
}
"""What replaces an option that a function here lacks, or one function; ``{name}`` stands for its name."""

ARGUMENTS = {
    "backward": "write {name}(LSTMCell(8), LSTMCell(8)), with a cell for each direction",
    "key": "write key=jax.random.key(0)",
    "spatial": "pass spatial=2 for images, spatial=1 for sequences",
}
"""What to write for an argument that other libraries do not have; ``{name}`` as above."""

VALUES = {
    "approximate": {"tanh": "True", "none": "False"},
    "method": {"bilinear": "'linear'", "trilinear": "'linear'", "bicubic": "'cubic'"},
    "order": {"euclidean": "2", "manhattan": "1", "cityblock": "1", "chebyshev": "math.inf"},
    "padding": {"full": "k - 1 for a window of k positions"},
    "padding_mode": {
        "zeros": "'constant'",
        "border": "'replicate'",
        "edge": "'replicate'",
        "wrap": "'circular'",
        "reflection": "'reflect'",
    },
}
"""The values of an option, by its name and their names elsewhere; other spellings of a value here need no entry."""

DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "f16", "fp16"), "float16"),
    **dict.fromkeys(("float32", "f32", "fp32"), "float32"),
    **dict.fromkeys(("float64", "f64", "fp64"), "float64"),
}
"""The name of a dtype, by its name elsewhere."""

NAMES = {
    here: there
    for there, names in {
        "Dense": "Linear Conv1x1 FullyConnected",
        "Conv": "Conv1d Conv2d Conv3d Conv1D Conv2D Conv3D",
        "ConvTranspose": "ConvTranspose1d ConvTranspose2d Conv1DTranspose Conv2DTranspose Deconv Conv2d_Transpose",
        "DepthwiseConv": "DepthwiseConv1D DepthwiseConv2D",
        "MaxPool": "MaxPool1d MaxPool2d MaxPooling1D MaxPooling2D",
        "AvgPool": "AvgPool1d AvgPool2d MeanPool AveragePooling1D AveragePooling2D",
        "GlobalAvgPool": "AdaptiveAvgPool1d AdaptiveAvgPool2d GlobalAveragePooling1D GlobalAveragePooling2D",
        "GlobalMaxPool": "AdaptiveMaxPool1d AdaptiveMaxPool2d GlobalMaxPooling1D GlobalMaxPooling2D",
        "UpSample": "UpSampling1D UpSampling2D",
        "Pad": "ZeroPad2d ZeroPadding1D ZeroPadding2D ReflectionPad2d",
        "BatchNorm": "BatchNorm1d BatchNorm2d BatchNorm3d BatchNormalization SyncBatchNorm",
        "InstanceNorm": "InstanceNorm1d InstanceNorm2d",
        "LayerNorm": "LayerNormalization",
        "GroupNorm": "GroupNormalization",
        "RMSNorm": "RMSNormalization",
        "FeatureDropout": "Dropout1d Dropout2d SpatialDropout1D SpatialDropout2D",
        "StochasticDepth": "DropPath",
        "Serial": "Sequential ModuleList",
        "Parallel": "ModuleDict",
        "Layer": "Module",
        "Residual": "Add SkipConnection",
        "Embedding": "Embed",
        "SinusoidalPositions": "PositionalEncoding",
        "Attention": "MultiHeadDotProductAttention MultiHeadAttention MultiheadAttention SelfAttention",
        "attention": "scaled_dot_product_attention dot_product_attention",
        "silu": "SiLU",
        "softmax_cross_entropy": (
            "CrossEntropyLoss categorical_crossentropy sparse_categorical_crossentropy CategoricalCrossentropy "
            "SparseCategoricalCrossentropy cross_entropy_loss softmax_cross_entropy_with_integer_labels"
        ),
        "sigmoid_cross_entropy": (
            "binary_cross_entropy BCEWithLogitsLoss BCELoss BCE bce binary_crossentropy BinaryCrossentropy "
            "binary_cross_entropy_with_logits sigmoid_binary_cross_entropy MultiLabelSoftMarginLoss "
            "multilabel_soft_margin_loss"
        ),
        "mse": "MSELoss mse_loss MSE mean_squared_error MeanSquaredError squared_error l2_loss L2Loss",
        "mae": "L1Loss l1_loss mean_absolute_error MeanAbsoluteError",
        "huber_loss": "huber SmoothL1Loss smooth_l1_loss",
        "nll": "NLLLoss nll_loss",
        "gaussian_nll": "GaussianNLLLoss",
        "poisson_nll": "PoissonNLLLoss",
        "kl_divergence": "KLDivLoss kl_div",
        "affine": "linear",
        "count_params": "num_params param_count",
        "Frozen": "freeze",
        "max_pool": "max_pool1d max_pool2d",
        "avg_pool": "avg_pool1d avg_pool2d",
        "fit": "Trainer Model",
        "minibatches": "DataLoader",
        "train_val_test_split": "train_test_split random_split",
        "save_checkpoint": "save",
        "load_checkpoint": "load restore restore_checkpoint",
        "as_layer": "Lambda",
        "accuracy": "accuracy_score",
    }.items()
    for here in names.split()
}
"""The name of a layer or function here, by its name elsewhere; other cases and underscores need no entry."""

ELSEWHERE = {
    **dict.fromkeys(
        ("SeparableConv", "SeparableConv1D", "SeparableConv2D"),
        "jaxblocks.Serial(jaxblocks.DepthwiseConv((3, 3)), jaxblocks.Conv(8, (1, 1)))",
    ),
    **dict.fromkeys(("TransformerEncoder", "TransformerEncoderLayer"), "jaxblocks.models.TransformerBlock"),
    **dict.fromkeys(("EMA", "ema", "ExponentialMovingAverage"), "jaxblocks.training.ema_params"),
    **dict.fromkeys(("rope", "apply_rope", "RotaryEmbedding", "rotary_embedding"), "jaxblocks.layers.rotary"),
    **dict.fromkeys(("ModelCheckpoint", "Checkpointer", "CheckpointManager"), "jaxblocks.training.checkpoints"),
    **dict.fromkeys(("mnist", "MNIST", "load_mnist", "cifar10", "CIFAR10"), "sklearn.datasets.fetch_openml"),
    **{f"load_{one}": f"jaxblocks.datasets.{one}" for one in ("breast_cancer", "diabetes", "digits", "iris", "wine")},
    **dict.fromkeys(("soft_shrink", "Softshrink", "SoftShrink", "softshrink"), "jaxblocks.losses.soft_threshold"),
    **dict.fromkeys(("cdist", "pdist", "PairwiseDistance"), "jaxblocks.losses.pairwise_distances"),
    **dict.fromkeys(("triplet_loss", "TripletMarginLoss"), "optax.losses.triplet_margin_loss"),
    **dict.fromkeys(("focal_loss", "FocalLoss"), "optax.sigmoid_focal_loss"),
    **dict.fromkeys(("clip_grad_norm", "clip_grad_norm_"), "optax.clip_by_global_norm"),
    **dict.fromkeys(("Concatenate", "cat"), "jax.numpy.concatenate"),
    **dict.fromkeys(("nn", "modules"), "jaxblocks.layers"),
    "compact": "jaxblocks.Wire",
    "Remat": "jaxblocks.Repeat",
    "MoE": "jaxblocks.layers.MixtureOfExperts",
    "KVCache": "jaxblocks.layers.CachedAttention",
    "flash_attention": "jaxblocks.attention",
    **dict.fromkeys(("hutchinson", "trace_estimate"), "jaxblocks.ad.estimate_trace"),
    "forward_laplacian": "jaxblocks.ad.laplacian",
    **dict.fromkeys(("dp_gradients", "dp_sgd", "clipped_gradients"), "jaxblocks.ad.private_gradients"),
    **dict.fromkeys(("lr_finder", "LRFinder", "find_lr"), "jaxblocks.training.find_learning_rate"),
    **dict.fromkeys(("horizontal_flip", "RandomHorizontalFlip"), "jaxblocks.training.random_flip"),
    **dict.fromkeys(("gradient_accumulation", "accumulate_gradients"), "jaxblocks.train_step"),
    "Input": "jax.ShapeDtypeStruct",
    **dict.fromkeys(("optim", "optimizers"), "optax"),
    **dict.fromkeys(("no_grad", "detach"), "jax.lax.stop_gradient"),
    "cuda": "jax.device_put",
    **dict.fromkeys(("PRNGKey", "manual_seed", "set_seed"), "jax.random.key"),
    "tree_map": "jax.tree.map",
    **dict.fromkeys(("autograd", "backward"), "jax.grad"),
    **dict.fromkeys(("f1_score", "precision_score", "recall_score"), "jaxblocks.precision_recall_f1"),
    **dict.fromkeys(("load_pretrained", "from_pretrained"), "jaxblocks.interop.load"),
    **dict.fromkeys(("load_state_dict", "load_safetensors"), "jaxblocks.interop.load_torch"),
    **dict.fromkeys(("save_safetensors", "state_dict"), "jaxblocks.interop.save_torch"),
    **dict.fromkeys(("eigenvalues", "eigsh"), "jaxblocks.ad.largest_eigenvalues"),
    **dict.fromkeys(("pmap", "shard", "DataParallel"), "jaxblocks.sharding.shardings"),
}
"""Functions of JAX, optax and submodules by names elsewhere; their own names are found in these modules."""
