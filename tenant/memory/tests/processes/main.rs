//! Processes of one container: racing at the limit, killed at random, killed after every single
//! store.

mod child;
mod crash;
mod kill;
mod member;
mod race;
