//! `cgpu-scheduler-extender`: answers kube-scheduler's questions about cards.

#![forbid(unsafe_code)]

fn main() {}
