//! Encryption of a connection whose sides have proved the secret: TLS 1.3, by rustls.
//!
//! Each device makes its own server key, which nobody certifies. A second proof of the secret, over
//! keys exported from the session, rules out a man in the middle (see [`crate::shake`]).

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ccl_core::transport::TransportError;
use ccl_core::transport::handshake::ChannelKeys;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::cipher_suite as suite;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring as provider,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, ServerConfig,
    ServerConnection, SignatureScheme,
};

use crate::end::ConnectionEnd;
use crate::socket::{self, Got};

/// Largest number of bytes of ciphertext read per system call: room for at least two records.
const READ_BYTES: usize = 64 << 10;
/// Limit on the bytes of ciphertext that wait for the socket.
const WRITE_BYTES: usize = 256 << 10;
/// Label of the exported keys. All such labels begin with `EXPORTER` (RFC 5705).
const LABEL: &[u8] = b"EXPORTER-ferroccl-channel";

/// State that all sessions of a device have in common.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl Tls {
    /// Creates a new server key, and the configurations of clients and servers.
    ///
    /// # Errors
    ///
    /// When TLS cannot be used on this machine.
    pub fn new() -> Result<Tls, TransportError> {
        Tls::make().map_err(unusable)
    }

    fn make() -> Result<Tls, rustls::Error> {
        let provider = Arc::new(CryptoProvider {
            // All are strong; the first is the cheapest on processors with AES instructions.
            cipher_suites: vec![
                suite::TLS13_AES_128_GCM_SHA256,
                suite::TLS13_AES_256_GCM_SHA384,
                suite::TLS13_CHACHA20_POLY1305_SHA256,
            ],
            ..provider::default_provider()
        });
        let verifier = Arc::new(AnyKey(provider.signature_verification_algorithms));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        // Sessions are not resumed: each proves the secret by itself.
        (client.resumption, client.enable_sni) = (Resumption::disabled(), false);
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key()?)));
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }

    /// Begins a session over a new connection; `connects` is true on the connecting side.
    ///
    /// # Errors
    ///
    /// When TLS cannot be used on this machine.
    pub fn session(&self, connects: bool) -> Result<Session, TransportError> {
        // rustls requires a name; it is not sent.
        let name = ServerName::from(IpAddr::from(Ipv4Addr::UNSPECIFIED));
        let connection = if connects {
            ClientConnection::new(Arc::clone(&self.client), name).map(Connection::from)
        } else {
            ServerConnection::new(Arc::clone(&self.server)).map(Connection::from)
        };
        let mut connection = connection.map_err(unusable)?;
        connection.set_buffer_limit(Some(WRITE_BYTES));
        let buffer = vec![0; READ_BYTES];
        let (start, end, is_dry, plain, ended) = (0, 0, false, 0, None);
        Ok(Session { connection, buffer, start, end, is_dry, plain, ended })
    }
}

/// Makes a new key. Its raw public half is sent instead of a certificate (RFC 7250).
fn key() -> Result<Arc<CertifiedKey>, rustls::Error> {
    let random = ring::rand::SystemRandom::new();
    let failed = |what: &str| rustls::Error::General(format!("{what} failed"));
    let document = ring::signature::Ed25519KeyPair::generate_pkcs8(&random)
        .map_err(|_| failed("making a key"))?;
    let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(document.as_ref()))?;
    let public = key.public_key().ok_or_else(|| failed("reading the key"))?;
    let public = CertificateDer::from(public.as_ref().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![public], key)))
}

fn unusable(error: rustls::Error) -> TransportError {
    let reason =
        format!("{error}; leave FERROCCL_TLS unset on all ranks if the network can be trusted");
    TransportError::Unusable { what: "TLS".to_owned(), reason }
}

/// Verifier that accepts every key whose private half the peer holds. That is enough, because the
/// peer then proves the secret once more, inside the session.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not supported".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// An encrypted channel over one connection.
pub struct Session {
    connection: Connection,
    /// Ciphertext from the socket.
    buffer: Vec<u8>,
    /// Index of the first byte that rustls has not taken from the buffer.
    start: usize,
    /// Index of the end of the ciphertext in the buffer.
    end: usize,
    /// True if the socket had no more bytes at the last read.
    is_dry: bool,
    /// Number of bytes that are decrypted and not read.
    plain: usize,
    /// Reason for the end of the connection, once it has ended.
    ended: Option<ConnectionEnd>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(…)")
    }
}

impl Session {
    /// Advances the TLS handshake. Returns the exported keys; none before the handshake ends.
    pub(crate) fn agree(&mut self, socket: &OwnedFd) -> Result<Option<ChannelKeys>, ConnectionEnd> {
        loop {
            self.flush(socket)?;
            if !self.connection.is_handshaking() {
                let keys = self.connection.export_keying_material([0; 32], LABEL, None);
                return keys.map(Some).map_err(tls);
            }
            match self.receive(socket) {
                Got::Bytes(_) => {}
                Got::Nothing => return Ok(None),
                Got::End(end) => return Err(end),
            }
        }
    }

    /// Reads until all buffers are full, or neither the session nor the socket has bytes left.
    pub(crate) fn read(&mut self, socket: &OwnedFd, into: &mut [IoSliceMut<'_>]) -> Got {
        let (mut done, mut received) = (0, false);
        for buffer in into {
            let mut at = 0;
            while at < buffer.len() {
                if self.plain > 0 {
                    match self.connection.reader().read(&mut buffer[at..]) {
                        Ok(count) => {
                            (at, done, self.plain) =
                                (at + count, done + count, self.plain.saturating_sub(count))
                        }
                        Err(error) => return Got::End(tls(error)),
                    }
                    continue;
                }
                let dry = received && self.is_dry && self.start == self.end;
                let got = if dry { Got::Nothing } else { self.receive(socket) };
                received = true;
                match got {
                    Got::Bytes(_) => {}
                    // The end is reported after all earlier bytes are read.
                    _ if done > 0 => return Got::Bytes(done),
                    end => return end,
                }
            }
        }
        Got::Bytes(done)
    }

    /// Decrypts more bytes. Returns the number of bytes of ciphertext taken.
    fn receive(&mut self, socket: &OwnedFd) -> Got {
        if let Some(end) = &self.ended {
            return Got::End(end.clone());
        }
        if self.start == self.end {
            match socket::read(socket, &mut [IoSliceMut::new(&mut self.buffer)]) {
                Got::Bytes(count) => {
                    (self.start, self.end, self.is_dry) = (0, count, count < self.buffer.len());
                }
                Got::Nothing => return Got::Nothing,
                Got::End(end) => return self.end(end),
            }
        }
        let taken = match self.connection.read_tls(&mut &self.buffer[self.start..self.end]) {
            Ok(0) => return self.end(ConnectionEnd::ChannelEnded),
            Ok(taken) => taken,
            Err(error) => return self.end(tls(error)),
        };
        self.start += taken;
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.plain = state.plaintext_bytes_to_read();
                Got::Bytes(taken)
            }
            Err(error) => {
                // Send the TLS alert if possible; otherwise the peer sees only that the connection
                // ends.
                let _ = self.flush(socket);
                self.end(ConnectionEnd::Forged(error.to_string()))
            }
        }
    }

    fn end(&mut self, end: ConnectionEnd) -> Got {
        self.ended = Some(end.clone());
        Got::End(end)
    }

    /// Encrypts as many bytes as there is room for, once the socket has taken all earlier bytes.
    pub(crate) fn write(&mut self, socket: &OwnedFd, from: &[IoSlice<'_>]) -> Got {
        match self.flush(socket) {
            Ok(true) => {}
            Ok(false) => return Got::Nothing,
            Err(end) => return Got::End(end),
        }
        match self.connection.writer().write_vectored(from) {
            Ok(count) => match self.flush(socket) {
                Ok(_) => Got::Bytes(count),
                Err(end) => Got::End(end),
            },
            Err(error) => Got::End(tls(error)),
        }
    }

    /// Writes the ciphertext to the socket. Returns whether the socket has taken all of it.
    pub(crate) fn flush(&mut self, socket: &OwnedFd) -> Result<bool, ConnectionEnd> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Sink(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(tls(error)),
            }
        }
        Ok(true)
    }

    pub(crate) fn is_flushed(&self) -> bool {
        !self.connection.wants_write()
    }

    /// Returns whether a read would return something even if the socket is empty.
    pub(crate) fn holds(&self) -> bool {
        self.plain > 0 || self.start < self.end || self.ended.is_some()
    }
}

fn tls(error: impl fmt::Display) -> ConnectionEnd {
    ConnectionEnd::Tls(error.to_string())
}

/// Writer of ciphertext to a socket.
struct Sink<'a>(&'a OwnedFd);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match socket::write(self.0, from) {
            Got::Bytes(count) => Ok(count),
            Got::Nothing => Err(ErrorKind::WouldBlock.into()),
            Got::End(end) => Err(io::Error::other(end)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
