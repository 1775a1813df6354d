//! The fast CPU executor: canonical arithmetic at the speed of memory.
