//! Every experiment, as its report shows it.

use ccl_sim::report;
use ccl_sim::scenario::SCENARIOS;

#[test]
fn every_experiment_runs() {
    for scenario in SCENARIOS {
        let begun = std::time::Instant::now();
        let report = scenario.run(1, 4096, &[]).unwrap();
        println!("{}  took {:?}", report::text(&report), begun.elapsed());
    }
}
