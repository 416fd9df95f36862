//! The connecting side of the keyed challenge.

use super::PROTOCOL_VERSION;
use super::handshake::{Nonce, Nonces, Role, proof, proves};
use super::identity::Secret;
use super::join_member::MemberJoinError;
use super::message::{JoinFailure, Message};
use crate::encoding::MessageError;

#[derive(Clone, Copy, Debug)]
enum Stage {
    Opened,
    Answered(Nonces),
    Proven,
}

/// A connection on its way through the challenge.
#[derive(Debug)]
pub(super) struct Caller {
    secret: Secret,
    nonce: Nonce,
    stage: Stage,
}

impl Caller {
    /// Returns the start of a challenge; `nonce` is fresh randomness.
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

    /// Takes the next message of the other side; returns the answer, if it needs one.
    pub(super) fn step(&mut self, message: &Message) -> Result<Option<Message>, MemberJoinError> {
        match (self.stage, message) {
            // Only what the other may say to a stranger is believed before it has proved itself.
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
