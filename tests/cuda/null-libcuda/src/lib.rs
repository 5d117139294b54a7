//! The null driver: answers every call at once, so that only the shim's cost is seen (libcuda.so.1)
