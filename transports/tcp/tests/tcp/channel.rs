//! Tests of encrypted connections, and of attempts to read them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_clock::now;
use ccl_conformance::{first_location, instead_of};
use ccl_core::transport::{Address, Listener, Secret, TransportError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};

use crate::mending::{Pair, device, exchange, text};

const SECRET: Secret = Secret([3; 32]);

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn bytes_on_the_wire_are_readable_only_without_tls() {
    for tls in [false, true] {
        let mut pair = Pair::new(3, Duration::from_secs(20), tls);
        pair.proxy.record();
        exchange(&mut pair, 20, |_, _| {});
        let recorded = pair.proxy.recorded();
        assert!(recorded.len() > 20 * 20_000, "only {} bytes", recorded.len());
        for number in [1, 2, 3] {
            assert_eq!(contains(&recorded, &text(number, 8)), !tls, "message {number}");
        }
    }
}

#[test]
fn bytes_changed_on_the_wire_are_dropped_and_sent_again() {
    for spoil_after in [100_000, 5_000] {
        let mut pair = Pair::new(1, Duration::from_secs(20), true);
        pair.proxy.spoil_after(spoil_after);
        exchange(&mut pair, 100, |_, _| {});
        assert!(pair.proxy.has_spoilt());
        assert!(pair.proxy.made() >= 2, "only {} connections", pair.proxy.made());
    }
}

/// Connects to a listener that must reject the connection. Waits until the listener has counted the
/// rejection, and returns the error of the connecting side. Panics if the connection is admitted.
fn refused(way: &Address, mut listener: Box<dyn Listener>, tls: bool) -> TransportError {
    let connecting = device(1, Duration::from_secs(1), tls);
    let by = now() + Duration::from_secs(10);
    let mut connecting = connecting.connect(way, &SECRET, b"", by).unwrap();
    let begun = Instant::now();
    let mut error = None;
    while error.is_none() || listener.rejected() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(8), "not rejected in time: {error:?}");
        assert!(listener.poll(now()).unwrap().is_none(), "the listener admitted the peer");
        if error.is_none() {
            match connecting.poll(now()) {
                Ok(connected) => assert!(connected.is_none(), "the connection succeeded"),
                Err(found) => error = Some(found),
            }
        }
    }
    error.unwrap()
}

#[test]
fn sides_that_differ_in_encryption_report_the_difference() {
    for tls in [false, true] {
        let listener = device(1, Duration::from_secs(1), !tls).listen(&SECRET).unwrap();
        let address = listener.address();
        let error = refused(&address, listener, tls);
        assert!(matches!(error, TransportError::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("FERROCCL_TLS alike on all ranks"), "{text}");
        assert_eq!(text.contains("it encrypts"), !tls, "{text}");
    }
}

#[test]
fn a_proxy_that_decrypts_is_detected_by_both_sides() {
    let listener = device(1, Duration::from_secs(1), true).listen(&SECRET).unwrap();
    let address = listener.address();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let way = instead_of(&address, between.local_addr().unwrap()).unwrap();
    let far = first_location(&address).unwrap();
    let thread = std::thread::spawn(move || intercept(between.accept().unwrap().0, far));
    let error = refused(&way, listener, true);
    assert!(matches!(error, TransportError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("somebody between the two processes"), "{error}");
    assert_eq!(thread.join().unwrap(), 64, "bytes that the proxy decrypted");
}

/// Relays the handshake that precedes TLS. Then runs a TLS session of its own with each side, and
/// relays the proofs that the sides send inside TLS. Returns the number of decrypted bytes.
fn intercept(mut near: TcpStream, far: SocketAddr) -> usize {
    let mut far = TcpStream::connect_timeout(&far, Duration::from_secs(5)).unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    // The messages are hello, challenge, two proofs, and terms.
    for to_far in [true, false, true, false, false] {
        let (from, to) = if to_far { (&mut near, &mut far) } else { (&mut far, &mut near) };
        let mut length = [0; 2];
        from.read_exact(&mut length).unwrap();
        let mut message = vec![0; usize::from(u16::from_le_bytes(length))];
        from.read_exact(&mut message).unwrap();
        to.write_all(&[&length[..], &message].concat()).unwrap();
    }
    let (server, client) = sessions();
    let (mut near, mut far) = (StreamOwned::new(server, near), StreamOwned::new(client, far));
    let mut proof = [0; 32];
    let mut decrypted = 0;
    near.read_exact(&mut proof).unwrap();
    decrypted += proof.len();
    far.write_all(&proof).unwrap();
    far.read_exact(&mut proof).unwrap();
    decrypted += proof.len();
    near.write_all(&proof).unwrap();
    // Wait until both sides have hung up.
    let _ = (near.read(&mut proof), far.read(&mut proof));
    decrypted
}

fn sessions() -> (ServerConnection, ClientConnection) {
    let crypto = Arc::new(provider::default_provider());
    let document =
        ring::signature::Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
    let der = PrivatePkcs8KeyDer::from(document.as_ref());
    let key = provider::sign::any_eddsa_type(&der).unwrap();
    let public = CertificateDer::from(key.public_key().unwrap().as_ref().to_vec());
    let key = Arc::new(CertifiedKey::new(vec![public], key));
    let server = ServerConfig::builder_with_provider(Arc::clone(&crypto))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    let client = ClientConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Indifferent))
        .with_no_client_auth();
    let name = ServerName::from(IpAddr::from(Ipv4Addr::UNSPECIFIED));
    let server = ServerConnection::new(Arc::new(server)).unwrap();
    (server, ClientConnection::new(Arc::new(client), name).unwrap())
}

/// Verifier that accepts every certificate.
#[derive(Debug)]
struct Indifferent;

impl ServerCertVerifier for Indifferent {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider::default_provider().signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
