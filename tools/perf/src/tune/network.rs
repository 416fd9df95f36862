//! Measurement of the network under load, before the variants are measured, and the settings that
//! its result suggests.

use std::io::Write;

use super::Tried;
use crate::subject::SubjectError;
use ferroccl::communicator::Communicator;
use ferroccl::tools::Measurement;
use ferroccl::transports::Choice;

const ROUNDS: u32 = 7;

/// Measures the network, and prints the result on rank 0. Returns the settings that the result
/// suggests. All ranks call this function and get the same settings.
pub(super) fn look(
    communicator: &mut Communicator,
    out: &mut dyn Write,
) -> Result<Vec<Tried>, SubjectError> {
    let Some(seen) = communicator.measure_network(ROUNDS)? else { return Ok(Vec::new()) };
    let tried = worth(&seen, communicator.transport());
    if communicator.rank() == 0 {
        writeln!(out, "{}", said(&seen, &tried))?;
    }
    Ok(tried)
}

/// Describes the result, and the settings that are tried because of it.
fn said(seen: &Measurement, tried: &[Tried]) -> String {
    let names: Vec<&str> = tried.iter().map(|tried| tried.variable).collect();
    match names.is_empty() {
        true => seen.to_string(),
        false => format!("{seen}; trying other values of {}", names.join(" and ")),
    }
}

/// Returns settings with more flows if the network is oversubscribed: the slowest pair of hosts
/// gets clearly less bandwidth when all pairs send at once than one pair gets alone.
fn worth(seen: &Measurement, transport: &str) -> Vec<Tried> {
    if !seen.is_oversubscribed() {
        return Vec::new();
    }
    let network = Choice::named(transport).ok().and_then(|choice| choice.network);
    let Some((variable, values)) = network.and_then(|kind| kind.more_flows) else {
        return Vec::new();
    };
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    vec![Tried { variable, values }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_flows_are_tried_on_an_oversubscribed_network() {
        let seen = Measurement { pairs: 4, round_trip_us: 12.0, alone: 10e9, together: 2.5e9 };
        let tried = worth(&seen, "shm+tcp");
        assert_eq!(tried[0].variable, "FERROCCL_SOCKETS");
        let text = said(&seen, &tried);
        assert!(text.ends_with("on one path; trying other values of FERROCCL_SOCKETS"), "{text}");
        assert_eq!(worth(&seen, "shm+verbs")[0].variable, "FERROCCL_IB_POLICY");
        let quiet = Measurement { together: 9e9, ..seen };
        assert_eq!(worth(&quiet, "tcp"), []);
        assert_eq!(said(&quiet, &[]), quiet.to_string());
    }
}
