//! Links between two processes: one connection or several, made anew when they break.
//!
//! After a break, the connecting side dials again. The other side accepts connections as long as a
//! link lives, even after the [`LinkListener`] is dropped.

mod acceptor;
mod broken;
mod connecting;
mod intent;

use std::any::Any;
use std::sync::{Arc, Mutex};

use ccl_core::time::Instant;
use ccl_core::transport::Inner;

use acceptor::Acceptor;
pub use acceptor::LinkListener;
pub use broken::{Break, BreakLimits};
pub use connecting::LinkConnecting;
pub use intent::Intent;

use crate::address::Location;
use crate::connection::Connection;
use crate::shake::Setup;

/// Random identifier of a link, the same in both processes.
pub type LinkId = [u8; 16];

/// A link to a peer: its connections, and the source of their replacements.
#[derive(Debug)]
pub struct Link {
    /// Device that made the link.
    pub device: u64,
    /// Identifier of the link.
    pub id: LinkId,
    /// Address of the peer, as text for errors and logs.
    pub peer: String,
    /// Connections of the link, in the order of their numbers.
    pub connections: Vec<Connection>,
    /// Source of connections that replace broken ones.
    pub reconnector: Reconnector,
}

impl Inner for Link {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Source of connections that replace a link's broken ones. Either this side or the peer dials the
/// new connections.
#[derive(Clone, Debug)]
pub struct Reconnector(Side);

#[derive(Clone, Debug)]
enum Side {
    /// The peer connects again, to this acceptor.
    Accepted(Arc<Mutex<Acceptor>>),
    /// This side connects again, to this location.
    Dialled { location: Location, setup: Setup },
}

impl Reconnector {
    /// Creates a `Reconnector` that connects to a location again.
    #[must_use]
    pub fn dialled(location: Location, setup: Setup) -> Reconnector {
        Reconnector(Side::Dialled { location, setup })
    }

    /// Returns whether this side connects.
    #[must_use]
    pub fn is_dialled(&self) -> bool {
        matches!(self.0, Side::Dialled { .. })
    }

    /// Takes the connections that the peer has made anew for a link, with their numbers; none on
    /// the side that connects.
    #[must_use]
    pub fn take_resumed(&self, link: &LinkId, now: Instant) -> Vec<(u16, Connection)> {
        match &self.0 {
            Side::Accepted(acceptor) => acceptor::take_resumed(acceptor, link, now),
            Side::Dialled { .. } => Vec::new(),
        }
    }
}
