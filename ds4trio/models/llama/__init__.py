"""The Llama family: SmolLM2, Llama 2 and 3, Qwen 2, 2.5 and 3."""
