//! What happens, asked of built files under the real loader. Runs in parallel.
