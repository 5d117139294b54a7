//! Errors of one line: what happened, and what to do.

use std::fmt;

use cgpu_kubernetes_client::Failure;
use cgpu_text::printable;

#[derive(Debug)]
pub(crate) struct Error {
    message: String,
    pub(crate) code: u8,
}

impl Error {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self { message: line(&message.to_string()), code: 1 }
    }

    /// Sets an exit code other than 1.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match advice(&failure) {
            Some(advice) => Self::new(format!("{failure}; {advice}")),
            None => Self::new(failure),
        }
    }
}

fn advice(failure: &Failure) -> Option<&'static str> {
    match failure {
        Failure::Setup(_) => Some(
            "name a kubeconfig with --kubeconfig or KUBECONFIG, and a context that is in it with \
             --context",
        ),
        Failure::Unreachable(_) => Some(
            "check that the server of the kubeconfig's context (or of --server) is the cluster's \
             and can be reached from here",
        ),
        Failure::Refused { code: 401, .. } => {
            Some("log in again: the API server does not know the user of the kubeconfig's context")
        }
        Failure::Refused { code: 403, .. } => Some(
            "ask an administrator to bind the cluster role cgpu-inspect to you \
             (kubernetes/manifests/cgpu.yaml): it only lists objects",
        ),
        Failure::Conflict(_)
        | Failure::Exists(_)
        | Failure::NotFound(_)
        | Failure::Gone(_)
        | Failure::Refused { .. }
        | Failure::Garbled(_) => None,
    }
}

fn line(text: &str) -> String {
    printable(text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_error_names_the_cluster_role() {
        let message = "pods is forbidden: User \"me\" cannot list resource \"pods\" in API \
                       group \"\" at the cluster scope";
        let error = Error::from(Failure::Refused { code: 403, message: message.to_owned() });
        assert_eq!(
            error.to_string(),
            format!(
                "the API server answers 403: {message}; ask an administrator to bind the cluster \
                 role cgpu-inspect to you (kubernetes/manifests/cgpu.yaml): it only lists objects"
            )
        );
    }

    #[test]
    fn message_is_one_line() {
        assert_eq!(Error::new("a\nb\u{1b}[1mc\n").to_string(), "a b?[1mc");
    }
}
