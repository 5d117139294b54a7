"""Generates tokens by vLLM with a small model of random weights; prints them.

The model is a configuration alone, so nothing is downloaded. vLLM takes most of the memory that it
sees for its cache.
"""

import json
import tempfile
from pathlib import Path

CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def main():
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIGURATION))
        model = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=256,
            gpu_memory_utilization=0.8,
            seed=1,
        )
        sampling = SamplingParams(max_tokens=32, temperature=0, ignore_eos=True, detokenize=False)
        done = model.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)
        print(list(done[0].outputs[0].token_ids))


# vLLM starts processes that import this file.
if __name__ == "__main__":
    main()
