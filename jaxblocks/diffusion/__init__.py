"""Diffusion models: noise schedules, training of a denoiser (any pair that reads ``time``), and samplers.

Read ``schedules`` first, then ``prediction_types``, ``losses``, ``samplers`` and ``guidance``; ``mixtures`` has exact
denoisers.

This subpackage imports only layers, which ``import jaxblocks`` has loaded already, so its names are imported eagerly.
"""

from jaxblocks.core.lazy import explain_missing_names

# The noise at each time, and the times of a sampler.
from jaxblocks.diffusion.schedules import (
    Schedule,
    add_noise,
    cosine_schedule,
    ddpm_schedule,
    flow_matching_schedule,
    times,
    variance_exploding_schedule,
    variance_preserving_schedule,
)

# Prediction types of a denoiser.
from jaxblocks.diffusion.prediction_types import PREDICTION_TYPES, PredictionType, convert, error_scale

# Training.
from jaxblocks.diffusion.losses import DenoisingLoss, denoising_loss, sample_times

# Sampling.
from jaxblocks.diffusion.samplers import (
    ancestral,
    ddim,
    dpm_solver_pp_2m,
    euler,
    heun,
    initial_noise,
    predictor_corrector,
)

# Sampling with a condition.
from jaxblocks.diffusion.guidance import classifier_free_guidance, classifier_guidance, drop_condition

# Data with closed forms.
from jaxblocks.diffusion.mixtures import GaussianMixture, gaussian_mixture

__all__ = [
    "PREDICTION_TYPES",
    "DenoisingLoss",
    "GaussianMixture",
    "PredictionType",
    "Schedule",
    "add_noise",
    "ancestral",
    "classifier_free_guidance",
    "classifier_guidance",
    "convert",
    "cosine_schedule",
    "ddim",
    "ddpm_schedule",
    "denoising_loss",
    "dpm_solver_pp_2m",
    "drop_condition",
    "error_scale",
    "euler",
    "flow_matching_schedule",
    "gaussian_mixture",
    "heun",
    "initial_noise",
    "predictor_corrector",
    "sample_times",
    "times",
    "variance_exploding_schedule",
    "variance_preserving_schedule",
]
explain_missing_names(__name__)
