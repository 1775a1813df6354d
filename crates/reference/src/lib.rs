//! The plain executor that defines what every other one must compute.
