//! Clients that hold connections, send slowly or send too much, over real sockets.

use std::net::Ipv4Addr;

use cgpu_kubernetes_client::Leadership;
use cgpu_kubernetes_core::names::Dialects;
use clap::Parser;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;

use super::*;
use crate::binder::Binder;
use crate::cache::ClusterCache;
use crate::events::EventRecorder;
use crate::leader::Replicas;
use crate::options::Options;
use crate::routes::{self, Handlers};

const SCHEDULER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);
const WATCHDOG: Duration = Duration::from_secs(60);

const PROBE: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";

/// Limits that no test reaches.
fn generous() -> Limits {
    Limits { head: NEVER, body: NEVER, request: NEVER, idle: NEVER, ..Limits::new(false) }
}

/// Starts the extender's server, without a cluster.
async fn server(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind((SCHEDULER, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let options = Options::parse_from(["extender", "--server", "http://127.0.0.1:1"]);
    let api = options.access.api().await.unwrap();
    let cache = Arc::new(ClusterCache::new(Dialects::default()));
    let metrics = Arc::new(Metrics::new());
    let (_, leader) = watch::channel(Leadership::Own);
    let router = routes::router(Arc::new(Handlers {
        binder: Binder::new(api.clone(), Arc::clone(&cache), NEVER),
        replicas: Replicas::new(leader, None, NEVER),
        api,
        cache,
        fragmentation: Arc::default(),
        retry: Arc::default(),
        events: Arc::new(EventRecorder::new().0),
        metrics: Arc::clone(&metrics),
        placement: options.node_placement.into(),
        whole_nodes: false,
        large_requests: Places::new(limits.large_requests),
        decisions: Semaphore::new(2),
        limits: limits.clone(),
    }));
    let (sender, ended) = watch::channel(false);
    tokio::spawn(async move {
        let _sender = sender;
        serve(listener, None, router, limits, metrics, ended).await;
    });
    address
}

async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn send(stream: &mut TcpStream, text: &str) {
    // The server may have closed the connection.
    let _ = stream.write_all(text.as_bytes()).await;
}

/// Reads until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    let reading = stream.read_to_end(&mut read);
    let closed = timeout(WATCHDOG, reading).await.expect("the server closes the connection");
    // A connection is also closed by a reset.
    drop(closed);
    String::from_utf8(read).unwrap()
}

/// Reads what the server has sent, at least one byte.
async fn some(stream: &mut TcpStream) -> String {
    let mut read = vec![0; 4096];
    let count = timeout(WATCHDOG, stream.read(&mut read)).await.expect("a reply").unwrap_or(0);
    String::from_utf8_lossy(&read[..count]).into_owned()
}

fn head(path: &str, length: usize) -> String {
    format!(
        "POST /gpushare-scheduler/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    )
}

#[tokio::test]
async fn client_that_sends_nothing_or_half_a_head_is_closed() {
    for sent in ["", "GET /healthz HTTP/1.1\r\nHost:"] {
        let address = server(Limits { head: SHORT, ..generous() }).await;
        let mut stream = connect(HOSTILE, address).await;
        send(&mut stream, sent).await;
        assert_eq!(rest(stream).await, "");
    }
}

#[tokio::test]
async fn client_that_sends_half_a_body_is_refused() {
    let address = server(Limits { body: SHORT, ..generous() }).await;
    for path in ["filter", "bind"] {
        let mut stream = connect(HOSTILE, address).await;
        send(&mut stream, &(head(path, 1000) + "{")).await;
        let reply = rest(stream).await;
        assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
    }
}

#[tokio::test]
async fn idle_client_is_closed_after_its_reply() {
    let address = server(Limits { idle: SHORT, ..generous() }).await;
    let mut stream = connect(HOSTILE, address).await;
    send(&mut stream, PROBE).await;
    let reply = rest(stream).await;
    assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("\r\n\r\nok"), "{reply}");
}

#[tokio::test]
async fn client_that_holds_all_connections_displaces_only_its_own() {
    let address = server(Limits { connections: 8, ..generous() }).await;
    let mut scheduler = connect(SCHEDULER, address).await;
    send(&mut scheduler, PROBE).await;
    assert!(some(&mut scheduler).await.starts_with("HTTP/1.1 200 "));
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut stream = connect(HOSTILE, address).await;
        send(&mut stream, "GET").await;
        held.push(stream);
    }
    // Its older connections are closed; the scheduler's, which is older still, is not.
    for stream in held.drain(..25) {
        assert_eq!(rest(stream).await, "");
    }
    send(&mut scheduler, PROBE).await;
    assert!(some(&mut scheduler).await.starts_with("HTTP/1.1 200 "));
    let mut other = connect(SCHEDULER, address).await;
    send(&mut other, PROBE).await;
    assert!(some(&mut other).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn client_that_holds_all_bodies_delays_no_other() {
    let address = server(Limits { large_requests: 2, ..generous() }).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        let mut stream = connect(HOSTILE, address).await;
        send(&mut stream, &(head("filter", 1 << 20) + &"x".repeat(1000))).await;
        held.push(stream);
    }
    for stream in held.drain(..4) {
        assert_eq!(rest(stream).await, "");
    }
    let mut scheduler = connect(SCHEDULER, address).await;
    send(&mut scheduler, &(head("filter", 2) + "{}")).await;
    let reply = some(&mut scheduler).await;
    assert!(reply.contains("the cluster has not been listed yet"), "{reply}");
}

#[tokio::test]
async fn body_beyond_its_limit_is_refused() {
    let address = server(Limits { body_bytes: 1000, ..generous() }).await;
    for (path, length, status) in [
        ("filter", 1000, 200),
        ("filter", 1001, 413),
        ("prioritize", 1001, 413),
        ("bind", 16 << 10, 500),
        ("bind", (16 << 10) + 1, 413),
    ] {
        let chunked = format!(
            "POST /gpushare-scheduler/{path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
             {length:x}\r\n{}\r\n0\r\n\r\n",
            " ".repeat(length)
        );
        for request in [head(path, length) + &" ".repeat(length), chunked] {
            let mut stream = connect(HOSTILE, address).await;
            send(&mut stream, &request).await;
            let reply = some(&mut stream).await;
            assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {length}: {reply}");
        }
    }
}

#[tokio::test]
async fn pending_request_is_answered_at_shutdown() {
    let listener = TcpListener::bind((SCHEDULER, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (started, begun) = tokio::sync::oneshot::channel();
    let started = Arc::new(std::sync::Mutex::new(Some(started)));
    let reply = move || async move {
        if let Some(started) = started.lock().unwrap().take() {
            started.send(()).unwrap();
        }
        tokio::time::sleep(SHORT).await;
        "done"
    };
    let router = Router::new().route("/", axum::routing::get(reply));
    let (sender, ended) = watch::channel(false);
    let metrics = Arc::new(Metrics::new());
    let serving = tokio::spawn(serve(listener, None, router, generous(), metrics, ended));
    let mut idle = connect(SCHEDULER, address).await;
    send(&mut idle, "GET").await;
    let mut stream = connect(SCHEDULER, address).await;
    send(&mut stream, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    begun.await.unwrap();
    sender.send_replace(true);
    assert!(rest(stream).await.ends_with("\r\n\r\ndone"));
    drop(idle);
    timeout(WATCHDOG, serving).await.expect("it ends").unwrap();
}
