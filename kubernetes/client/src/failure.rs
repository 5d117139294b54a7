//! Failures of requests to the API server.

use std::error::Error;
use std::fmt;

/// Why a request has no reply, or an error as its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No cluster is configured; a person must correct that first.
    Setup(String),
    /// The object is not the version that the request was made for.
    Conflict(String),
    /// An object of this name already exists.
    Exists(String),
    /// The object does not exist.
    NotFound(String),
    /// The version has expired at the API server.
    Gone(String),
    /// The API server refused the request.
    Refused {
        /// HTTP status.
        code: u16,
        /// Message of the API server.
        message: String,
    },
    /// The API server did not answer, or not in time.
    Unreachable(String),
    /// The reply does not follow the protocol.
    Garbled(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup(what) => write!(f, "cannot access a cluster: {what}"),
            Self::Conflict(what) | Self::Exists(what) | Self::NotFound(what) | Self::Gone(what) => {
                f.write_str(what)
            }
            Self::Refused { code, message } => {
                write!(f, "the API server answers {code}: {message}")
            }
            Self::Unreachable(what) => write!(f, "the API server does not answer: {what}"),
            Self::Garbled(what) => write!(f, "cannot parse the reply of the API server: {what}"),
        }
    }
}

impl Error for Failure {}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                Self::of_status(status.code, &status.reason, status.message)
            }
            kube::Error::SerdeError(error) => Self::Garbled(error.to_string()),
            kube::Error::FromUtf8(error) => Self::Garbled(error.to_string()),
            other => Self::Unreachable(chain(&other)),
        }
    }
}

impl Failure {
    pub(crate) fn of_status(code: u16, reason: &str, message: String) -> Self {
        match (code, reason) {
            (409, "AlreadyExists") => Self::Exists(message),
            (409, _) => Self::Conflict(message),
            // Another 404 is of a path that the API server does not serve.
            (404, "NotFound") => Self::NotFound(message),
            (410, _) => Self::Gone(message),
            _ => Self::Refused { code, message },
        }
    }
}

/// Returns the messages of an error and of its sources; the innermost says what happened.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let inner = error.to_string();
        // Many errors repeat the message of their source.
        if !text.contains(&inner) {
            text.push_str(": ");
            text.push_str(&inner);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_a_status_depends_on_code_and_reason() {
        let of = |code, reason| Failure::of_status(code, reason, "m".to_owned());
        assert_eq!(of(409, "Conflict"), Failure::Conflict("m".into()));
        assert_eq!(of(409, "AlreadyExists"), Failure::Exists("m".into()));
        assert_eq!(of(410, "Expired"), Failure::Gone("m".into()));
        assert_eq!(of(404, "NotFound"), Failure::NotFound("m".into()));
        let unserved = Failure::Refused { code: 404, message: "m".into() };
        assert_eq!(of(404, "Failed to parse error data"), unserved);
        assert_eq!(of(403, "Forbidden").to_string(), "the API server answers 403: m");
    }
}
