//! One resource over HTTP/1.1: `GET /metrics`. One request a connection; everything else is a short refusal.
//!
//! One thread, no connection waited for: each has [`PATIENCE`] in all, a request of at most [`LONGEST`], and when [`MOST`] are there the oldest
//! goes. Who sends garbage, nothing, or reads nothing costs a descriptor for a while.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::exposition::TYPE;

/// Connections at once.
const MOST: usize = 32;
/// The longest request.
const LONGEST: usize = 8 << 10;
/// How long a connection may last.
const PATIENCE: Duration = Duration::from_secs(10);
/// Header lines that are looked at.
const HEADERS: usize = 64;

/// Serves forever. `text` gives what `/metrics` reads; none: it cannot be had now.
///
/// # Errors
/// When the system no longer lets us wait for connections.
pub(super) fn serve(listener: &TcpListener, mut text: impl FnMut() -> Option<String>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        let ready = wait(listener, &connections)?;
        for (connection, ready) in connections.iter_mut().zip(&ready[1..]) {
            if *ready {
                connection.go_on(&mut text);
            }
        }
        connections.retain(|connection| !connection.over && connection.since.elapsed() < PATIENCE);
        if ready[0]
            && let Ok((stream, _)) = listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            if connections.len() >= MOST {
                connections.remove(0);
            }
            let mut connection = Connection::new(stream);
            // Most send their request as soon as they are connected: it is here already, and answered without another look round.
            connection.go_on(&mut text);
            if !connection.over {
                connections.push(connection);
            }
        }
    }
}

/// Sleeps until something can be done; whether at the listener, then at each connection.
fn wait(listener: &TcpListener, connections: &[Connection]) -> io::Result<Vec<bool>> {
    let mut all = vec![PollFd::new(listener, PollFlags::IN)];
    all.extend(connections.iter().map(|connection| {
        let wanted = if connection.reply.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        PollFd::new(&connection.stream, wanted)
    }));
    let left = connections.iter().map(|connection| PATIENCE.saturating_sub(connection.since.elapsed())).min();
    // Rounded up, lest we come a moment too early again and again.
    let left =
        left.map(|left| Timespec { tv_sec: i64::try_from(left.as_secs() + 1).unwrap_or(1), tv_nsec: 0 });
    match poll(&mut all, left.as_ref()) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(vec![false; all.len()]),
        Err(error) => return Err(error.into()),
    }
    Ok(all.iter().map(|one| !one.revents().is_empty()).collect())
}

struct Connection {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    /// What is left to be written; empty: the request is not complete yet.
    reply: Vec<u8>,
    /// Nothing follows the request: once the reply is written the connection can be closed.
    whole: bool,
    /// All is written. What still comes is read and dropped: closing before would take the reply from a client that is still writing.
    lingers: bool,
    over: bool,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            since: Instant::now(),
            request: Vec::new(),
            reply: Vec::new(),
            whole: false,
            lingers: false,
            over: false,
        }
    }

    fn go_on(&mut self, text: impl FnMut() -> Option<String>) {
        if self.lingers {
            self.discard();
            return;
        }
        if self.reply.is_empty() {
            self.read(text);
        }
        self.write();
    }

    fn read(&mut self, text: impl FnMut() -> Option<String>) {
        let mut bytes = [0; 2048];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.over = true,
            Ok(count) => {
                self.request.extend_from_slice(&bytes[..count]);
                if let Some(reply) = answer(&self.request, text) {
                    (self.reply, self.whole) = (reply, is_whole(&self.request));
                }
            }
            Err(error) => self.over |= !may_go_on(&error),
        }
    }

    fn write(&mut self) {
        while !self.reply.is_empty() {
            match self.stream.write(&self.reply) {
                Ok(count) => drop(self.reply.drain(..count)),
                Err(error) if may_go_on(&error) => return,
                Err(_) => break,
            }
            if self.reply.is_empty() {
                self.lingers = !self.whole && self.stream.shutdown(Shutdown::Write).is_ok();
                self.over = !self.lingers;
            }
        }
        self.over |= !self.reply.is_empty();
    }

    fn discard(&mut self) {
        match self.stream.read(&mut [0; 2048]) {
            Ok(0) => self.over = true,
            Ok(_) => {}
            Err(error) => self.over |= !may_go_on(&error),
        }
    }
}

fn may_go_on(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether all that the client sends has been read: a request that brings nothing along, and nothing after it.
fn is_whole(request: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let ends = parsed.parse(request).is_ok_and(|status| status == httparse::Status::Complete(request.len()));
    let brings = |header: &httparse::Header<'_>| {
        ["content-length", "transfer-encoding", "expect", "upgrade"]
            .iter()
            .any(|name| header.name.eq_ignore_ascii_case(name))
    };
    ends && matches!(parsed.method, Some("GET" | "HEAD")) && !parsed.headers.iter().any(brings)
}

/// The reply to a request; none while it is not complete.
fn answer(request: &[u8], mut text: impl FnMut() -> Option<String>) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(status) if status.is_complete() => {}
        Ok(_) if request.len() <= LONGEST => return None,
        Ok(_) => return Some(refusal("431 Request Header Fields Too Large", "The request is too long.")),
        Err(_) => return Some(refusal("400 Bad Request", "That is no HTTP request.")),
    }
    let (method, path) = (parsed.method.unwrap_or_default(), parsed.path.unwrap_or_default());
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    Some(match (path, method) {
        ("/metrics", "GET" | "HEAD") => match text() {
            Some(text) => reply("200 OK", TYPE, &text, method == "HEAD"),
            None => refusal("503 Service Unavailable", "The monitor does not answer."),
        },
        ("/metrics", _) => refusal("405 Method Not Allowed\r\nAllow: GET, HEAD", "Only GET and HEAD."),
        _ => refusal("404 Not Found", "The metrics are at /metrics."),
    })
}

fn refusal(status: &str, sentence: &str) -> Vec<u8> {
    reply(status, "text/plain; charset=utf-8", &format!("{sentence}\n"), false)
}

fn reply(status: &str, kind: &str, body: &str, bare: bool) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let mut reply = head.into_bytes();
    if !bare {
        reply.extend_from_slice(body.as_bytes());
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(request: &str) -> String {
        let reply = answer(request.as_bytes(), || Some("# EOF\n".into()));
        String::from_utf8(reply.unwrap_or_default()).unwrap()
    }

    #[test]
    fn only_a_request_that_nothing_follows_is_whole() {
        for (request, whole) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", true),
            ("HEAD /x HTTP/1.0\r\n\r\n", true),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", false),
            ("GET /metrics HTTP/1.1\r\n\r\nGET", false),
            ("GET /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n", false),
            ("POST /metrics HTTP/1.1\r\n\r\n", false),
            ("\x16\x03\x01\r\n\r\n", false),
        ] {
            assert_eq!(is_whole(request.as_bytes()), whole, "{request:?}");
        }
    }

    #[test]
    fn one_resource_and_refusals() {
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n"),
            ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
            ("\x16\x03\x01\x02\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", ""),
        ] {
            assert!(answered(request).starts_with(status), "{request:?}: {}", answered(request));
        }
        assert!(answered(&format!("GET /{}", "x".repeat(LONGEST))).starts_with("HTTP/1.1 431 "));
        assert!(answered("GET /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n# EOF\n"));
        assert!(
            answered("HEAD /metrics HTTP/1.1\r\n\r\n")
                .ends_with("Content-Length: 6\r\nConnection: close\r\n\r\n")
        );
        let absent = answer(b"GET /metrics HTTP/1.1\r\n\r\n", || None).unwrap();
        assert!(absent.starts_with(b"HTTP/1.1 503 "));
    }
}
