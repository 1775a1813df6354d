//! Opening a model and generating from one or several sequences.
