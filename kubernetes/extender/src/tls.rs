//! TLS: the extender's certificate and key, read again when their files change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::ServerConnection;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

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
    now: Mutex<(Stamp, Arc<ServerConfig>)>,
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
        TlsAcceptor::from(self.current())
    }

    /// Returns whether the client of a connection has shown a certificate, if it must.
    pub(crate) fn has_authorized(&self, connection: &ServerConnection) -> bool {
        self.files.client_ca.is_none() || connection.peer_certificates().is_some()
    }

    fn current(&self) -> Arc<ServerConfig> {
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
        Arc::clone(&now.1)
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

    fn load(&self) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).with_context(|| path.display().to_string())?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        // Probes of the kubelet have none: `Identity::has_authorized`.
                        .allow_unauthenticated()
                        .build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .with_context(|| format!("{} has no private key in PEM", self.key.display()))?;
        let config =
            builder.with_single_cert(certificates(&self.certificate)?, key).with_context(|| {
                format!("{} and {}", self.certificate.display(), self.key.display())
            })?;
        Ok(Arc::new(config))
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
