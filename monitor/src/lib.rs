//! The host monitor: whose turn it is, the books, the control socket
