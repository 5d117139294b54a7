//! The API server, as far as our programs speak to it.
