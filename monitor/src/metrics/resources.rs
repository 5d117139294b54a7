//! What a request gets: the metrics, the web page, or its data.
//!
//! The page shows more than the metrics, and browsers run what other sites send them. So the page
//! and its data are for clients on loopback addresses unless configured otherwise; they are served
//! under an address or the host's own name only, which a site cannot have (DNS rebinding); no other
//! origin may read them; and the page may load nothing and send nothing elsewhere.

use std::net::IpAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use rustix::rand::{GetRandomFlags, getrandom};

use super::PageAccess;
use super::exposition;
use crate::page::NONCE;

pub(super) type Reply = Response<Full<Bytes>>;

/// What can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Metrics,
    Page,
    Status,
    Turns,
    Findings,
    History,
}

impl Resource {
    fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/metrics" => Self::Metrics,
            "/" => Self::Page,
            "/api/v1/status" => Self::Status,
            "/api/v1/turns" => Self::Turns,
            "/api/v1/findings" => Self::Findings,
            "/api/v1/history" => Self::History,
            _ => return None,
        })
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Metrics => exposition::TYPE,
            Self::Page => "text/html; charset=utf-8",
            Self::Status | Self::Turns | Self::Findings | Self::History => "application/json",
        }
    }
}

/// Where the bodies come from.
pub(super) trait Site {
    /// Returns a body; none: it is not available now.
    fn body(&mut self, resource: Resource) -> Option<Bytes>;
    /// Takes a sample for the history.
    fn sample(&mut self);
}

/// Answers a request. `is_local`: both ends of its connection have loopback addresses.
pub(super) fn answer<B>(
    request: &Request<B>,
    is_local: bool,
    access: PageAccess,
    site: &mut impl Site,
) -> Reply {
    let resource = Resource::at(request.uri().path());
    let resource = match (resource, access) {
        (Some(Resource::Metrics), _) => Resource::Metrics,
        (_, PageAccess::Off) => {
            return refusal(StatusCode::NOT_FOUND, "The metrics are at /metrics.");
        }
        (None, _) => {
            let message = "The metrics are at /metrics, the page at /.";
            return refusal(StatusCode::NOT_FOUND, message);
        }
        (Some(resource), _) => {
            if let Err(message) = admit(request, is_local, access, &own_name()) {
                return refusal(StatusCode::FORBIDDEN, message);
            }
            resource
        }
    };
    if !matches!(request.method(), &Method::GET | &Method::HEAD) {
        let mut reply = refusal(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.");
        reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return reply;
    }
    let unavailable = || refusal(StatusCode::SERVICE_UNAVAILABLE, "The monitor does not answer.");
    let Some(body) = site.body(resource) else { return unavailable() };
    match resource {
        Resource::Metrics => reply(StatusCode::OK, resource.media_type(), body),
        Resource::Page => page(&body).unwrap_or_else(unavailable),
        _ => {
            let mut reply = reply(StatusCode::OK, resource.media_type(), body);
            protect(reply.headers_mut());
            reply
        }
    }
}

/// Refuses what may not read the page, with a message.
fn admit<B>(
    request: &Request<B>,
    is_local: bool,
    access: PageAccess,
    own_name: &str,
) -> Result<(), &'static str> {
    if access == PageAccess::Loopback && !is_local {
        return Err("The page is served on loopback addresses only (page in monitor.toml).");
    }
    if is_own(request.headers(), request.uri(), own_name) {
        Ok(())
    } else {
        Err("This name is not the host's. Open the page by an IP address, localhost, or the \
             host's own name.")
    }
}

/// Whether the client has connected to a name that only this host has. A site can let its own name
/// point to this host, and then read what it serves: browsers take both for the same origin.
fn is_own(headers: &HeaderMap, uri: &Uri, own_name: &str) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Some(host) = host.to_str().ok().and_then(|text| text.parse().ok()) else { return false };
    let is_own = |authority: &Authority| {
        let name = authority.host();
        // The parser ignores what stands between an address in brackets and the port.
        let rest = authority.as_str().strip_prefix(name);
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':')) {
            return false;
        }
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        address.unwrap_or(name).parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || (!own_name.is_empty() && name.eq_ignore_ascii_case(own_name))
    };
    is_own(&host) && uri.authority().is_none_or(is_own)
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the page with a nonce of its own. None: the kernel has no random bytes yet.
fn page(body: &Bytes) -> Option<Reply> {
    let mut random = [0; 16];
    if getrandom(&mut random, GetRandomFlags::NONBLOCK) != Ok(random.len()) {
        return None;
    }
    let nonce: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let body = str::from_utf8(body).ok()?.replace(NONCE, &nonce);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let mut reply = reply(StatusCode::OK, Resource::Page.media_type(), body.into());
    let policy = HeaderValue::try_from(policy).ok()?;
    reply.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    protect(reply.headers_mut());
    Some(reply)
}

/// Keeps other sites from reading or embedding a reply, and disks from keeping it.
fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn refusal(status: StatusCode, message: &str) -> Reply {
    reply(status, "text/plain; charset=utf-8", format!("{message}\n").into())
}

fn reply(status: StatusCode, kind: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake;

    impl Site for Fake {
        fn body(&mut self, resource: Resource) -> Option<Bytes> {
            Some(format!("{resource:?} {NONCE}").into())
        }

        fn sample(&mut self) {}
    }

    const PAGES: [&str; 5] =
        ["/", "/api/v1/status", "/api/v1/turns", "/api/v1/findings", "/api/v1/history"];

    fn request(path: &str, host: &str) -> Request<()> {
        Request::get(path).header(header::HOST, host).body(()).unwrap()
    }

    fn status(request: &Request<()>, is_local: bool, access: PageAccess) -> u16 {
        answer(request, is_local, access, &mut Fake).status().as_u16()
    }

    #[test]
    fn page_is_served_to_loopback_unless_configured() {
        for path in PAGES {
            let request = request(path, "127.0.0.1:9445");
            for (is_local, access, expected) in [
                (true, PageAccess::Loopback, 200),
                (false, PageAccess::Loopback, 403),
                (true, PageAccess::Network, 200),
                (false, PageAccess::Network, 200),
                (true, PageAccess::Off, 404),
                (false, PageAccess::Off, 404),
            ] {
                assert_eq!(status(&request, is_local, access), expected, "{path} {access:?}");
            }
        }
        for access in [PageAccess::Off, PageAccess::Loopback, PageAccess::Network] {
            assert_eq!(status(&request("/metrics", "prometheus.example"), false, access), 200);
        }
    }

    #[test]
    fn names_that_a_site_can_have_get_no_page() {
        for path in PAGES {
            let of = |request: &Request<()>| status(request, true, PageAccess::Network);
            for host in ["127.0.0.1", "127.0.0.1:9445", "[::1]:9445", "localhost", "LOCALHOST:1"] {
                assert_eq!(of(&request(path, host)), 200, "{host}");
            }
            for host in [
                "evil.example",
                "127.0.0.1.evil.example",
                "localhost.evil.example",
                "localhost.",
                "",
                "1",
                "[::1].evil.example",
                "127.0.0.1@evil.example",
                "a b",
                "\u{e9}",
            ] {
                let host = HeaderValue::from_bytes(host.as_bytes()).unwrap();
                let request = Request::get(path).header(header::HOST, host.clone()).body(());
                assert_eq!(of(&request.unwrap()), 403, "{host:?}");
            }
            assert_eq!(of(&Request::get(path).body(()).unwrap()), 403, "no host");
            let twice = Request::get(path).header(header::HOST, "127.0.0.1");
            let twice = twice.header(header::HOST, "evil.example").body(()).unwrap();
            assert_eq!(of(&twice), 403);
            let other = format!("http://evil.example{path}");
            assert_eq!(of(&request(&other, "127.0.0.1")), 403);
            let own = [(own_name(), 200), (format!("{}.example", own_name()), 403)];
            for (host, expected) in own {
                assert_eq!(of(&request(path, &host)), expected, "{host}");
            }
        }
    }

    #[test]
    fn page_and_data_are_closed_to_other_sites() {
        for path in PAGES {
            let reply = answer(&request(path, "[::1]"), true, PageAccess::Loopback, &mut Fake);
            let headers = reply.headers();
            let value = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(value("x-content-type-options"), Some("nosniff"));
            assert_eq!(value("cross-origin-resource-policy"), Some("same-origin"));
            assert_eq!(value("cache-control"), Some("no-store"));
            assert!(!headers.keys().any(|name| name.as_str().starts_with("access-control")));
            assert_eq!(value("content-security-policy").is_some(), path == "/");
        }
    }

    #[test]
    fn each_page_has_a_nonce_of_its_own() {
        let policy = || {
            let reply = answer(&request("/", "::1"), true, PageAccess::Loopback, &mut Fake);
            assert_eq!(reply.status(), 403, "an address without brackets");
            let reply = answer(&request("/", "[::1]"), true, PageAccess::Loopback, &mut Fake);
            reply.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned()
        };
        let policies = [policy(), policy()];
        assert!(policies[0].starts_with("default-src 'none'; script-src 'nonce-"));
        assert!(!policies[0].contains("unsafe") && policies[0] != policies[1]);
    }

    #[test]
    fn page_can_only_be_read() {
        for path in PAGES {
            for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"] {
                let mut request = request(path, "localhost");
                *request.method_mut() = method.parse().unwrap();
                assert_eq!(status(&request, true, PageAccess::Loopback), 405, "{method} {path}");
            }
        }
        for path in ["/api", "/api/v1", "/api/v2/status", "//", "/../metrics", "/page.html"] {
            assert_eq!(status(&request(path, "localhost"), true, PageAccess::Loopback), 404);
        }
    }
}
