//! One file a model family: a checkpoint's config in, a program out.
