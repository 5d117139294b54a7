//! TLS: the extender's certificate and key, read again when their files change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tracing::{info, warn};

use crate::peers;

#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
}

/// Inode, size and modification time of each file, to detect changes.
type Stamp = Vec<(u64, u64, i64, i64)>;

/// The current certificate and key. The files are checked on each connection, so a new certificate
/// is used at once.
pub(crate) struct Identity {
    files: Files,
    now: Mutex<(Stamp, Configs)>,
}

/// What serves clients, and what connects to other replicas.
#[derive(Clone)]
struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Identity {
    /// Loads the files.
    ///
    /// # Errors
    /// A file cannot be read, or certificate and key do not match.
    pub(crate) fn read(files: Files) -> Result<Self> {
        let now = (files.stamp(), files.load()?);
        Ok(Self { files, now: Mutex::new(now) })
    }

    /// Returns what accepts a new connection, with the files as they are now.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current().server)
    }

    /// Returns what connects to another replica, with the files as they are now.
    pub(crate) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.current().client)
    }

    /// Returns whether the client of a connection has shown a certificate, if it must.
    pub(crate) fn has_authorized(&self, connection: &ServerConnection) -> bool {
        self.files.client_ca.is_none() || connection.peer_certificates().is_some()
    }

    fn current(&self) -> Configs {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.files.stamp();
        if stamp != now.0 {
            match self.files.load() {
                Ok(config) => {
                    let certificate = self.files.certificate.display();
                    info!(%certificate, "the certificate has changed");
                    now.1 = config;
                }
                // Perhaps only one of two files has been written; the other changes the stamp
                // again.
                Err(error) => {
                    warn!("the new certificate is invalid, the old one stays in use: {error:#}")
                }
            }
            now.0 = stamp;
        }
        now.1.clone()
    }
}

impl Files {
    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca)
    }

    fn stamp(&self) -> Stamp {
        let stamp = |path: &PathBuf| {
            fs::metadata(path).map_or((0, 0, 0, 0), |file| {
                (file.ino(), file.size(), file.mtime(), file.mtime_nsec())
            })
        };
        self.all().map(stamp).collect()
    }

    fn load(&self) -> Result<Configs> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&self.certificate)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).with_context(|| path.display().to_string())?;
                }
                let clients =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                        // Probes of the kubelet have none: `Identity::has_authorized`.
                        .allow_unauthenticated()
                        .build()?;
                builder.with_client_cert_verifier(peers::Peers::and(clients, &chain, &provider)?)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .with_context(|| format!("{} has no private key in PEM", self.key.display()))?;
        let unfit = || format!("{} and {}", self.certificate.display(), self.key.display());
        let server =
            builder.with_single_cert(chain.clone(), key.clone_key()).with_context(unfit)?;
        let client = peers::client(chain, key, &provider).with_context(unfit)?;
        Ok(Configs { server: Arc::new(server), client: Arc::new(client) })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let invalid = || format!("{} has no certificate in PEM", path.display());
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .with_context(invalid)?
        .collect::<Result<_, _>>()
        .with_context(invalid)?;
    anyhow::ensure!(!found.is_empty(), invalid());
    Ok(found)
}
