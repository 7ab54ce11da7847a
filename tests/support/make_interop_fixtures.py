"""Write the small models of tests/support/fixtures: python tests/support/make_interop_fixtures.py.

It needs PyTorch, transformers (`make parity`) and, for the U-Net, diffusers; the tests that read the fixtures do not.
Each folder has a model with random weights, a tokenizer, and ``expected.safetensors``: tokens and the logits of
transformers for them; for the U-Net images, their steps and the outputs of diffusers.
"""

import json
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "fixtures"
WORDS = "<end> ? to be or not that is the question whether it nobler in mind suffer".split()


def models():
    """The names and the models; weights are far from their initial values, so that none can be left out unnoticed."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    common = dict(vocab_size=len(WORDS), bos_token_id=0, eos_token_id=0)
    rope = dict(rope_type="llama3", rope_theta=10_000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
    torch.manual_seed(0)
    gpt2 = GPT2Config(**common, n_positions=12, n_embd=8, n_inner=12, n_layer=2, n_head=2)
    llama = LlamaConfig(
        **common,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        rope_parameters=rope | {"original_max_position_embeddings": 8},
    )
    for name, model in (("gpt2", GPT2LMHeadModel(gpt2)), ("llama", LlamaForCausalLM(llama))):
        for path, weight in model.named_parameters():
            torch.nn.init.normal_(weight, float("norm" in path or ".ln_" in path) * path.endswith("weight"), 0.3)
        yield name, model.eval()


def write(folder: Path = FOLDER) -> None:
    """Write all fixtures."""
    import torch
    from safetensors.numpy import save_file

    tokens = np.random.default_rng(0).integers(0, len(WORDS), (2, 9))
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "?"}
    end = {"id": 0, "content": "<end>", "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    for name, module in models():
        module.save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink()
        with torch.no_grad():
            logits = module(torch.tensor(tokens)).logits.numpy()
        save_file({"tokens": tokens.astype(np.int32), "logits": logits}, folder / name / "expected.safetensors")
        (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer) + "\n")


def write_unet(folder: Path = FOLDER) -> None:
    """Write a U-Net of diffusers with its default options but the sizes, in float16."""
    import torch
    from diffusers import UNet2DModel
    from safetensors.numpy import save_file

    torch.manual_seed(0)
    module = UNet2DModel(
        in_channels=1,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        norm_num_groups=2,
    ).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.1 * torch.randn(weight.shape)
        module.half().save_pretrained(folder / "unet")
        images, steps = torch.randn(2, 1, 4, 6), torch.tensor([7, 421])
        outputs = module.float()(images, steps).sample
    expected = {"images": images.numpy(), "steps": steps.numpy(), "outputs": outputs.numpy()}
    save_file(expected, folder / "unet" / "expected.safetensors")


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
    write_unet(*map(Path, sys.argv[1:]))
