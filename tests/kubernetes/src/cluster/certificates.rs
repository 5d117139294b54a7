//! The certificates of a cluster.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};

pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

#[derive(Clone, Debug)]
pub(super) struct CertificateFiles {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Authority {
    pub(super) fn new(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "cluster");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(parameters, key).expect("a certificate");
        fs::write(folder.join("ca.crt"), issuer.pem()).expect("a file");
        Self { issuer, folder: folder.to_owned() }
    }

    pub(super) fn certificate(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Signs a certificate for this user and group. A server's has names and addresses.
    pub(super) fn sign(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
        names: &[&str],
    ) -> CertificateFiles {
        let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut parameters = CertificateParams::new(names).expect("names");
        parameters.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            parameters.distinguished_name.push(DnType::OrganizationName, group);
        }
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        let files = CertificateFiles {
            certificate: self.folder.join(format!("{file}.crt")),
            key: self.key(file, &key),
        };
        fs::write(&files.certificate, certificate.pem()).expect("a file");
        files
    }

    fn key(&self, file: &str, key: &KeyPair) -> PathBuf {
        let path = self.folder.join(format!("{file}.key"));
        fs::write(&path, key.serialize_pem()).expect("a file");
        path
    }

    pub(super) fn kubeconfig(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
        server: &str,
    ) -> PathBuf {
        let files = self.sign(file, user, group, &[]);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: {server:?}, certificate-authority: {:?}}}}}]\n\
             users: [{{name: it, user: {{client-certificate: {:?}, client-key: {:?}}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n",
            self.certificate(),
            files.certificate,
            files.key
        );
        let path = self.folder.join(format!("{file}.conf"));
        fs::write(&path, text).expect("a file");
        path
    }
}
