//! The server name in a TLS ClientHello, read by rustls and nobody else.

use crate::client::Client;
use rustls::server::Acceptor;
use std::io;

/// A hello longer than this is an attack on memory.
const MOST_HELLO: usize = 64 << 10;

/// A fatal alert, "unrecognized name" (RFC 6066): what a server says that does not serve a name.
pub(crate) const UNRECOGNIZED_NAME: &[u8] = &[21, 3, 3, 0, 2, 2, 112];

/// Collects a ClientHello piece by piece.
#[derive(Default)]
pub struct HelloReader {
    acceptor: Acceptor,
    fed: usize,
}

/// What the bytes so far say.
#[derive(Debug, PartialEq, Eq)]
pub enum Hello {
    /// Not whole yet.
    NeedMore,
    /// Whole.
    Whole {
        /// The server name, if there is one that is a DNS name.
        name: Option<String>,
        /// Whether HTTP/2 is offered.
        http2: bool,
    },
    /// Not a ClientHello, or too long.
    Bad,
}

impl HelloReader {
    /// Looks at all bytes so far, which begin with those of the call before.
    pub fn look(&mut self, bytes: &[u8]) -> Hello {
        while let Some(mut rest) = bytes.get(self.fed..).filter(|rest| !rest.is_empty()) {
            match self.acceptor.read_tls(&mut rest) {
                Ok(count) if count > 0 => self.fed += count,
                _ => return Hello::Bad,
            }
            match self.acceptor.accept() {
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    let name = hello.server_name().map(str::to_owned);
                    let http2 = hello.alpn().is_some_and(|mut all| all.any(|one| one == b"h2"));
                    return Hello::Whole { name, http2 };
                }
                Ok(None) => {}
                Err(_) => return Hello::Bad,
            }
        }
        if bytes.len() > MOST_HELLO { Hello::Bad } else { Hello::NeedMore }
    }
}

/// Reads the hello of a connection; its bytes stay seen.
pub(crate) async fn read(client: &mut Client) -> io::Result<Hello> {
    let mut reader = HelloReader::default();
    loop {
        match reader.look(client.seen()) {
            Hello::NeedMore => {}
            other => return Ok(other),
        }
        if client.see_more().await? == 0 {
            return Ok(Hello::Bad);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::pki_types::ServerName;
    use std::sync::Arc;

    fn hello_bytes(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn net_14_a_split_hello_is_put_together() {
        let bytes = hello_bytes("a.test");
        let mut reader = HelloReader::default();
        for end in 1..bytes.len() {
            assert_eq!(reader.look(&bytes[..end]), Hello::NeedMore, "after {end} bytes");
        }
        assert_eq!(reader.look(&bytes), Hello::Whole { name: Some("a.test".into()), http2: false });
        let bytes = hello_bytes("127.0.0.1");
        assert_eq!(HelloReader::default().look(&bytes), Hello::Whole { name: None, http2: false });
        assert_eq!(HelloReader::default().look(b"\x16\x03\x01\xff\xffGET / HTTP"), Hello::Bad);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            bytes.splice(0..0, [0x16, 3, 1]);
            let _ = HelloReader::default().look(&bytes);
        }
    }
}
