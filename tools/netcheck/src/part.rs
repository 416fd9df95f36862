//! One process's part of a point (one check of a plugin).

use std::process::ExitCode;

use crate::arguments::Arguments;
use crate::messages::{ChildMessage, Role, Verdict};
use crate::pair;
use crate::points::{Act, Point};
use crate::side::Side;
use crate::stop::Stop;

/// Runs this process's part of a point, and reports the verdict to the parent process.
pub(crate) fn run(point: &Point, role: Role, arguments: &Arguments) -> ExitCode {
    let side = match Side::new(role, arguments, arguments.timeout(point.patience)) {
        Ok(side) => side,
        Err(error) => {
            eprintln!("cannot set up the pipes and threads of this process: {error}");
            return ExitCode::from(2);
        }
    };
    let outcome = match (point.act, role) {
        (Act::Alone(act), _) | (Act::Pair { receive: act, .. }, Role::Receiver) => act(&side),
        (Act::Pair { send: act, .. }, Role::Sender) => act(&side),
    };
    let verdict = match outcome {
        Ok(()) => Verdict::Passed,
        Err(Stop::Failed(why)) => Verdict::Failed(side.watch.with_step(why)),
        Err(Stop::Skipped(why)) => Verdict::Skipped(why),
        Err(Stop::PeerEnded) => Verdict::PeerEnded,
    };
    let is_passed = verdict == Verdict::Passed;
    side.write(&ChildMessage::Done(verdict));
    if !is_passed {
        // Waits to be killed: an exit would break the connections to the peer, which would then
        // report a failure of its own.
        std::thread::sleep(side.arguments.on_this_machine(pair::GRACE * 2));
    }
    ExitCode::SUCCESS
}
