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
