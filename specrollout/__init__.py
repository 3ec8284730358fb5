"""Quantized self-speculative decoding for SGLang."""
