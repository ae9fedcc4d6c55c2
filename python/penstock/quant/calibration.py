"""Fields in which quantizers note how they found the codes: they change nothing that is stored."""

from __future__ import annotations

from penstock.quant.settings import Settings

# Of GPTQModel, AutoGPTQ and optimum; also which kernels of other libraries were to multiply.
GPTQ = (
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs",
    "damp_auto_increment", "damp_percent", "dataset", "disable_exllama", "exllama_config",
    "max_input_length", "meta", "model_file_base_name", "model_name_or_path", "model_seqlen",
    "module_name_preceding_first_block", "mse", "pad_token_id", "quantizer", "static_groups",
    "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
)  # fmt: skip
# Of AutoRound, in its own format and where it writes the others'; also what rounding activations
# would take.
AUTO_ROUND = (
    "act_data_type", "act_dynamic", "act_group_size", "act_sym", "amp", "autoround_version",
    "batch_size", "dataset", "enable_minmax_tuning", "enable_norm_bias_tuning",
    "enable_quanted_input", "gradient_accumulate_steps", "iters", "low_gpu_mem_usage", "lr",
    "minmax_lr", "model_free", "nsamples", "provider", "scale_dtype", "seqlen",
    "static_attention_granularity", "static_kv_granularity",
)  # fmt: skip


def skip_calibration(settings: Settings, method: str) -> None:
    """Skips these fields in a config of `quant_method` "gptq" or "awq", and checks those that its
    writers repeat. Raises BadModel for values that contradict the format."""
    settings.skip("quant_method", "to_quant_block_names", *GPTQ, *AUTO_ROUND)
    settings.choice("method", (method,), method)
    settings.choice("pack_dtype", ("int32",), "int32")
    settings.choice("data_type", ("int",), "int")
    settings.choice("act_bits", (16, 32), 16)
