//! The metrics endpoint with any bytes. A connection has at most one reply, of the length that it
//! states. The metrics and the page go only to a request for them, and the page only to one that
//! names a host.

use crate::daemon::Daemon;

thread_local! {
    static DAEMON: Daemon = Daemon::start();
}

/// Returns the value of a header.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Checks a reply; returns whether it has the metrics.
fn check_reply(request: &[u8], reply: &[u8]) -> bool {
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("to {request:?}: {reply:?}")) + 4;
    let head = std::str::from_utf8(&reply[..end]).expect("a head is text");
    let status = head.split(' ').nth(1).expect("a status");
    assert!(head.starts_with("HTTP/1."), "{head}");
    assert!(["200", "400", "403", "404", "405", "414", "431", "503"].contains(&status), "{head}");
    let length: usize = header(head, "Content-Length")
        .map_or(0, |length| length.parse().expect("a length is a number"));
    let is_head = request.trim_ascii_start().starts_with(b"HEAD ");
    assert_eq!(reply.len() - end, if is_head { 0 } else { length }, "{head}");
    let kind = header(head, "Content-Type").unwrap_or_default();
    let is_metrics = kind.starts_with("application/openmetrics-text");
    if status == "200" {
        let line = request.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
        assert!(line.starts_with("GET ") || is_head, "{line:?}");
        if is_metrics {
            assert!(line.contains("/metrics"), "{line:?}");
            assert!(is_head || reply.ends_with(b"# EOF\n"), "{head}");
        } else {
            let path = if kind == "application/json" { "/api/v1/" } else { "/" };
            assert!(line.contains(path) && kind != "text/plain; charset=utf-8", "{line:?} {head}");
            assert!(request.to_ascii_lowercase().windows(5).any(|five| five == b"host:"), "{head}");
        }
    }
    status == "200" && is_metrics
}

pub(crate) fn check(input: &[u8]) {
    DAEMON.with(|daemon| {
        let reply = daemon.scrape(input);
        if !reply.is_empty() {
            check_reply(input, &reply);
        }
        let plain = b"GET /metrics HTTP/1.1\r\n\r\n";
        assert!(check_reply(plain, &daemon.scrape(plain)), "the metrics are served");
        daemon.check();
    });
}
