//! TLS between replicas. All have the same certificate, from the same files, and accept exactly it
//! of each other: no name of a pod, and no purpose, must be in it.

use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    SignatureScheme,
};

/// Accepts the certificate that this replica has, and of clients also those that `others` accepts.
#[derive(Debug)]
pub(crate) struct Peers {
    own: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
    others: Option<Arc<dyn ClientCertVerifier>>,
}

impl Peers {
    /// Returns the verifier of clients.
    ///
    /// # Errors
    /// The chain is empty.
    pub(crate) fn and(
        others: Arc<dyn ClientCertVerifier>,
        chain: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<Self>> {
        Self::new(chain, provider, Some(others))
    }

    fn new(
        chain: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
        others: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<Arc<Self>> {
        let own = chain.first().context("the chain is empty")?.clone();
        Ok(Arc::new(Self { own, provider: Arc::clone(provider), others }))
    }

    fn is_own(&self, certificate: &CertificateDer<'_>) -> bool {
        *certificate == self.own
    }
}

/// Returns what a replica connects to another one with: it shows its own certificate, too.
///
/// # Errors
/// Certificate and key do not match.
pub(crate) fn client(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &Arc<CryptoProvider>,
) -> Result<ClientConfig> {
    let replicas = Peers::new(&chain, provider, None)?;
    Ok(ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(replicas)
        .with_client_auth_cert(chain, key)?)
}

impl ServerCertVerifier for Peers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.is_own(certificate) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Peers {
    fn client_auth_mandatory(&self) -> bool {
        self.others.as_ref().is_some_and(|others| others.client_auth_mandatory())
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.others.as_ref().map_or(&[], |others| others.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match &self.others {
            _ if self.is_own(certificate) => Ok(ClientCertVerified::assertion()),
            Some(others) => others.verify_client_cert(certificate, intermediates, now),
            None => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}
