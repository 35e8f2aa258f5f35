"""Small modules of the package `transformers`, with random weights.

Each row is the name of a model class, the settings that make its configuration small, and the
shapes of its inputs: tokens, an image, a sound or frames, by the names of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

WORDS = 99  # the vocabulary of each model
TEXT = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {
    **TEXT,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
PAIR = {  # an encoder and a decoder
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
T5 = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
}  # fmt: skip
SOUND = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model class of `transformers`, its configuration, and its inputs' kinds and shapes."""

    model: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, tuple[int, ...]]
    config: str = ""  # the class of the configuration, where the model's name does not say it
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the configuration
    runs_in_f64: bool = True  # the masks of some have no room for its least number

    def module(self) -> Any:
        """Return the module in evaluation mode, with weights of a fixed seed."""
        import torch
        import transformers

        torch.manual_seed(0)
        config = self._configuration(transformers)
        model = getattr(transformers, self.model)(config)
        for parameter in model.parameters():  # biases and norms too: of zeros a test sees nothing
            if parameter.dim() < 2:
                torch.nn.init.normal_(parameter, parameter.mean().item(), 0.1)
        return model.eval()

    def _configuration(self, transformers: Any) -> Any:
        name = self.config or _configuration_name(self.model)
        parts = {
            part: getattr(transformers, str(kept.get("class"))).__call__(
                **{key: value for key, value in kept.items() if key != "class"}
            )
            for part, kept in self.parts.items()
        }
        parts = {part: config.to_dict() for part, config in parts.items()}
        return getattr(transformers, name)(**self.settings, **parts)

    def example(self) -> dict[str, Any]:
        """Return inputs by their arguments' names: tokens where the name says so, else reals."""
        import torch

        generator = torch.Generator().manual_seed(1)
        return {
            name: torch.randint(3, WORDS, shape, generator=generator)
            if name.endswith("ids")
            else _mask(shape)
            if name.endswith("mask")
            else torch.randn(shape, generator=generator)
            for name, shape in self.inputs.items()
        }


def _mask(shape: tuple[int, ...]) -> Any:
    """Return a mask whose last row ends with two elements of padding."""
    import torch

    mask = torch.ones(shape, dtype=torch.int64)
    mask[-1, -2:] = 0
    return mask


def _configuration_name(model: str) -> str:
    for end in (
        "ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "ForMaskedLM", "EncoderModel",
        "ForImageClassification", "ForObjectDetection", "ForDepthEstimation", "ForCTC",
        "ForSemanticSegmentation", "Model",
    ):  # fmt: skip
        if model.endswith(end):
            return model.removesuffix(end) + "Config"
    raise ValueError(model)


IDS = {"input_ids": (2, 9)}
MASKED = {"input_ids": (2, 9), "attention_mask": (2, 9)}
PIXELS = {"pixel_values": (1, 3, 32, 32)}
BOTH = {"input_ids": (2, 9), "decoder_input_ids": (2, 5)}
WAVE = {"input_values": (1, 400)}


_ROWS = (
    # Encoders of text.
    Case("BertModel", TEXT, MASKED),
    Case("RobertaModel", TEXT, MASKED),
    Case("XLMRobertaModel", TEXT, IDS),
    Case("CamembertModel", TEXT, IDS),
    Case("ElectraModel", {**TEXT, "embedding_size": 16}, MASKED),
    Case("AlbertModel", {**TEXT, "embedding_size": 16}, MASKED),
    Case(
        "DistilBertModel",
        {"vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        MASKED,
    ),
    Case(
        "DebertaModel",
        {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        MASKED,
    ),
    Case(
        "DebertaV2Model",
        {
            **TEXT,
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["c2p", "p2c"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
        MASKED,
    ),
    Case("MPNetModel", TEXT, MASKED),
    Case(
        "MobileBertModel",
        {**TEXT, "embedding_size": 32, "intra_bottleneck_size": 16, "true_hidden_size": 16},
        MASKED,
    ),
    Case("SqueezeBertModel", {**TEXT, "embedding_size": 32}, MASKED),
    Case(
        "ModernBertModel",
        {
            **TEXT,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "local_attention": 4,
            "global_attn_every_n_layers": 2,
        },
        MASKED,
    ),
    Case("FNetModel", TEXT, IDS),
    Case("RoFormerModel", {**TEXT, "embedding_size": 32}, MASKED),
    Case("ConvBertModel", {**TEXT, "embedding_size": 32, "head_ratio": 2}, MASKED),
    Case(
        "EsmModel",
        {**TEXT, "position_embedding_type": "rotary", "mask_token_id": 4, "pad_token_id": 1},
        MASKED,
    ),
    # Decoders.
    Case(
        "GPT2LMHeadModel",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        MASKED,
        "GPT2Config",
    ),
    Case(
        "GPTNeoForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "window_size": 4,
            "attention_types": [[["global", "local"], 1]],
        },
        MASKED,
    ),
    Case("GPTNeoXForCausalLM", TEXT, MASKED),
    Case(
        "GPTJForCausalLM",
        {
            "vocab_size": WORDS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "rotary_dim": 4,
        },
        MASKED,
    ),
    Case("OPTForCausalLM", {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 16}, MASKED),
    Case(
        "BloomForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        MASKED,
    ),
    Case(
        "MptForCausalLM",
        {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
        MASKED,
        runs_in_f64=False,
    ),
    Case("FalconForCausalLM", {**TEXT, "multi_query": True}, MASKED),
    Case("LlamaForCausalLM", GROUPED, MASKED),
    Case("MistralForCausalLM", {**GROUPED, "sliding_window": 4}, MASKED),
    Case("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}, IDS),
    Case("Qwen2ForCausalLM", GROUPED, MASKED),
    Case("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}, MASKED),
    Case(
        "Qwen2MoeForCausalLM",
        {
            **GROUPED,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        IDS,
    ),
    Case("GemmaForCausalLM", {**GROUPED, "head_dim": 8}, MASKED),
    Case("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 4}, MASKED),
    Case("PhiForCausalLM", GROUPED, MASKED),
    Case("Phi3ForCausalLM", GROUPED, MASKED),
    Case("StableLmForCausalLM", GROUPED, MASKED),
    Case("Starcoder2ForCausalLM", {**GROUPED, "sliding_window": 4}, MASKED),
    Case("OlmoForCausalLM", GROUPED, MASKED),
    Case("Olmo2ForCausalLM", GROUPED, MASKED),
    Case("CohereForCausalLM", GROUPED, MASKED),
    Case("GraniteForCausalLM", GROUPED, MASKED),
    Case(
        "CodeGenForCausalLM",
        {
            "vocab_size": WORDS,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "rotary_dim": 4,
        },
        MASKED,
    ),
    Case("BioGptForCausalLM", TEXT, MASKED),
    Case(
        "GPTBigCodeForCausalLM",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        MASKED,
    ),
    Case(
        "MambaForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        IDS,
    ),
    Case(
        "Mamba2ForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 4,
        },
        IDS,
    ),
    Case(
        "RwkvForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "intermediate_size": 48,
        },
        IDS,
    ),
    Case(
        "XLNetModel",
        {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        IDS,
    ),
    # Encoders with decoders.
    Case("T5Model", T5, BOTH),
    Case("MT5Model", T5, BOTH),
    Case("T5EncoderModel", T5, IDS, "T5Config"),
    Case("BartModel", PAIR, BOTH),
    Case("MBartModel", PAIR, BOTH),
    Case("PegasusModel", PAIR, BOTH),
    Case("MarianModel", {**PAIR, "pad_token_id": 0, "decoder_start_token_id": 0}, BOTH),
    Case("BlenderbotModel", PAIR, BOTH),
    Case("M2M100Model", PAIR, BOTH),
    # Images.
    Case("ViTModel", IMAGE, PIXELS),
    Case("DeiTModel", IMAGE, PIXELS),
    Case("BeitModel", {**IMAGE, "use_relative_position_bias": True}, PIXELS),
    Case("Dinov2Model", {**IMAGE, "mlp_ratio": 2}, PIXELS),
    Case(
        "SwinModel",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        PIXELS,
    ),
    Case(
        "Swinv2Model",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        PIXELS,
    ),
    Case("ConvNextModel", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, PIXELS),
    Case(
        "SegformerModel",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "sr_ratios": [4, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        PIXELS,
    ),
    Case(
        "PoolFormerModel",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
        },
        PIXELS,
    ),
    Case(
        "MobileViTModel",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
        },
        {"pixel_values": (1, 3, 64, 64)},
    ),
    Case("SiglipVisionModel", IMAGE, PIXELS, "SiglipVisionConfig"),
    Case(
        "DPTForDepthEstimation",
        {
            **IMAGE,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "fusion_hidden_size": 16,
            "neck_hidden_sizes": [8, 8, 16, 16],
        },
        PIXELS,
    ),
    Case("YolosModel", {**IMAGE, "image_size": [32, 32], "num_detection_tokens": 5}, PIXELS),
    Case(
        "PvtV2Model",
        {
            "image_size": 32,
            "hidden_sizes": [8, 16, 16, 16],
            "depths": [1] * 4,
            "num_attention_heads": [1, 2, 2, 2],
            "sr_ratios": [4, 2, 1, 1],
            "mlp_ratios": [2] * 4,
        },
        {"pixel_values": (1, 3, 64, 64)},
    ),
    Case(
        "SamVisionModel",
        {
            **IMAGE,
            "mlp_dim": 48,
            "output_channels": 16,
            "window_size": 3,
            "global_attn_indexes": [1],
        },
        PIXELS,
        "SamVisionConfig",
    ),
    Case(
        "CLIPModel",
        {},
        {**IDS, **PIXELS},
        "CLIPConfig",
        {
            "text_config": {"class": "CLIPTextConfig", **TEXT, "eos_token_id": 2},
            "vision_config": {"class": "CLIPVisionConfig", **IMAGE},
        },
        runs_in_f64=False,
    ),
    # Sound, and series.
    Case(
        "WhisperModel",
        {
            **PAIR,
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 24,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        {"input_features": (1, 8, 24), "decoder_input_ids": (1, 5)},
    ),
    Case("Wav2Vec2Model", {**SOUND, "mask_time_prob": 0}, WAVE),
    Case("HubertModel", {**SOUND, "mask_time_prob": 0}, WAVE),
    Case("WavLMModel", {**SOUND, "mask_time_prob": 0}, WAVE),
    Case(
        "ASTModel",
        {**IMAGE, "num_mel_bins": 16, "max_length": 32},
        {"input_values": (1, 32, 16)},
    ),
    Case(
        "Speech2TextModel",
        {
            **PAIR,
            "max_source_positions": 64,
            "max_target_positions": 24,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
        },
        {"input_features": (1, 24, 8), "decoder_input_ids": (1, 5)},
        runs_in_f64=False,
    ),
    Case(
        "PatchTSTModel",
        {
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 32,
        },
        {"past_values": (2, 32, 2)},
    ),
    Case(
        "DetrModel",
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_queries": 5,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
        },
        {"pixel_values": (1, 3, 64, 64)},
        parts={
            "backbone_config": {
                "class": "ResNetConfig",
                "embedding_size": 8,
                "hidden_sizes": [8, 8, 8, 16],
                "depths": [1] * 4,
                "layer_type": "basic",
                "out_features": ["stage4"],
            }
        },
    ),
)
CASES: Mapping[str, Case] = {case.model: case for case in _ROWS}
MODULES: Mapping[str, Callable[[], Any]] = {name: case.module for name, case in CASES.items()}
