//! The sandbox's own certificate authority, and whom to believe outside.
//!
//! Its key is made in memory and known to the keeper alone, which hands it on when the process must be
//! started again. Programs inside trust its certificate;
//! nobody else does. It signs for hosts that have a secret, and for no other.

use crate::gateway::GatewayError;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use skep_policy::egress::Name;
use skep_types::SecretValue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Certificates kept for hosts that were asked for before.
const MOST_HOSTS: usize = 256;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    key: SecretValue,
    pem: String,
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    made: Mutex<HashMap<(Name, bool), Arc<ServerConfig>>>,
}

impl Authority {
    /// A new one, or that of the process before, by its key: the same subject and key are the same
    /// authority to whoever trusts its certificate.
    pub(crate) fn new(
        sandbox: &str,
        extra: &str,
        kept: Option<&SecretValue>,
    ) -> Result<Self, GatewayError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, format!("skep sandbox {sandbox}"));
        let key = match kept {
            Some(kept) => KeyPair::from_pem(kept.expose())?,
            None => KeyPair::generate()?,
        };
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            key: SecretValue::new(key.serialize_pem()),
            issuer: Issuer::new(params, key),
            pem,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            roots: Arc::new(roots(extra)?),
            made: Mutex::default(),
        })
    }

    /// The certificate, for programs inside.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Its key, for the process after this one.
    pub(crate) fn key(&self) -> &SecretValue {
        &self.key
    }

    /// How to be a host towards a program inside; of HTTP/2 too, if the host speaks it.
    pub(crate) fn server(
        &self,
        name: &Name,
        http2: bool,
    ) -> Result<Arc<ServerConfig>, GatewayError> {
        let known = (name.clone(), http2);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.get(&known) {
            return Ok(config.clone());
        }
        let mut params = CertificateParams::new(vec![name.to_string()])?;
        params.distinguished_name.push(DnType::CommonName, "skep");
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|error| rustls::Error::General(error.to_owned()))?;
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = match http2 {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        };
        let config = Arc::new(config);
        if made.len() >= MOST_HOSTS {
            made.clear();
        }
        made.insert(known, config.clone());
        Ok(config)
    }

    /// How to speak with the real host: its certificate is verified like everywhere else.
    pub(crate) fn client(&self, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, GatewayError> {
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// The host's authorities and those that were named.
fn roots(extra: &str) -> Result<RootCertStore, GatewayError> {
    let mut roots = RootCertStore::empty();
    // Some certificates of a host may be unreadable; those that can be read count.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in CertificateDer::pem_slice_iter(extra.as_bytes()) {
        let certificate = certificate.map_err(|_| GatewayError::ExtraAuthorities)?;
        roots.add(certificate)?;
    }
    Ok(roots)
}
