//! How a slice that the kubelet counted reaches its container: what the device plugin gives the
//! kubelet, and what `cgpu-runtime` requests from the plugin.
//!
//! ```text
//!   kubelet -- Allocate(ids) --> device plugin: a token, in variables and in a CDI device's name
//!   engine -- create --> cgpu-runtime: token from variables, pod and container from annotations
//!                           |-- BindRequest --> device plugin: that pod's annotations and limits
//!                           |<-- BindReply ---- the container's variables, or why it is refused
//! ```
//!
//! Request and reply are one line of JSON each, over a socket that only root can open. The same
//! request has the same reply each time.

use serde::{Deserialize, Serialize};

use crate::names::variable;
use crate::slice::Token;

/// CDI kind of slices.
pub const CDI_KIND: &str = "cgpu.dev/slice";

/// Name of the plugin's socket in the monitor's directory.
pub const SOCKET: &str = "plugin.sock";

/// Maximum length of a line in bytes, its end included.
pub const MAX_LINE_BYTES: u64 = 65_536;

/// Variables that set or lift a limit. Their values come from the reply alone, whatever the pod or
/// its image sets.
pub const LIMIT_VARIABLES: [&str; 9] = [
    variable::VISIBLE,
    variable::INDEX,
    variable::POD,
    variable::CONTAINER,
    variable::DEVICE,
    variable::PERCENT,
    variable::DISABLE,
    "ALIYUN_COM_GPU_VISIBLE_DEVICES",
    "CGPU_MEM_UNIT",
];

/// Request of `cgpu-runtime`: the slice, and the container that was given it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindRequest {
    /// Value of the variable [`variable::SLICE`].
    pub slice: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Uid of the pod.
    pub uid: String,
    /// Name of the container.
    pub container: String,
}

/// Reply of the device plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindReply {
    /// The container starts with these variables.
    Bound(Vec<(String, String)>),
    /// The container does not start, for this reason.
    Refused(String),
}

/// Returns the variables that a container gets before it is known which one it is. No GPU has the
/// name in [`variable::VISIBLE`], so another runtime finds none.
#[must_use]
pub fn provisional(token: Token) -> [(&'static str, String); 2] {
    [(variable::SLICE, token.to_string()), (variable::VISIBLE, placeholder(&token.to_string()))]
}

/// Returns the container's slice if it is not bound yet.
pub fn unbound<'a>(variables: impl Fn(&str) -> Option<&'a str>) -> Option<&'a str> {
    let slice = variables(variable::SLICE)?;
    (variables(variable::VISIBLE) == Some(&placeholder(slice))).then_some(slice)
}

fn placeholder(slice: &str) -> String {
    format!("cgpu-slice-{slice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Dialect;

    #[test]
    fn requests_and_replies_are_one_line_of_json() {
        let request = BindRequest {
            slice: "7-3".into(),
            namespace: "test".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "main".into(),
        };
        let line = r#"{"slice":"7-3","namespace":"test","pod":"p","uid":"u","container":"main"}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
        assert_eq!(serde_json::from_str::<BindRequest>(line).unwrap(), request);
        for (reply, line) in [
            (BindReply::Bound(vec![("A".into(), "1".into())]), r#"{"bound":[["A","1"]]}"#),
            (BindReply::Refused("No.".into()), r#"{"refused":"No."}"#),
        ] {
            assert_eq!(serde_json::to_string(&reply).unwrap(), line);
            assert_eq!(serde_json::from_str::<BindReply>(line).unwrap(), reply);
        }
    }

    #[test]
    fn unbound_slice_is_recognized() {
        let token = Token::of_ids(Dialect::Aliyun, ["7", "8"]).unwrap();
        let given = provisional(token);
        let of = |variables: &[(&'static str, String)], name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone())
        };
        let (slice, visible) = (of(&given, "CGPU_SLICE"), of(&given, "NVIDIA_VISIBLE_DEVICES"));
        assert_eq!((slice.as_deref(), visible.as_deref()), (Some("7-2"), Some("cgpu-slice-7-2")));
        let request = |visible: Option<&'static str>| {
            unbound(|name| if name == "CGPU_SLICE" { Some("7-2") } else { visible })
        };
        assert_eq!(request(Some("cgpu-slice-7-2")), Some("7-2"));
        assert_eq!(
            (request(Some("GPU-1")), request(None), request(Some("cgpu-slice-7-3"))),
            (None, None, None)
        );
    }
}
