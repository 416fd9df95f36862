//! Identity of a communicator: the addresses and the secret by which a rank finds and enters it.

use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

const SECRET_BYTES: usize = 32;
const PREFIX: &str = "ferroccl1:";
const ENDPOINTS_MAX: usize = 8;

/// Error for a text that is no valid endpoint, secret or unique id. The message does not repeat a
/// text that may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// The text is not `host:port`.
    #[error("`{text}` is not HOST:PORT (an IPv6 address is written in brackets: [::1]:29400)")]
    Endpoint {
        /// Text that was given.
        text: String,
    },
    /// The text is not a secret in hexadecimal.
    #[error("the secret must have {} hexadecimal digits", 2 * SECRET_BYTES)]
    Secret,
    /// The text is not a unique id.
    #[error(
        "not a unique id: it must read {PREFIX}HOST:PORT:SECRET, with up to {ENDPOINTS_MAX} \
         HOST:PORT separated by commas"
    )]
    UniqueId,
}

/// Address where rank 0 listens: a host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Host name, IPv4 address, or IPv6 address (without brackets).
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Endpoint {
    /// Returns the endpoint of a host and a port.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Endpoint {
        Endpoint { host: host.into(), port }
    }
}

impl FromStr for Endpoint {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Endpoint, IdentityError> {
        let error = || IdentityError::Endpoint { text: text.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port = port.parse::<u16>().map_err(|_| error())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let allowed = |c: char| !c.is_whitespace() && !c.is_control() && !",/[]".contains(c);
        match bare {
            Some(host) if host.parse::<core::net::Ipv6Addr>().is_ok() => {
                Ok(Endpoint::new(host, port))
            }
            None if !host.is_empty() && !host.contains(':') && host.chars().all(allowed) => {
                Ok(Endpoint::new(host, port))
            }
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Key of a communicator. The key is never shown: `Debug` prints only whether it is the public one.
#[derive(Clone)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// Key of communicators without a secret. Everybody knows this key, so ferroccl joins with it
    /// only at loopback addresses, unless the program or `FERROCCL_INSECURE_JOIN=1` permits others.
    pub const PUBLIC: Secret = Secret([0; SECRET_BYTES]);

    /// Returns the secret that consists of these bytes, which must be random.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// Returns the secret of a passphrase of any length: the key is a digest of the passphrase.
    #[must_use]
    pub fn from_passphrase(text: &str) -> Secret {
        let mut digest = Sha256::new();
        digest.update(b"ferroccl secret ");
        digest.update(text.as_bytes());
        Secret(digest.finalize().into())
    }

    /// Derives a key for another purpose. The derived key reveals nothing about this key or about
    /// keys for other purposes.
    #[must_use]
    pub fn derive(&self, purpose: &[u8]) -> [u8; SECRET_BYTES] {
        let mut digest = Sha256::new();
        // No keyed construction (HMAC) is needed to keep purposes apart: the secret comes before
        // the purpose and has a fixed length, so different purposes give different inputs. From the
        // digest of one purpose, an attacker can compute others (length extension), but only of
        // purposes that begin with that purpose and SHA-256 padding. There are no such purposes.
        digest.update(b"ferroccl derived key ");
        digest.update(self.0);
        digest.update(purpose);
        digest.finalize().into()
    }

    /// Returns whether this is [`Secret::PUBLIC`].
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.0 == Secret::PUBLIC.0
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_public() { "Secret(public)" } else { "Secret(..)" })
    }
}

/// Everything a rank needs to join: the endpoints of rank 0 (tried in turn) and the secret.
///
/// `FromStr` reads the text form, `ferroccl1:HOST:PORT:SECRET`. Only
/// [`UniqueId::to_secret_string`] writes that form; `Display` and `Debug` leave the secret out.
#[derive(Clone)]
pub struct UniqueId {
    /// Endpoints where rank 0 listens: at least one, at most 8.
    pub endpoints: Vec<Endpoint>,
    /// The key that every rank must know.
    pub secret: Secret,
}

impl UniqueId {
    /// Returns the text form with the secret, for the other ranks; it must not be logged.
    #[must_use]
    pub fn to_secret_string(&self) -> String {
        use fmt::Write;
        let mut text = format!("{PREFIX}{}:", Endpoints(&self.endpoints));
        for byte in self.secret.0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

struct Endpoints<'a>(&'a [Endpoint]);

impl fmt::Display for Endpoints<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, endpoint) in self.0.iter().enumerate() {
            write!(f, "{}{endpoint}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}:<secret>", Endpoints(&self.endpoints))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self})")
    }
}

impl FromStr for UniqueId {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<UniqueId, IdentityError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(IdentityError::UniqueId)?;
        let (endpoints, secret) = rest.rsplit_once(':').ok_or(IdentityError::UniqueId)?;
        let endpoints = endpoints
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<Endpoint>, _>>()
            .map_err(|_| IdentityError::UniqueId)?;
        if endpoints.len() > ENDPOINTS_MAX {
            return Err(IdentityError::UniqueId);
        }
        Ok(UniqueId { endpoints, secret: Secret(hexadecimal(secret)?) })
    }
}

fn hexadecimal(text: &str) -> Result<[u8; SECRET_BYTES], IdentityError> {
    let mut bytes = [0; SECRET_BYTES];
    if text.len() != 2 * SECRET_BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(IdentityError::Secret);
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte =
            u8::from_str_radix(&text[2 * index..][..2], 16).map_err(|_| IdentityError::Secret)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(hosts: &[&str]) -> UniqueId {
        let endpoints = hosts.iter().map(|host| Endpoint::new(*host, 29_400)).collect();
        UniqueId { endpoints, secret: Secret::from_bytes([0xa5; 32]) }
    }

    #[test]
    fn a_unique_id_survives_its_text_form() {
        for hosts in [&["node7"][..], &["10.0.0.1"], &["::1"], &["fe80::2", "10.0.0.1", "node7"]] {
            let sent = id(hosts);
            let read = sent.to_secret_string().parse::<UniqueId>().unwrap();
            assert_eq!(read.endpoints, sent.endpoints);
            assert_eq!(read.secret.0, sent.secret.0);
        }
    }

    #[test]
    fn neither_display_nor_debug_shows_the_secret() {
        let id = id(&["node7"]);
        for text in [format!("{id}"), format!("{id:?}"), format!("{:?}", id.secret)] {
            assert!(!text.contains("a5a5"), "{text}");
        }
    }

    #[test]
    fn a_malformed_unique_id_is_refused_without_showing_its_secret() {
        let good = id(&["node7"]).to_secret_string();
        let many = "h:1,".repeat(9);
        let many = many.trim_end_matches(',');
        for bad in [
            String::new(),
            good.replace("ferroccl1", "ferroccl2"),
            good.replace("29400", "99400"),
            good[..good.len() - 1].to_owned(),
            good[..good.len() - 2].to_owned(),
            good[..good.len() - 64].to_owned(),
            format!("{good}a5"),
            good.replace("a5a5", "a5g5"),
            good.replace("node7", "::1"),
            good.replace("node7", ""),
            good.replace("node7:29400", many),
            format!("{good}é"),
        ] {
            let error = bad.parse::<UniqueId>().unwrap_err();
            assert!(!error.to_string().contains("a5"), "{error}");
        }
    }

    #[test]
    fn endpoints_are_parsed_strictly() {
        for good in ["h:0", "127.0.0.1:65535", "[::1]:1"] {
            assert_eq!(good.parse::<Endpoint>().unwrap().to_string(), good);
        }
        for bad in ["", "h", "h:", ":1", "::1:1", "h:65536", "h:-1", "[h]:1", "a b:1", "h/x:1"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn different_passphrases_give_different_keys_and_the_empty_one_does_not_give_the_public_key() {
        assert_eq!(Secret::from_passphrase("a").0, Secret::from_passphrase("a").0);
        assert_ne!(Secret::from_passphrase("a").0, Secret::from_passphrase("b").0);
        assert!(!Secret::from_passphrase("").is_public());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC*", tail in "[0-9a-f:,é]{0,80}") {
            let _ = text.parse::<UniqueId>();
            let _ = format!("ferroccl1:{tail}").parse::<UniqueId>();
            let _ = tail.parse::<Endpoint>();
        }
    }
}
