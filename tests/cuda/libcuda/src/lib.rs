//! The simulated card as libcuda.so.1
