//! The host's side of cgpu: whose turn it is on each card, the books, the control socket.
//!
//! | module | what it is |
//! |---|---|
//! | [`controller`] | pure: (state, time, what the containers report) -> whose turn it is and when to look again |
//! | [`message`] | what is said over the control socket, one JSON object per line |
//! | [`client`] | asks a monitor over its socket |
//!
//! `docs/turns.md` is the protocol with the containers' gates, `docs/control.md` that of the socket.
#![forbid(unsafe_code)]

pub mod client;
pub mod controller;
pub mod message;
