//! Serves one resource over HTTP/1.1: `GET /metrics`. A connection has one request; all others are
//! refused.
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
use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::exposition::TYPE;

const MAX_CONNECTIONS: usize = 32;
/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 8 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two connections at least. Any local user can make them.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(2);
/// Interval between two tries to accept while the process has no descriptor left.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Serves forever. `text` returns the body of `/metrics`; none: it is not available now.
///
/// # Errors
/// When the listener cannot be registered with the runtime.
pub(super) fn serve(
    listener: TcpListener,
    text: impl FnMut() -> Option<String> + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    LocalSet::new().block_on(&runtime, accept(listener, Rc::new(RefCell::new(text))))
}

async fn accept(
    listener: TcpListener,
    text: Rc<RefCell<impl FnMut() -> Option<String> + 'static>>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let text = Rc::clone(&text);
        let reply = move |request: Request<Incoming>| answer(&request, &mut *text.borrow_mut());
        open.push_back(spawn_local(async move {
            let _ = timeout(TIMEOUT, converse(stream, reply)).await;
        }));
        sleep(ACCEPT_INTERVAL).await;
    }
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

type Reply = Response<Full<Bytes>>;

fn answer<B>(request: &Request<B>, text: &mut impl FnMut() -> Option<String>) -> Reply {
    match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET | &Method::HEAD) => match text() {
            Some(text) => reply(StatusCode::OK, TYPE, text),
            None => refusal(StatusCode::SERVICE_UNAVAILABLE, "The monitor does not answer."),
        },
        ("/metrics", _) => {
            let mut reply = refusal(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.");
            reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            reply
        }
        _ => refusal(StatusCode::NOT_FOUND, "The metrics are at /metrics."),
    }
}

fn refusal(status: StatusCode, message: &str) -> Reply {
    reply(status, "text/plain; charset=utf-8", format!("{message}\n"))
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Reply {
    let mut reply = Response::new(Full::from(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::thread;

    use super::*;

    /// Starts a server of a text; none: it is not available.
    fn server(text: Option<&'static str>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || serve(listener, move || text.map(str::to_owned)));
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
        let text = || {
            thread::sleep(Duration::from_millis(200));
            Some("# EOF\n".to_owned())
        };
        thread::spawn(move || serve(listener, text));
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
