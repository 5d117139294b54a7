//! TLS, and certificates that change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cgpu_kubernetes_tests::extender::{Extender, bind};
use cgpu_kubernetes_tests::http::{Connection, connect};
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::until_holds;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Fixture;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["extender".to_owned()])
            .unwrap()
            .signed_by(&key, &self.0)
            .unwrap();
        let paths = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        // As a mounted secret changes: other files under the same names.
        for (path, text) in [(&paths.0, certificate.pem()), (&paths.1, key.serialize_pem())] {
            let fresh = path.with_extension("new");
            fs::write(&fresh, text).unwrap();
            fs::rename(&fresh, path).unwrap();
        }
        paths
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Sends a request to a server with a certificate of this authority, with a client certificate
    /// if there is one. Returns the status.
    fn call(&self, extender: &Extender, own: Option<&(PathBuf, PathBuf)>) -> std::io::Result<u16> {
        self.call_at("/readyz", extender, own)
    }

    fn call_at(
        &self,
        path: &str,
        extender: &Extender,
        own: Option<&(PathBuf, PathBuf)>,
    ) -> std::io::Result<u16> {
        Ok(self.connect(extender, own)?.try_request("GET", path, "")?.status)
    }

    fn connect(
        &self,
        extender: &Extender,
        own: Option<&(PathBuf, PathBuf)>,
    ) -> std::io::Result<Connection> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(certificate).unwrap()],
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
        };
        let client =
            ClientConnection::new(Arc::new(config), "extender".try_into().unwrap()).unwrap();
        let line = StreamOwned::new(client, connect(extender.address())?);
        Ok(Connection::over(line))
    }
}

fn flags(certificate: &Path, key: &Path) -> [String; 4] {
    let text = |path: &Path| path.display().to_string();
    ["--tls-cert".to_owned(), text(certificate), "--tls-key".to_owned(), text(key)]
}

#[test]
fn changed_certificate_is_used_from_the_next_connection() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let (one, other) = (Authority::new(), Authority::new());
    let (certificate, key) = one.write(fixture.folder(), "server");
    let extender = Extender::begin(&fixture.server, fixture.folder(), &flags(&certificate, &key));
    until_holds("it is ready", || one.call(&extender, None).is_ok_and(|status| status == 200));
    assert!(other.call(&extender, None).is_err());
    assert!(extender.connection().try_request("GET", "/readyz", "").is_err());
    // With only one of the two files changed, the loaded pair stays in use.
    let before = fs::read(&key).unwrap();
    other.write(fixture.folder(), "server");
    let after = fs::read(&key).unwrap();
    fs::write(&key, before).unwrap();
    assert_eq!(one.call(&extender, None).unwrap(), 200);
    fs::write(&key, after).unwrap();
    assert_eq!(other.call(&extender, None).unwrap(), 200);
    assert!(one.call(&extender, None).is_err());
    extender.end().exits(0);
}

#[test]
fn client_without_a_certificate_is_refused() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let (ours, clients, foreign) = (Authority::new(), Authority::new(), Authority::new());
    let (certificate, key) = ours.write(fixture.folder(), "server");
    let ca = fixture.folder().join("clients.crt");
    fs::write(&ca, clients.pem()).unwrap();
    let mut flags = flags(&certificate, &key).to_vec();
    flags.extend(["--tls-client-ca".to_owned(), ca.display().to_string()]);
    let extender = Extender::begin(&fixture.server, fixture.folder(), &flags);
    let scheduler = clients.write(fixture.folder(), "scheduler");
    until_holds("it is ready", || {
        ours.call(&extender, Some(&scheduler)).is_ok_and(|status| status == 200)
    });
    let inspect = "/gpushare-scheduler/inspect";
    assert_eq!(ours.call_at(inspect, &extender, Some(&scheduler)).unwrap(), 200);
    // The kubelet's probes have no certificate.
    for (path, status) in
        [("/readyz", 200), ("/healthz", 200), ("/metrics", 200), (inspect, 401), ("/version", 401)]
    {
        assert_eq!(ours.call_at(path, &extender, None).unwrap(), status, "{path}");
    }
    let anonymous = foreign.write(fixture.folder(), "foreign");
    assert!(ours.call(&extender, Some(&anonymous)).is_err());
}

/// As through a NodePort, where all have the address of a node.
#[test]
fn scheduler_is_displaced_by_no_client_without_a_certificate() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let authority = Authority::new();
    let (certificate, key) = authority.write(fixture.folder(), "server");
    let ca = fixture.folder().join("clients.crt");
    fs::write(&ca, authority.pem()).unwrap();
    let mut flags = flags(&certificate, &key).to_vec();
    flags.extend(["--tls-client-ca".to_owned(), ca.display().to_string()]);
    let extender = Extender::begin(&fixture.server, fixture.folder(), &flags);
    let scheduler = authority.write(fixture.folder(), "scheduler");
    let mut connection = authority.connect(&extender, Some(&scheduler)).unwrap();
    assert_eq!(connection.request("GET", "/version", "").status, 200);
    // More than the extender has.
    let held: Vec<_> = (0..300).map(|_| connect(extender.address()).unwrap()).collect();
    until_holds("the oldest of the others are closed", || {
        let mut oldest = &held[0];
        oldest.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        matches!(std::io::Read::read(&mut oldest, &mut [0]), Ok(0))
    });
    assert_eq!(connection.request("GET", "/version", "").status, 200);
}

/// Replicas accept each other by the certificate that all have, although no authority of clients
/// has signed it.
#[test]
fn follower_passes_requests_on_over_tls() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let (ours, clients) = (Authority::new(), Authority::new());
    let (certificate, key) = ours.write(fixture.folder(), "server");
    let ca = fixture.folder().join("clients.crt");
    fs::write(&ca, clients.pem()).unwrap();
    let mut flags = flags(&certificate, &key).to_vec();
    flags.extend(["--tls-client-ca".to_owned(), ca.display().to_string()]);
    let elect = ["--leader-elect", "true", "--lease-duration", "3600", "--call-timeout", "60"];
    flags.extend(elect.map(str::to_owned));
    let scheduler = clients.write(fixture.folder(), "scheduler");
    let replicas = [(); 2].map(|()| {
        let replica = Extender::begin(&fixture.server, fixture.folder(), &flags);
        until_holds("it is ready", || {
            ours.call(&replica, Some(&scheduler)).is_ok_and(|status| status == 200)
        });
        replica
    });
    let pending = fixture.pod(pod("test", "a", 2));
    let mut connection = ours.connect(&replicas[1], Some(&scheduler)).unwrap();
    let reply = bind(&mut connection, &pending, "n1");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(fixture.node_of(&pending).as_deref(), Some("n1"));
    // One with another certificate is not trusted, and trusts none.
    let (certificate, key) = clients.write(fixture.folder(), "other");
    flags[1] = certificate.display().to_string();
    flags[3] = key.display().to_string();
    let unknown = Extender::begin(&fixture.server, fixture.folder(), &flags);
    let mut reply = None;
    until_holds("it knows the leader", || {
        let mut connection = clients.connect(&unknown, Some(&scheduler)).unwrap();
        let last = bind(&mut connection, &pending, "n1");
        let is_known = !last.text.contains("no replica leads");
        reply = Some(last);
        is_known
    });
    assert!(reply.is_some_and(|reply| reply.text.contains("cannot be reached")));
}
