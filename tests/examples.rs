//! Tutorial examples: each starts its ranks and prints the promised result.

use std::process::Command;
use std::time::Duration;

use ccl_harness::processes::Processes;

use crate::perf::examples;

#[test]
fn each_starts_its_ranks_and_prints_its_result() {
    for (name, promised, ends_well) in [
        ("all_reduce", "4 ranks: every element is 6", true),
        ("overlap", "layer 0: the first average is 1.5", true),
        ("all_to_all_v", "64 tokens went to their ranks", true),
        ("symmetric_memory", "rank 0 is between 3 and 1", true),
        ("registered_memory", "every element is 64", true),
        ("survive_a_failure", "3 ranks completed 10 steps: the sum is 3", false),
        ("join_by_hand", "2 ranks on 1 hosts", true),
    ] {
        let program = Command::new(examples().join(name));
        let ended = Processes::start([program]).end(Duration::from_secs(100)).remove(0);
        assert!(ended.output.contains(promised), "{name}: {}", ended.output);
        assert_eq!(ended.status.success(), ends_well, "{name}: {}", ended.output);
    }
}
