//! Logits to token: samplers whose draws are keyed by seed and position.
