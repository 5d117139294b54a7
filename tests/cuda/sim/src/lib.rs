//! The simulated card: a crash-safe shared segment and a pure timeline
