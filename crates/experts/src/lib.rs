//! Where routed experts come from: sources behind ExpertSource.
