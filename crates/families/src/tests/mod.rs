mod gemma3;
mod gemma4;
mod gpt_oss;
mod llama;
mod qwen3;
mod refused;
mod support;
