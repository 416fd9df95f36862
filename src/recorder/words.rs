//! Text for the operations of a rank, and for its steps outside operations.

use super::call::CallRecord;

/// Kind that is recorded for sends and receives; a collective has the kind of its call record.
pub(crate) const MESSAGES: u64 = u64::MAX;

/// Returns the text for a recorded operation.
pub(super) fn operation(sequence: u64, kind: u64, count: u64) -> String {
    if kind == MESSAGES {
        return messages(count >> 32, count & 0xffff_ffff);
    }
    match CallRecord::of(sequence, kind, count) {
        Some(record) => record.to_string(),
        None => format!("an unknown operation #{sequence}"),
    }
}

fn messages(sends: u64, recvs: u64) -> String {
    let some = |count: u64, one: &str| match count {
        0 => None,
        1 => Some(format!("a {one}")),
        _ => Some(format!("{count} {one}s")),
    };
    let both: Vec<_> =
        [some(sends, "send"), some(recvs, "receive")].into_iter().flatten().collect();
    if both.is_empty() { "an empty group".to_owned() } else { both.join(" and ") }
}

/// Steps of a rank outside operations; the first has number 1. A rank whose recording is off is
/// always in the step `unrecorded calls`.
const STEPS: [&str; 5] = ["connecting", "alloc", "split", "unrecorded calls", "invite"];

/// Returns the name of a step by its number.
pub(super) fn step(number: u64) -> &'static str {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    index.and_then(|index| STEPS.get(index)).copied().unwrap_or("an unknown step")
}

/// Returns the number of the step with this name; 0 if no step has the name.
pub(super) fn step_number(name: &str) -> u64 {
    STEPS.iter().position(|known| *known == name).map_or(0, |index| index as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_count_sends_and_receives_and_each_step_is_found_by_its_number() {
        assert_eq!(operation(3, MESSAGES, 1 << 32), "a send");
        assert_eq!(operation(3, MESSAGES, 2 << 32 | 1), "2 sends and a receive");
        for known in STEPS {
            assert_eq!(step(step_number(known)), known);
        }
    }
}
