use serde_json::Value;

use super::*;

#[test]
fn requests_are_plain_lines() {
    for (line, request) in [
        (r#"{"op":"get","path":"0/policy"}"#, Request::Get { path: "0/policy".into() }),
        (
            r#"{"op":"set","path":"0/policy","value":"2"}"#,
            Request::Set { path: "0/policy".into(), value: "2".into() },
        ),
        (r#"{"op":"status"}"#, Request::Status),
        (
            r#"{"op":"register","dir":"/run/cgpu/containers/a"}"#,
            Request::Register(Registration {
                dir: "/run/cgpu/containers/a".into(),
                ..Registration::default()
            }),
        ),
        (
            r#"{"op":"release","dir":"/run/cgpu/containers/a"}"#,
            Request::Release { dir: "/run/cgpu/containers/a".into(), pid: None },
        ),
    ] {
        assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        assert_eq!(serde_json::to_string(&request).unwrap(), line);
    }
}

#[test]
fn replies_are_plain_lines() {
    for (line, reply) in [
        (r#"{"value":"1"}"#, Reply::Value("1".into())),
        (r#""done""#, Reply::Done),
        (
            r#"{"refused":{"errno":"ENOENT","message":"No GPU 7."}}"#,
            Reply::Refused(Refusal::new(Errno::ENOENT, "No GPU 7.")),
        ),
    ] {
        assert_eq!(serde_json::from_str::<Reply>(line).unwrap(), reply);
        assert_eq!(serde_json::to_string(&reply).unwrap(), line);
    }
}

#[test]
fn misspelt_field_is_an_error() {
    serde_json::from_str::<Request>(r#"{"op":"register","dir":"/x","wieght":3}"#).unwrap_err();
    serde_json::from_str::<Request>(r#"{"op":"reboot"}"#).unwrap_err();
}

/// Whether `now` has all that `then` has, with equal values. It may have more.
fn has(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            then.iter().all(|(key, then)| now.get(key).is_some_and(|now| has(now, then)))
        }
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| has(now, then))
        }
        _ => now == then,
    }
}

/// Messages of release 0.1.0, in which every field has a value: a patch release keeps their form
/// (`docs/internals/releasing.md`). A new minor release may record them anew.
#[test]
fn messages_of_release_0_1_0_keep_their_form() {
    let recorded: Value = serde_json::from_str(include_str!("release-0.1.0.json")).unwrap();
    let messages = |kind: &str| recorded[kind].as_array().unwrap().clone();
    for then in messages("requests") {
        let request: Request = serde_json::from_value(then.clone()).unwrap();
        assert_eq!(serde_json::to_value(request).unwrap(), then);
    }
    for then in messages("replies") {
        let reply: Reply = serde_json::from_value(then.clone()).unwrap();
        let now = serde_json::to_value(reply).unwrap();
        assert!(has(&now, &then), "recorded: {then:#}\nnow: {now:#}");
    }
    let operations = messages("requests").len() + messages("replies").len();
    assert_eq!(operations, 12 + 11, "one message of each operation and reply");
}
