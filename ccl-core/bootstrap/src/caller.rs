//! The connecting side of the keyed challenge, in which both sides prove that they know the secret.

use super::PROTOCOL_VERSION;
use super::frame::FrameError;
use super::handshake::{Nonce, Nonces, Role, proof, proves};
use super::identity::Secret;
use super::message::{JoinFailure, Message};
use ccl_core::encoding::MessageError;
use thiserror::Error;

/// Error of an attempt to join.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemberJoinError {
    /// The connection closed before the challenge: rank 0 was busy or not ready yet.
    #[error("the connection closed before the challenge")]
    ClosedEarly,
    /// The other side closed the connection after it got this side's proof.
    #[error(
        "the process that listens there closed the connection when this process answered its \
         challenge: the two processes have different secrets; give all ranks the same \
         FERROCCL_SECRET or unique id"
    )]
    SecretRefused,
    /// The process that listens there does not know the secret.
    #[error(
        "the process that listens there does not know the secret: it belongs to another \
         communicator or has another FERROCCL_SECRET"
    )]
    RootUnproven,
    /// The process that listens there sent a message that is not of this protocol.
    #[error(
        "the process that listens there is no ferroccl rank ({0}): does another program use the \
         port?"
    )]
    Alien(MessageError),
    /// The process that listens there sent a frame that is not of this protocol.
    #[error(
        "the process that listens there is no ferroccl rank ({0}): does another program use the \
         port?"
    )]
    AlienFrame(FrameError),
    /// A rank that was asked for the list of members closed the connection without an answer.
    #[error("that rank closed the connection before it sent the list of members")]
    NoMembers,
    /// Rank 0 ended the joining.
    #[error(transparent)]
    Refused(JoinFailure),
}

impl MemberJoinError {
    /// Returns whether another attempt can succeed.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, MemberJoinError::ClosedEarly)
    }
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Opened,
    Answered(Nonces),
    Proven,
}

/// State of the connecting side in one challenge.
#[derive(Debug)]
pub(super) struct Caller {
    secret: Secret,
    nonce: Nonce,
    stage: Stage,
}

impl Caller {
    /// Returns the state at the start of a challenge; `nonce` is fresh randomness.
    pub(super) fn new(secret: Secret, nonce: Nonce) -> Caller {
        Caller { secret, nonce, stage: Stage::Opened }
    }

    /// Returns the first message.
    pub(super) fn open(&self) -> Message {
        Message::Open { protocol: PROTOCOL_VERSION, nonce: self.nonce }
    }

    /// Returns whether both sides have proved that they know the secret.
    pub(super) fn is_proven(&self) -> bool {
        matches!(self.stage, Stage::Proven)
    }

    /// Takes the next message of the other side. Returns the answer to send, if any.
    pub(super) fn step(&mut self, message: &Message) -> Result<Option<Message>, MemberJoinError> {
        match (self.stage, message) {
            // Before its proof, the other side may refuse only because of the version.
            (Stage::Opened, Message::Refused(failure @ JoinFailure::Protocol { .. })) => {
                Err(MemberJoinError::Refused(failure.clone()))
            }
            (Stage::Opened, Message::Challenge { nonce }) => {
                let nonces = Nonces { connector: self.nonce, root: *nonce };
                self.stage = Stage::Answered(nonces);
                let proof = proof(&self.secret, Role::Connector, &nonces);
                Ok(Some(Message::Proof { proof }))
            }
            (Stage::Answered(nonces), Message::RootProof { proof }) => {
                if !proves(proof, &self.secret, Role::Root, &nonces) {
                    return Err(MemberJoinError::RootUnproven);
                }
                self.stage = Stage::Proven;
                Ok(None)
            }
            _ => Err(MemberJoinError::Alien(MessageError { what: "it is out of turn" })),
        }
    }

    /// Returns the error for a connection that closes at this stage.
    pub(super) fn closed(&self) -> MemberJoinError {
        match self.stage {
            Stage::Opened => MemberJoinError::ClosedEarly,
            Stage::Answered(_) => MemberJoinError::SecretRefused,
            Stage::Proven => MemberJoinError::Refused(JoinFailure::Died { rank: 0 }),
        }
    }
}
