//! Serves a site over HTTP/1.1. A connection has one request.
//!
//! It runs on one thread, and accepts a connection every [`ACCEPT_INTERVAL`]. A connection lasts at
//! most [`TIMEOUT`], the head of a request has at most
//! [`MAX_HEAD`] bytes, and when [`MAX_CONNECTIONS`] are open the oldest is closed. So a client that
//! sends garbage, sends nothing or does not read costs one descriptor for a bounded time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{self, Ready, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::PageAccess;
use super::resources::{Reply, Site, answer};
use crate::page::history;

const MAX_CONNECTIONS: usize = 32;
/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 8 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two connections at least. Any local user can make them.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(2);
/// Interval between two tries to accept while the process has no descriptor left.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Serves forever, and takes a sample for the history every [`history::INTERVAL`], unless no client
/// gets the page.
///
/// # Errors
/// When the listener cannot be registered with the runtime.
pub(super) fn serve(
    listener: TcpListener,
    page: PageAccess,
    site: impl Site + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let site = Rc::new(RefCell::new(site));
    LocalSet::new().block_on(&runtime, async move {
        if page != PageAccess::Off {
            spawn_local(take_samples(Rc::clone(&site)));
        }
        accept(listener, page, site).await
    })
}

async fn take_samples(site: Rc<RefCell<impl Site>>) {
    let mut times = interval(history::INTERVAL);
    times.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        times.tick().await;
        site.borrow_mut().sample();
    }
}

async fn accept(
    listener: TcpListener,
    page: PageAccess,
    site: Rc<RefCell<impl Site + 'static>>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let is_local = is_loopback(peer) && stream.local_addr().is_ok_and(is_loopback);
        let site = Rc::clone(&site);
        let reply = move |request: Request<Incoming>| {
            answer(&request, is_local, page, &mut *site.borrow_mut())
        };
        open.push_back(spawn_local(async move {
            let _ = timeout(TIMEOUT, converse(stream, reply)).await;
        }));
        sleep(ACCEPT_INTERVAL).await;
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Reads a request, writes the reply, and waits until the client closes. Closing first would
/// discard the reply of a client that is still writing.
async fn converse(stream: TcpStream, reply: impl Fn(Request<Incoming>) -> Reply) {
    let service = service_fn(|request| -> Ready<Result<Reply, Infallible>> {
        future::ready(Ok(reply(request)))
    });
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        // A client may end its request before it reads the reply.
        .half_close(true)
        .title_case_headers(true)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let _ = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    let mut stream = connection.into_parts().io.into_inner();
    let _ = stream.shutdown().await;
    let mut rest = [0; 2048];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::thread;

    use hyper::body::Bytes;

    use super::super::resources::Resource;
    use super::*;

    struct Text(Option<&'static str>, Duration);

    impl Site for Text {
        fn body(&mut self, _: Resource) -> Option<Bytes> {
            thread::sleep(self.1);
            self.0.map(|text| Bytes::from_static(text.as_bytes()))
        }

        fn sample(&mut self) {}
    }

    /// Starts a server of a text; none: it is not available.
    fn server(text: Option<&'static str>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || serve(listener, PageAccess::Off, Text(text, Duration::ZERO)));
        at
    }

    fn send(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn metrics_are_served_and_other_requests_refused() {
        let at = server(Some("# EOF\n"));
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK\r\n"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\n"),
            ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
            ("\x16\x03\x01\x02\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", ""),
        ] {
            assert!(send(at, request).starts_with(status), "{request:?}: {}", send(at, request));
        }
        assert!(send(at, "PUT /metrics HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET, HEAD\r\n"));
        let long = send(at, &format!("GET /{}", "x".repeat(MAX_HEAD)));
        assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
        assert!(send(at, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n# EOF\n"));
        let head = send(at, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("\r\nContent-Length: 6\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let absent = send(server(None), "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(absent.starts_with("HTTP/1.1 503 "), "{absent}");
    }

    #[test]
    fn client_that_has_ended_its_request_gets_its_reply() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let text = Text(Some("# EOF\n"), Duration::from_millis(200));
        thread::spawn(move || serve(listener, PageAccess::Off, text));
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        let mut early = TcpStream::connect(at).unwrap();
        // The server has accepted the early client when it answers a later one.
        send(at, "GET / HTTP/1.1\r\n\r\n");
        // It is busy with another one when the request and its end arrive together.
        TcpStream::connect(at).unwrap().write_all(request).unwrap();
        thread::sleep(Duration::from_millis(50));
        early.write_all(request).unwrap();
        early.shutdown(Shutdown::Write).unwrap();
        let mut reply = String::new();
        early.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply:?}");
    }

    #[test]
    fn client_that_is_still_writing_gets_its_reply() {
        let at = server(Some("# EOF\n"));
        let request = format!(
            "POST /metrics HTTP/1.1\r\nContent-Length: 400000\r\n\r\n{}",
            "x".repeat(400_000)
        );
        assert!(send(at, &request).starts_with("HTTP/1.1 405 "));
    }
}
