//! Tests of the web page and its data: their form, who gets them, and what they cost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use cgpu_shm::atomic::Ordering::Relaxed;
use cgpu_shm::units::Bytes;
use serde_json::Value;

use crate::fake_container::Process;
use crate::metrics::{connect, free_address, monitor, request};
use crate::monitor::{Monitor, eventually};
use crate::{Fixture, registration, skip};

/// Returns the status line and the body of a resource.
fn get(at: SocketAddr, path: &str) -> (String, String) {
    let reply = request(at, format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes());
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_default();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

fn data(at: SocketAddr, name: &str) -> Value {
    let (status, body) = get(at, &format!("/api/v1/{name}"));
    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn data_of_the_page_are_those_of_the_socket() {
    let fixture = Fixture::new();
    let dir = fixture.container("trainer");
    let (monitor, at) = monitor(&fixture, "");
    let process = Process::start(&dir, 1, Bytes::from_mib(8000));
    process.cell().held.store(1 << 20, Relaxed);
    let named = cgpu_client::message::Registration {
        name: Some("</script><script>".into()),
        ..registration(&dir)
    };
    monitor.client().register(named).unwrap();
    eventually("its memory", || {
        data(at, "status")["containers"][0]["gpus"][0]["used"].as_u64() == Some(1 << 20)
    });
    let status = data(at, "status");
    // The form of `cgpu smi --json`.
    assert_eq!((&status["monitor"], &status["view"]), (&true.into(), &"host".into()));
    assert_eq!(status["containers"][0]["name"], "</script><script>");
    let socket = serde_json::to_value(monitor.client().status().unwrap()).unwrap();
    for (key, _) in socket.as_object().unwrap() {
        assert!(!status[key].is_null() || socket[key].is_null(), "{key} is not in {status}");
    }
    assert_eq!(status["gpus"][0]["uuid"], socket["gpus"][0]["uuid"]);
    let turns = serde_json::to_value(monitor.client().turns().unwrap()).unwrap();
    assert_eq!(data(at, "turns")["turns"][0]["gpu"], turns[0]["gpu"]);
    // The words of `cgpu doctor --json`.
    let findings = data(at, "findings");
    let blind = findings["causes"].as_array().unwrap();
    let blind = blind.iter().find(|cause| cause["cause"] == "monitor_blind").unwrap();
    assert!(blind["remedy"].as_str().unwrap().starts_with("Install the driver"), "{blind}");
    // The first sample was taken at the start.
    let history = data(at, "history");
    assert_eq!(history["interval_s"], 10);
    assert_eq!(history["times"].as_array().unwrap().len(), 1, "{history}");
    let (line, page) = get(at, "/");
    assert!(line == "HTTP/1.1 200 OK" && page.starts_with("<!doctype html>"), "{line}");
}

#[test]
fn page_beyond_loopback_is_off_by_default() {
    let route = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // Sends nothing; tells which address packets to a network would have.
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let Ok(own) = route else {
        return skip::skip("daemon", "network", "this machine has no address but loopback");
    };
    for (line, is_served) in [("", false), ("page = \"network\"\n", true)] {
        let fixture = Fixture::new();
        let at = SocketAddr::new(own.ip(), free_address().port());
        let _monitor = Monitor::start_with(
            fixture.root(),
            &format!("metrics = \"0.0.0.0:{}\"\n{line}", at.port()),
        );
        eventually("an endpoint", || TcpStream::connect(at).is_ok());
        for path in ["/", "/api/v1/status", "/api/v1/history"] {
            let (line, body) = get(at, path);
            assert_eq!(line.contains(" 200 "), is_served, "{path}: {line}");
            assert_eq!(line.contains(" 403 ") && body.contains("loopback"), !is_served, "{body}");
            let local = SocketAddr::new([127, 0, 0, 1].into(), at.port());
            assert!(get(local, path).0.contains(" 200 "));
        }
        assert!(get(at, "/metrics").0.contains(" 200 "));
    }
}

#[test]
fn page_can_be_switched_off() {
    let fixture = Fixture::new();
    let (_monitor, at) = monitor(&fixture, "page = \"off\"\n");
    for path in ["/", "/api/v1/status", "/api/v1/turns", "/api/v1/findings", "/api/v1/history"] {
        assert_eq!(get(at, path).0, "HTTP/1.1 404 Not Found", "{path}");
    }
    assert!(get(at, "/metrics").0.contains(" 200 "));
}

#[test]
fn clients_that_do_not_read_delay_no_page() {
    let fixture = Fixture::new();
    let (monitor, at) = monitor(&fixture, "");
    let paths = ["/", "/api/v1/status", "/api/v1/history", "/api/v1/turns"];
    let unread: Vec<TcpStream> = (0..80)
        .map(|number| {
            let mut stream = connect(at);
            let path = paths[number % paths.len()];
            stream
                .write_all(format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes())
                .unwrap();
            stream
        })
        .collect();
    assert!(data(at, "status")["monitor"] == true);
    // A body that a client sends is not read, and a name that is not the host's gets nothing.
    let mut stream = connect(at);
    let _ = stream.write_all(b"POST /api/v1/status HTTP/1.1\r\nHost: [::1]\r\n");
    let _ =
        stream.write_all(format!("Content-Length: 9999999\r\n\r\n{}", "x".repeat(9999)).as_bytes());
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 405");
    let rebound = request(at, b"GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(rebound.starts_with("HTTP/1.1 403 ") && !rebound.contains('{'), "{rebound}");
    assert_eq!(monitor.client().get("version").unwrap(), env!("CARGO_PKG_VERSION"));
    drop(unread);
}
