//! How a slice that the kubelet counted comes to its container: what the device plugin hands out, and what `cgpu-runtime` asks it then.
//!
//! ```text
//!   kubelet -- Allocate(ids) --> device plugin: a token, in variables and in the name of a CDI device
//!   engine -- create --> cgpu-runtime: token of the variables, pod and container of the annotations
//!                           |-- Question --> device plugin: that pod's annotations and limits
//!                           |<-- Answer ---- the variables of the container, or why it is not started
//! ```
//!
//! One line of JSON each way, over a socket that only root can open. A question may be asked again, and has the same answer.

use serde::{Deserialize, Serialize};

use crate::names::variable;
use crate::slice::Token;

/// Of CDI devices that are slices.
pub const CDI_KIND: &str = "cgpu.dev/slice";

/// The plugin's socket, in the monitor's root.
pub const SOCKET: &str = "plugin.sock";

/// Bytes of a line, its end included; more is no question and no answer.
pub const LONGEST_LINE: u64 = 65_536;

/// Variables that say what a limit is, or that there is none: the answer's alone, whatever the pod's author or its image has set.
pub const OVERRULED: [&str; 9] = [
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

/// Which slice of whose container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// What the variable [`variable::SLICE`] says.
    pub slice: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod itself.
    pub uid: String,
    /// The container's name in it.
    pub container: String,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is started with these variables.
    Bound(Vec<(String, String)>),
    /// It is not started: why, in a sentence.
    Refused(String),
}

/// What a container is given before anybody knows which it is. No GPU is called so: a runtime that was not told what it means finds none.
#[must_use]
pub fn provisional(token: Token) -> [(&'static str, String); 2] {
    [(variable::SLICE, token.to_string()), (variable::VISIBLE, nowhere(&token.to_string()))]
}

/// The slice that a container was given, if nobody has asked yet which it is.
pub fn unbound<'a>(variables: impl Fn(&str) -> Option<&'a str>) -> Option<&'a str> {
    let slice = variables(variable::SLICE)?;
    (variables(variable::VISIBLE) == Some(&nowhere(slice))).then_some(slice)
}

fn nowhere(slice: &str) -> String {
    format!("cgpu-slice-{slice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Dialect;

    #[test]
    fn questions_and_answers_are_one_line_of_json() {
        let question = Question {
            slice: "7-3".into(),
            namespace: "test".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "main".into(),
        };
        let line = r#"{"slice":"7-3","namespace":"test","pod":"p","uid":"u","container":"main"}"#;
        assert_eq!(serde_json::to_string(&question).unwrap(), line);
        assert_eq!(serde_json::from_str::<Question>(line).unwrap(), question);
        for (answer, line) in [
            (Answer::Bound(vec![("A".into(), "1".into())]), r#"{"bound":[["A","1"]]}"#),
            (Answer::Refused("No.".into()), r#"{"refused":"No."}"#),
        ] {
            assert_eq!(serde_json::to_string(&answer).unwrap(), line);
            assert_eq!(serde_json::from_str::<Answer>(line).unwrap(), answer);
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
