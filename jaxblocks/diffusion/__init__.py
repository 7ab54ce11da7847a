"""Diffusion: from data to noise, and back by a denoiser: any pair that reads ``time``, trained here, sampled here."""

# How much noise at each time, and the grid of times that a sampler goes through.
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

# What a denoiser predicts.
from jaxblocks.diffusion.parametrizations import PARAMETRIZATIONS, convert, error_scale

# How it learns.
from jaxblocks.diffusion.losses import Denoising, denoising_loss, drop_condition, sample_times

# From noise to data.
from jaxblocks.diffusion.samplers import (
    ancestral,
    ddim,
    dpm_solver_pp_2m,
    euler,
    heun,
    initial_noise,
    predictor_corrector,
)

# To data of a wanted kind.
from jaxblocks.diffusion.guidance import classifier_guided, guided

# Data for which all of it is known.
from jaxblocks.diffusion.mixtures import GaussianMixture, gaussian_mixture

__all__ = [
    "PARAMETRIZATIONS",
    "Denoising",
    "GaussianMixture",
    "Schedule",
    "add_noise",
    "ancestral",
    "classifier_guided",
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
    "guided",
    "heun",
    "initial_noise",
    "predictor_corrector",
    "sample_times",
    "times",
    "variance_exploding_schedule",
    "variance_preserving_schedule",
]
