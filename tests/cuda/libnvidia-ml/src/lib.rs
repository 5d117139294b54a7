//! The simulated card as libnvidia-ml.so.1
