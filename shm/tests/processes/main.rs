//! Several processes on one region: racing, killed, stopped, killed after every single store.
#![cfg(all(target_os = "linux", not(loom)))]

mod child;
mod container;
mod crash;
mod kill;
mod liveness;
mod race;
#[path = "../skip/mod.rs"]
mod skip;
mod trace;
mod words;

const ROLES: &[(&str, child::Role)] = &[
    ("charge-in-rounds", race::charge_in_rounds),
    ("charge-once", race::charge_once),
    ("churn", kill::churn),
    ("guarded", kill::guarded),
    ("hold-lock", kill::hold_lock),
    ("hold", liveness::hold),
    ("close-all", liveness::close_all),
    ("reopen", liveness::reopen),
    ("fork", liveness::fork),
    ("exec", liveness::exec),
    ("charge-and-refund", crash::charge_and_refund),
];
