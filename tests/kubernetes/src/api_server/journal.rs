//! Who asked what.

use serde_json::Value;

/// A request, and how it was answered.
#[derive(Clone, Debug)]
pub struct Request {
    /// GET, POST, ...
    pub method: String,
    /// Without what stands behind the question mark.
    pub path: String,
    /// What stands there, as it was sent.
    pub query: String,
    /// What was sent; null: nothing.
    pub body: Value,
    /// HTTP's number. 0: the line was cut.
    pub status: u16,
}

impl Request {
    /// Whether it is this method, and the path ends so.
    #[must_use]
    pub fn is(&self, method: &str, end: &str) -> bool {
        self.method == method && self.path.ends_with(end)
    }
}
