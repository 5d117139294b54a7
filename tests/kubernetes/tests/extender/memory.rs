//! What clients may make the extender hold.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::http::connect;
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::process::memory;
use serde_json::{Value, json};

use crate::Fixture;

/// Largest body of a request, in bytes.
const MAX_BODY_BYTES: usize = 4 << 20;

/// Returns the memory limit of the extender's container as installed, in bytes.
fn limit() -> u64 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/manifests/cgpu.yaml");
    let text = fs::read_to_string(file).expect("the manifests");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let is_extender = |it: &&Value| {
        it["kind"] == "Deployment" && it["metadata"]["name"] == "cgpu-scheduler-extender"
    };
    let extender = objects.iter().find(is_extender).expect("the extender");
    let container = &extender["spec"]["template"]["spec"]["containers"][0];
    let limit = container["resources"]["limits"]["memory"].as_str().expect("a limit");
    let mib: u64 = limit.strip_suffix("Mi").expect("MiB").parse().expect("a number");
    mib << 20
}

const FILTER: &str = "/gpushare-scheduler/filter";

/// Returns the body of a filter request, filled up to the largest length with names of nodes. They
/// need the most memory for their bytes.
fn largest(pod: &Value) -> String {
    let body = json!({"Pod": pod, "NodeNames": ["#"]}).to_string();
    let (begin, end) = body.split_once("\"#\"").expect("the place of the names");
    let names = (MAX_BODY_BYTES - begin.len() - end.len()) / "\"n\",".len();
    padded(format!("{begin}{}\"n\"{end}", "\"n\",".repeat(names - 1)))
}

/// Adds spaces up to the largest length.
fn padded(body: String) -> String {
    let spaces = " ".repeat(MAX_BODY_BYTES - body.len());
    body + &spaces
}

/// Sends a request but the last byte of its body.
fn hold(extender: &Extender, body: &str) -> TcpStream {
    let mut stream = connect(extender.address()).expect("a listener");
    let head =
        format!("POST {FILTER} HTTP/1.1\r\nHost: e\r\nContent-Length: {}\r\n\r\n", body.len());
    let bytes = [head.as_bytes(), &body.as_bytes()[..body.len() - 1]].concat();
    stream.write_all(&bytes).expect("room for the body");
    stream
}

#[test]
fn clients_that_hold_large_bodies_stay_within_the_limit_of_the_chart() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let extender = fixture.extender();
    let pending = fixture.pod(pod("test", "a", 2));
    let body = largest(&pending);
    let mut held: Vec<TcpStream> = (0..300).map(|_| hold(&extender, &body)).collect();
    let holding = memory(extender.pid(), "VmHWM");
    for stream in &mut held {
        // Those that are displaced are closed.
        let _ = stream.write_all(&body.as_bytes()[body.len() - 1..]);
    }
    let is_answered = |mut stream: &TcpStream| stream.read(&mut [0]).is_ok_and(|read| read > 0);
    let answered = held.iter().filter(|stream| is_answered(stream)).count();
    assert!(answered > 0, "all were closed");
    let reply = extender.filter(&pending, &["n1"]);
    assert_eq!(reply["NodeNames"], json!(["n1"]), "{reply}");
    let most = memory(extender.pid(), "VmHWM");
    println!(
        "300 bodies of 4 MiB: {} MiB, {} when {answered} are answered",
        holding >> 20,
        most >> 20
    );
    let limit = limit();
    assert!(most < limit, "{most} of {limit} bytes");
    let body = padded(json!({"Pod": pending, "NodeNames": ["n1"]}).to_string());
    let mut connection = extender.connection();
    let reply = connection.request("POST", FILTER, &body);
    assert_eq!((reply.status, reply.json()["NodeNames"].clone()), (200, json!(["n1"])));
    let reply = connection.request("POST", FILTER, &(body + " "));
    assert_eq!(reply.status, 413, "{reply:?}");
    assert!(reply.text.contains("more than 4194304 bytes"), "{reply:?}");
}
