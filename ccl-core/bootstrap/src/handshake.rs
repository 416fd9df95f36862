//! Keyed challenge: each side proves that it knows the secret. The proof is a MAC over both nonces,
//! the protocol version and the side's own role. No proof can therefore be replayed on another
//! connection, or reflected to its sender.

use super::identity::Secret;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// A random number used once: 32 bytes from the operating system, handed in by the caller.
pub type Nonce = [u8; 32];

/// A proof: HMAC-SHA256.
pub(super) type Proof = [u8; 32];

/// Side that sends a proof: the connector, or the side that accepts the connection (`Root`, which
/// is not always rank 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Connector,
    Root,
}

/// The two nonces of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonces {
    pub(super) connector: Nonce,
    pub(super) root: Nonce,
}

fn mac(secret: &Secret, role: Role, nonces: &Nonces) -> Hmac<Sha256> {
    // HMAC accepts a key of any length, so the error branch is unreachable. (That branch has a key
    // of zeros, with which a proof would be worthless.)
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
        .unwrap_or_else(|_| Hmac::new(&Default::default()));
    mac.update(b"ferroccl join ");
    mac.update(&super::PROTOCOL_VERSION.to_le_bytes());
    mac.update(match role {
        Role::Connector => b"connector",
        Role::Root => b"root     ",
    });
    mac.update(&nonces.connector);
    mac.update(&nonces.root);
    mac
}

/// Returns the proof by which `role` shows that it knows the secret.
pub(super) fn proof(secret: &Secret, role: Role, nonces: &Nonces) -> Proof {
    mac(secret, role, nonces).finalize().into_bytes().into()
}

/// Returns whether `answer` is the proof of `role`, compared in constant time.
pub(super) fn proves(answer: &Proof, secret: &Secret, role: Role, nonces: &Nonces) -> bool {
    mac(secret, role, nonces).verify_slice(answer).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_valid_only_for_its_role_nonces_and_secret() {
        let secret = Secret::from_bytes([9; 32]);
        let nonces = Nonces { connector: [1; 32], root: [2; 32] };
        let answer = proof(&secret, Role::Connector, &nonces);
        assert!(proves(&answer, &secret, Role::Connector, &nonces));
        assert!(!proves(&answer, &secret, Role::Root, &nonces), "a reflected proof is accepted");
        let swapped = Nonces { connector: [2; 32], root: [1; 32] };
        assert!(!proves(&answer, &secret, Role::Connector, &swapped));
        let later = Nonces { root: [3; 32], ..nonces };
        assert!(!proves(&answer, &secret, Role::Connector, &later), "a replayed proof is accepted");
        assert!(!proves(&answer, &Secret::from_bytes([8; 32]), Role::Connector, &nonces));
    }
}
