//! Processes of one container: racing at the limit, killed at random, killed after every single
//! store.

// The children here exchange no messages with the test.
#[allow(dead_code)]
#[path = "../../../../shm/tests/processes/child.rs"]
mod child;
mod crash;
mod kill;
mod member;
mod race;
#[path = "../../../../shm/tests/processes/trace.rs"]
mod trace;
#[path = "../../../../shm/tests/processes/words.rs"]
mod words;

const ROLES: &[(&str, child::Role)] = &[
    ("rounds", race::rounds),
    ("once", race::once),
    ("churn", kill::churn),
    ("all_calls", crash::all_calls),
];
