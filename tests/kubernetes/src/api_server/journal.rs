//! The journal of requests.

use serde_json::Value;

/// A request and its status.
#[derive(Clone, Debug)]
pub struct Request {
    /// GET, POST, ...
    pub method: String,
    /// The path without its query.
    pub path: String,
    /// The query as it was sent.
    pub query: String,
    /// The body; null if there was none.
    pub body: Value,
    /// HTTP status; 0 if the connection broke.
    pub status: u16,
}

impl Request {
    /// Returns whether it has this method and its path ends like this.
    #[must_use]
    pub fn is(&self, method: &str, end: &str) -> bool {
        self.method == method && self.path.ends_with(end)
    }
}
