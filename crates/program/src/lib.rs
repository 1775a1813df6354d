//! A model as data: ops, builder, batches, sequence state and the traits that run them.
